"""Registries of metrics: each metric is declared once, with its type, help text and labels.

A counter or gauge without labels is a plain attribute: ``metrics.failures += 1``. The data path
keeps its figures where it has them anyway; a collector adds those up.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple, cast

PREFIX = "splitarrow_"
"""What the name of every exported metric begins with."""
_METRIC = "metric"
_SAME: Any = object()
"""Stands for the name of the attribute."""


class MetricType(Enum):
    """The type of a metric."""

    COUNTER = "counter"
    """A total since the server started."""
    GAUGE = "gauge"
    """A current value."""
    HISTOGRAM = "histogram"
    """A distribution of observed values."""


class Merge(Enum):
    """How the values of several processes become one."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of a metric."""

    name: str
    """Its name, which is also the attribute of the registry."""
    type: MetricType
    """Its type."""
    help: str
    """Its description, in one sentence."""
    unit: str
    """``bytes``, ``seconds``, or empty for a number of things."""
    labels: tuple[str, ...]
    """The names of its labels."""
    export: str | None
    """Its name for Prometheus, without the prefix ``splitarrow_`` and without the suffix ``_total``
    of counters. None keeps it out of the exported metrics."""
    merge: Merge
    """How the values of several processes become one."""

    @property
    def exported_name(self) -> str | None:
        """The name that a query uses; that of a histogram's parts has a suffix more."""
        if self.export is None:
            return None
        suffix = "_total" if self.type is MetricType.COUNTER else ""
        return f"{PREFIX}{self.export}{suffix}"


