"""The response of the action ``status``."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Any

from ..auth.principal import Permission
from ..metrics import Histogram, Sample, list_stats, merge_samples
from ..report import StreamReport, package_version
from .call import Call

_TOTALS = {
    "started_streams": "streams",
    "sent_rows": "rows",
    "sent_bytes": "bytes",
    "mapped_bytes": "bytes",
}
"""The metrics by dataset, and their names in the response."""
_CACHES = {"cache_hits": "hits", "cache_misses": "misses"}
"""The metrics by cache, and their names in the response."""


def describe_status(call: Call, started: float) -> dict[str, Any]:
    """Return the state of the server, for JSON, as far as the caller may see it.

    It asks all processes of the server: call it on a worker thread.

    Parameters
    ----------
    call : Call
        The call.
    started : float
        When the server started, in seconds on the monotonic clock.
    """
    server = call.server
    reports = server.reporter.reports(streams=True)
    samples = merge_samples(report.samples for report in reports)
    sent = _sum_by_label(samples, _TOTALS)
    return {
        "version": package_version(),
        "uptime_seconds": round(time.monotonic() - started, 3),
        "draining": server.draining.is_set(),
        "listen": [uri.redacted() for uri in server.uris],
        "datasets": call.list_datasets(),
        "stats": list_stats(samples),
        "caches": _sum_by_label(samples, _CACHES),
        "sent": {name: total for name, total in sent.items() if _may_read(call, name)},
        "streams": [
            _describe_stream(stream)
            for report in reports
            for stream in report.streams
            if _may_read(call, stream.dataset)
        ],
    }


def _sum_by_label(samples: list[Sample], names: dict[str, str]) -> dict[str, Counter[str]]:
    """Return the values of metrics by their first label, over all others."""
    totals = defaultdict[str, Counter[str]](Counter)
    for metric, labels, value in samples:
        name = names.get(metric.name)
        if name is not None and not isinstance(value, Histogram):
            totals[labels[0]][name] += int(value)
    return totals


def _may_read(call: Call, dataset: str) -> bool:
    return call.principal.may(Permission.READ, dataset)


def _describe_stream(stream: StreamReport) -> dict[str, Any]:
    return {
        "stream": stream.number,
        "dataset": stream.dataset,
        "transport": stream.transport,
        "rows": stream.rows,
        "bytes": stream.nbytes,
        "seconds": round(stream.seconds, 3),
        "compression": stream.compression or "as requested",
    }
