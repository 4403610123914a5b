"""The metrics of a server: each is declared once, with its type, help text, unit and labels.

A counter or gauge without labels is a plain attribute, so the data path counts with
``metrics.rows += n``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple

_METRIC = "metric"


class MetricType(Enum):
    """The type of a metric."""

    COUNTER = "counter"
    """A total since the server started."""
    GAUGE = "gauge"
    """A current value."""
    HISTOGRAM = "histogram"
    """A distribution of observed values."""


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


class Sample(NamedTuple):
    """The value of a metric at one moment."""

    metric: Metric
    """The metric."""
    labels: tuple[str, ...]
    """The values of its labels, in the order of their names."""
    value: float | Histogram
    """The value."""


def counter(help: str, *, unit: str = "", labels: Sequence[str] = ()) -> Any:
    """Declare a counter.

    With labels, the attribute is a mapping from label values to totals: count with
    ``metrics.NAME[value1, value2] += n``.
    """
    return _declare(MetricType.COUNTER, help, unit, labels, int)


def gauge(help: str, *, unit: str = "", labels: Sequence[str] = ()) -> Any:
    """Declare a gauge; see `counter`."""
    return _declare(MetricType.GAUGE, help, unit, labels, int)


def histogram(
    help: str, bounds: Sequence[float], *, unit: str = "", labels: Sequence[str] = ()
) -> Any:
    """Declare a histogram. The attribute is a `Histogram`; with labels, a mapping of those."""
    return _declare(MetricType.HISTOGRAM, help, unit, labels, lambda: Histogram(bounds))


def _declare(
    type: MetricType, help: str, unit: str, labels: Sequence[str], initial: Callable[[], Any]
) -> Any:
    def labelled() -> Any:
        return defaultdict[tuple[str, ...], Any](initial)

    def metric(name: str) -> Metric:
        return Metric(name, type, help, unit, tuple(labels))

    return field(default_factory=labelled if labels else initial, metadata={_METRIC: metric})


Collector = Callable[[], Mapping[str, float]]
"""Returns amounts to add to metrics, by name."""


@dataclass(eq=False)
class Registry:
    """A set of metrics. A subclass declares them as fields with `counter`, `gauge`, `histogram`.

    Values that are cheaper to compute on demand come from collectors.
    """

    def __post_init__(self) -> None:
        self._collectors: list[Collector] = []

    def add_collector(self, collect: Collector) -> None:
        """Register a function that `samples` calls for values to add to those counted."""
        self._collectors.append(collect)

    @classmethod
    def declarations(cls) -> list[Metric]:
        """Return the declarations of all metrics, in order."""
        return [one.metadata[_METRIC](one.name) for one in fields(cls)]

    def samples(self) -> Iterator[Sample]:
        """Yield the value of each metric, and of each combination of its labels so far.

        It may be called from any thread.
        """
        collected = [collect() for collect in self._collectors]
        for metric in self.declarations():
            value = getattr(self, metric.name)
            if metric.labels:
                for labels, each in list(value.items()):
                    yield Sample(metric, labels, each)
            elif metric.type is MetricType.HISTOGRAM:
                yield Sample(metric, (), value)
            else:
                yield Sample(metric, (), value + sum(one.get(metric.name, 0) for one in collected))


_DURATIONS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(eq=False)
class Metrics(Registry):
    """The metrics of a server."""

    connections: int = gauge("Open connections.")
    connections_total: int = counter("Accepted connections.")
    streams: int = gauge("Running streams.")
    streams_total: int = counter("Requested streams.")
    leases: int = gauge("Leases that readers hold.")
    leased_bytes: int = gauge("Bytes that readers hold leases on.", unit="bytes")
    lease_seconds: int = gauge("Age of the oldest lease.", unit="seconds")
    bad_frees: int = counter("Freed offsets that were not leased.")
    shared_bytes: int = gauge("Bytes in memory that the server shares.", unit="bytes")
    bytes_sent: int = counter("Bytes sent over connections.", unit="bytes")
    bytes_lent: int = counter("Bytes of bodies that readers mapped.", unit="bytes")
    messages: int = counter("Sent messages, schemas included.")
    rows: int = counter("Sent rows.")
    failures: int = counter("Streams that failed on the server's side.")
    protocol_errors: int = counter("Connections closed because the peer broke the protocol.")
    refused: int = counter("Connections refused because there were too many.")
    stream_seconds: Histogram = histogram("Duration of streams.", _DURATIONS, unit="seconds")  # noqa: RUF009

    def stats(self) -> dict[str, int]:
        """Return the counters and gauges by name."""
        return {
            sample.metric.name: int(sample.value)
            for sample in self.samples()
            if not isinstance(sample.value, Histogram) and not sample.labels
        }
