"""The metrics of a server: those of each process, and those of the daemon as a whole.

Each metric is declared once, with its type, help text and labels.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple, cast

OTHER = "other"
"""The value that stands for all values beyond the bound."""


class LabelCap:
    """Replaces the values of a label by `OTHER`, except for a number of them.

    Examples
    --------
    >>> cap = LabelCap(2)
    >>> [cap.find(name) for name in ("trips", "flights", "weather", "trips")]
    ['trips', 'flights', 'other', 'trips']
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: set[str] = set()

    def find(self, value: str) -> str:
        """Return the value of the label for a value."""
        if value not in self._kept and value != OTHER:
            if len(self._kept) >= self._limit:
                return OTHER
            self._kept.add(value)
        return value


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
    """The name of the attribute of the registry."""
    type: MetricType
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

    @property
    def exported_name(self) -> str | None:
        """The name that a query uses; that of a histogram's parts has a suffix more."""
        if self.export is None:
            return None
        suffix = "_total" if self.type is MetricType.COUNTER else ""
        return f"{PREFIX}{self.export}{suffix}"


class Histogram:
    """A distribution of observed values, in buckets with upper bounds and one without.

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
        """The number of values in each bucket."""
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
    labels: tuple[str, ...]
    """The values of its labels, in the order of their names."""
    value: float | Histogram

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
    """Declare a counter, which is exported under the name of its attribute by default.

    With labels, the attribute is a mapping from label values to totals: count with
    ``metrics.NAME[value1, value2] += n``.
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
        """Return a lock to hold while a collector's amount is counted: `samples` has it once."""
        return self._lock

    @classmethod
    def declarations(cls) -> list[Metric]:
        """Return the declarations of all metrics, in order."""
        return [one.metadata[_METRIC](one.name) for one in fields(cls)]

    def samples(self, *collectors: Collector) -> Iterator[Sample]:
        """Yield the values of all metrics, for all their labels. Any thread may call this."""
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
    """Return the samples of several processes as those of one server."""
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


# ruff: noqa: RUF009

_DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STREAM_DURATIONS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
_BY_DATASET = ("dataset", "transport")

Counts = dict[tuple[str, ...], float]
"""Values by the values of labels. Missing ones are 0."""


@dataclass(eq=False)
class Metrics(Registry):
    """The metrics of one process that serves data."""

    connections: int = gauge("Open connections of readers.")
    connections_total: int = counter(
        "Connections of readers that were accepted.", export="accepted_connections"
    )
    streams: int = gauge("Running streams.", export=None)
    streams_total: int = counter("Requested streams.", export=None)
    leases: int = gauge("Leases that readers hold on shared memory.")
    leased_bytes: int = gauge("Bytes that readers hold leases on.", unit="bytes")
    lease_seconds: int = gauge(
        "Age of the oldest lease.", unit="seconds", export="oldest_lease_seconds", merge=Merge.MAX
    )
    bad_frees: int = counter("Freed offsets that were not leased.")
    shared_bytes: int = gauge(
        "Bytes in memory that the server shares.", unit="bytes", export="shared_memory_bytes"
    )
    bytes_sent: int = counter("Bytes sent over connections.", unit="bytes", export=None)
    bytes_lent: int = counter("Bytes of bodies that readers mapped.", unit="bytes", export=None)
    messages: int = counter("Messages sent, schemas included.", export="sent_messages")
    rows: int = counter("Sent rows.", export=None)
    failures: int = counter("Streams that failed on the server's side.", export=None)
    protocol_errors: int = counter("Connections closed because the peer broke the protocol.")
    refused: int = counter(
        "Connections refused because there were too many.", export="refused_connections"
    )

    running_streams: Counts = gauge("Running streams.", labels=_BY_DATASET, export="streams")
    started_streams: Counts = counter(
        "Streams that began.", labels=_BY_DATASET, export="streams_started"
    )
    ended_streams: Counts = counter(
        "Streams that ended. The outcome is complete, failed (on the server's side), cancelled or "
        "disconnected (the reader left, or was disconnected).",
        labels=(*_BY_DATASET, "outcome"),
        export="streams_ended",
    )
    sent_bytes: Counts = counter(
        "Bytes sent by streams, framing included.", unit="bytes", labels=_BY_DATASET
    )
    mapped_bytes: Counts = counter(
        "Bytes of bodies that readers mapped or read remotely.", unit="bytes", labels=_BY_DATASET
    )
    sent_rows: Counts = counter("Rows sent by streams.", labels=_BY_DATASET)
    reader_wait_seconds: Counts = counter(
        "Time that streams waited until their readers or the network took data.",
        unit="seconds",
        labels=_BY_DATASET,
    )
    first_batch_seconds: dict[tuple[str, ...], Histogram] = histogram(
        "Time from the start of a stream until its first rows were sent.",
        _DURATIONS,
        unit="seconds",
        labels=("transport",),
    )
    stream_seconds: dict[tuple[str, ...], Histogram] = histogram(
        "Duration of streams that ended.",
        _STREAM_DURATIONS,
        unit="seconds",
        labels=("transport",),
    )
    refused_requests: Counts = counter(
        "Refused requests for streams (plane: data), calls (control) and requests for pages "
        "(http). The reason is a status code of gRPC in lower case, such as not_found.",
        labels=("plane", "reason"),
    )
    cache_hits: Counts = counter(
        "Uses of a cache that found the data: copies of datasets in shared_memory, arrays in "
        "vortex, and downloaded objects.",
        labels=("cache",),
    )
    cache_misses: Counts = counter("Uses of a cache that did not find the data.", labels=("cache",))
    cache_bytes: Counts = gauge(
        "Bytes in a cache. Only downloaded objects have this metric and the following ones.",
        unit="bytes",
        labels=("cache",),
        merge=Merge.MAX,
    )
    cache_limit_bytes: Counts = gauge(
        "The largest size of a cache.", unit="bytes", labels=("cache",), merge=Merge.MAX
    )
    cache_evictions: Counts = counter("Objects that a cache removed for others.", labels=("cache",))
    cache_rejections: Counts = counter(
        "Objects that a cache could not store, because it has no room or the disk is full.",
        labels=("cache",),
    )
    cache_waiting_readers: Counts = gauge("Readers that wait for a download.", labels=("cache",))
    dataset_version: Counts = gauge(
        "The number of the version that new readers of a published dataset get.",
        labels=("dataset",),
        merge=Merge.MIN,
    )
    process_open_fds: Counts = gauge("Open descriptors of a process.", labels=("process",))
    process_max_fds: Counts = gauge(
        "The number of descriptors that a process may open.", labels=("process",)
    )
    process_resident_memory_bytes: Counts = gauge(
        "Resident memory of a process, mapped files included.", unit="bytes", labels=("process",)
    )
    process_cpu_seconds: Counts = counter(
        "Processor time that a process has used.", unit="seconds", labels=("process",)
    )