class Histogram:
    """A distribution of observed values.

    Parameters
    ----------
    bounds : sequence of float
        The upper bounds of the buckets, in ascending order. A last bucket has no bound.

    Attributes
    ----------
    counts : list of int
        The number of values in each bucket, the unbounded one included.
    sum : float
        The sum of all values.

    Examples
    --------
    >>> histogram = Histogram([0.1, 1.0])
    >>> for seconds in (0.05, 0.1, 7.0):
    ...     histogram.observe(seconds)
    >>> histogram.counts
    [2, 0, 1]
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def __add__(self, other: Histogram) -> Histogram:
        """Return the distribution of the values of both."""
        result = Histogram(self.bounds)
        result.counts = [
            ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)
        ]
        result.sum = self.sum + other.sum
        return result


class Sample(NamedTuple):
    """The value of a metric at one moment."""

    metric: Metric
    """The metric."""
    labels: tuple[str, ...]
    """The values of its labels, in the order of their names."""
    value: float | Histogram
    """The value."""

    def relabel(self, name: str, change: Callable[[str], str]) -> Sample:
        """Return the sample with another value of a label, if it has that label."""
        if name not in self.metric.labels:
            return self
        labels = list(self.labels)
        index = self.metric.labels.index(name)
        labels[index] = change(labels[index])
        return self._replace(labels=tuple(labels))


def counter(
    help: str, *, unit: str = "", labels: Sequence[str] = (), export: str | None = _SAME
) -> Any:
    """Declare a counter.

    With labels, the attribute is a mapping from label values to totals: count with
    ``metrics.NAME[value1, value2] += n``.

    Parameters
    ----------
    help : str
        The description, in one sentence.
    unit : {"", "bytes", "seconds"}
        The unit.
    labels : sequence of str
        The names of the labels.
    export : str or None
        See `Metric`. By default, the name of the attribute.
    """
    return _declare(MetricType.COUNTER, help, unit, labels, int, export)


def gauge(
    help: str,
    *,
    unit: str = "",
    labels: Sequence[str] = (),
    export: str | None = _SAME,
    merge: Merge = Merge.SUM,
) -> Any:
    """Declare a gauge; see `counter` and `Metric`."""
    return _declare(MetricType.GAUGE, help, unit, labels, int, export, merge)


def histogram(
    help: str,
    bounds: Sequence[float],
    *,
    unit: str = "",
    labels: Sequence[str] = (),
    export: str | None = _SAME,
) -> Any:
    """Declare a histogram. The attribute is a `Histogram`; with labels, a mapping of those."""
    return _declare(MetricType.HISTOGRAM, help, unit, labels, lambda: Histogram(bounds), export)


def _declare(
    type: MetricType,
    help: str,
    unit: str,
    labels: Sequence[str],
    initial: Callable[[], Any],
    export: str | None,
    merge: Merge = Merge.SUM,
) -> Any:
    def labelled() -> Any:
        return defaultdict[tuple[str, ...], Any](initial)

    def metric(name: str) -> Metric:
        exported = name if export is _SAME else export
        return Metric(name, type, help, unit, tuple(labels), exported, merge)

    return field(default_factory=labelled if labels else initial, metadata={_METRIC: metric})


Labelled = Mapping[tuple[str, ...], float]
"""Amounts by the values of labels."""
Collector = Callable[[], Mapping[str, float | Labelled]]
"""Returns amounts to add to metrics, by name."""


@dataclass(eq=False)
class Registry:
    """A set of metrics. A subclass declares them as fields with `counter`, `gauge`, `histogram`.

    Values that are cheaper to compute on demand come from collectors.
    """

    def __post_init__(self) -> None:
        self._collectors: list[Collector] = []
        self._lock = threading.Lock()

    def add_collector(self, collect: Collector) -> None:
        """Register a function that `samples` calls for values to add to those counted."""
        self._collectors.append(collect)

    def moving(self) -> threading.Lock:
        """Return a lock to hold while an amount moves from a collector to the counted values.

        `samples` thereby has it once.
        """
        return self._lock

    @classmethod
    def declarations(cls) -> list[Metric]:
        """Return the declarations of all metrics, in order."""
        return [one.metadata[_METRIC](one.name) for one in fields(cls)]

    def samples(self, *collectors: Collector) -> Iterator[Sample]:
        """Yield the value of each metric, and of each combination of its labels so far.

        It may be called from any thread.

        Parameters
        ----------
        *collectors : callable
            More collectors, for this call only.
        """
        with self._lock:
            collected = [collect() for collect in (*self._collectors, *collectors)]
            counted: list[Any] = [getattr(self, one.name) for one in self.declarations()]
            counted = [dict(each) if isinstance(each, dict) else each for each in counted]
        for metric, value in zip(self.declarations(), counted, strict=True):
            added = [one[metric.name] for one in collected if metric.name in one]
            if metric.labels:
                yield from _add_labelled(metric, value, added)
            elif metric.type is MetricType.HISTOGRAM:
                yield Sample(metric, (), value)
            else:
                yield Sample(metric, (), value + sum(cast("list[float]", added)))


def _add_labelled(metric: Metric, counted: Any, added: list[Any]) -> Iterator[Sample]:
    totals: dict[tuple[str, ...], Any] = counted
    for amounts in added:
        for labels, amount in amounts.items():
            totals[labels] = totals.get(labels, 0) + amount
    for labels, total in totals.items():
        yield Sample(metric, labels, total)


def merge_samples(processes: Iterable[Iterable[Sample]]) -> list[Sample]:
    """Return the samples of several processes as those of one server.

    Parameters
    ----------
    processes : iterable of iterable of Sample
        The samples of each process.
    """
    merged: dict[tuple[str, tuple[str, ...]], Sample] = {}
    for samples in processes:
        for sample in samples:
            key = (sample.metric.name, sample.labels)
            before = merged.get(key)
            merged[key] = sample if before is None else _merge_pair(before, sample)
    return list(merged.values())


def _merge_pair(one: Sample, other: Sample) -> Sample:
    values: Any = (one.value, other.value)
    if one.metric.merge is Merge.SUM:
        return one._replace(value=values[0] + values[1])
    return one._replace(value=(max if one.metric.merge is Merge.MAX else min)(values))
