"""The metrics of the process that serves, and those of the daemon as a whole."""

# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .registry import Histogram, Merge, Registry, Sample, counter, gauge, histogram

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

    def stats(self) -> dict[str, int]:
        """Return the counters and gauges without labels by name."""
        return list_stats(self.samples())


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


def list_stats(samples: Iterable[Sample]) -> dict[str, int]:
    """Return the values of counters and gauges without labels by name."""
    return {
        sample.metric.name: int(sample.value)
        for sample in samples
        if not isinstance(sample.value, Histogram) and not sample.labels
    }