@dataclass(eq=False)
class DaemonMetrics(Registry):
    """The metrics of a daemon as a whole, however many worker processes it has."""

    build_info: Counts = gauge("Always 1. The label is the version.", labels=("version",))
    start_time_seconds: float = gauge(
        "When the daemon started, in seconds since 1970.", unit="seconds"
    )
    ready: int = gauge("1 if the daemon is ready for new readers, as /readyz answers; 0 if not.")
    draining: int = gauge("1 if the daemon refuses new readers because it drains; 0 if not.")
    workers: int = gauge("Processes that serve data and respond.")
    worker_restarts: int = counter("Worker processes that died and were replaced.")
    datasets: int = gauge("Datasets that the daemon serves.")
    reloads: Counts = counter(
        "Reloads of the configuration. The result is success or failure.", labels=("result",)
    )
    last_reload_successful: int = gauge("1 if the last reload succeeded, or there was none.")
    last_reload_success_timestamp_seconds: float = gauge(
        "When the configuration in use was loaded, in seconds since 1970.", unit="seconds"
    )
    certificate_expiry_timestamp_seconds: Counts = gauge(
        "When the daemon's certificate expires, in seconds since 1970. It is absent without TLS.",
        unit="seconds",
        labels=("certificate",),
    )


@dataclass(eq=False)
class RelayMetrics(Registry):
    """The metrics of a relay. Other daemons have none of them."""

    relay_offline: int = gauge("1 if no upstream of the relay can be reached; 0 if one can.")
    relay_fetched_bytes: Counts = counter(
        "Bytes that the relay fetched. The source is upstream or peer.",
        unit="bytes",
        labels=("source",),
    )
    relay_upstream_errors: int = counter("Requests to an upstream that failed.")
    relay_pinned_bytes: int = gauge(
        "Bytes of the pinned datasets, whether the cache has room for them or not.", unit="bytes"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.relay_fetched_bytes.update({("upstream",): 0, ("peer",): 0})

    def count_fetched(self, source: str, nbytes: int) -> None:
        """Count bytes from ``upstream`` or a ``peer``. Any thread may call this."""
        with self._lock:
            self.relay_fetched_bytes[source,] += nbytes

    def count_error(self) -> None:
        """Count a failed request to an upstream. Any thread may call this."""
        with self._lock:
            self.relay_upstream_errors += 1


def list_stats(samples: Iterable[Sample]) -> dict[str, int]:
    """Return the values of counters and gauges without labels by name."""
    return {
        sample.metric.name: int(sample.value)
        for sample in samples
        if not isinstance(sample.value, Histogram) and not sample.labels
    }


@dataclass(slots=True)
class CacheUses:
    """The uses of a cache. Whoever counts holds the lock of the cache."""

    hits: int = 0
    """Uses that found the data."""
    misses: int = 0
    """Uses that did not."""

    def count(self, *, is_hit: bool) -> None:
        """Count a use."""
        if is_hit:
            self.hits += 1
        else:
            self.misses += 1


@dataclass(slots=True)
class ObjectCacheUses(CacheUses):
    """The uses of a cache of downloaded objects."""

    evictions: int = 0
    """Objects that were removed for others."""
    rejections: int = 0
    """Objects that could not be stored, because there was no room."""
    waiting: int = 0
    """Readers that wait for a download now."""
