"""Rates of a running server, from two reports of its status."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Report = Mapping[str, Any]
"""The response of the action ``status``, or ``{"error": TEXT}``."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The status of a server at one time."""

    seconds: float
    """When it was requested, from any epoch."""
    report: Report
    """The status."""


@dataclass(slots=True)
class Rate:
    """The speed at which a server sends."""

    bytes_per_second: float = 0.0
    rows_per_second: float = 0.0
    streams: int = 0
    """The streams that run now."""


@dataclass(slots=True)
class Rates:
    """The speed of a server, of each dataset and of each running stream."""

    total: Rate = field(default_factory=Rate)
    datasets: dict[str, Rate] = field(default_factory=lambda: defaultdict(Rate))
    streams: dict[int, Rate] = field(default_factory=dict[int, Rate])

    def as_json(self) -> dict[str, Any]:
        """Return the rates for JSON. The streams are left out: their list contains them."""
        return {
            **_describe(self.total),
            "datasets": [
                {"dataset": name, **_describe(rate)} for name, rate in self.datasets.items()
            ],
        }


def compute_rates(before: Sample, after: Sample) -> Rates:
    """Return the rates between two samples.

    They include streams that have ended in between. A server that reports no totals by dataset has
    the rates of its running streams only. The rates of a server that has restarted in between
    count from its start.

    Examples
    --------
    >>> first = Sample(10.0, {"stats": {"bytes_sent": 100, "rows": 1}})
    >>> compute_rates(first, Sample(12.0, {"stats": {"bytes_sent": 300, "rows": 7}})).total
    Rate(bytes_per_second=100.0, rows_per_second=3.0, streams=0)
    """
    seconds = max(after.seconds - before.seconds, 1e-9)
    old, new = before.report, after.report
    if new.get("uptime_seconds", 0) < old.get("uptime_seconds", 0):
        old = {}
    rates = Rates()
    rows, nbytes = (
        _total(new, *names) - _total(old, *names)
        for names in (("rows",), ("bytes_sent", "bytes_lent"))
    )
    streams: list[dict[str, Any]] = list(new.get("streams", ()))
    rates.total = Rate(max(0, nbytes) / seconds, max(0, rows) / seconds, len(streams))
    known = {stream["stream"]: stream for stream in old.get("streams", ())}
    for stream in streams:
        rate = _rate(known.get(stream["stream"], {}), stream, seconds)
        rates.streams[stream["stream"]] = rate
        dataset = rates.datasets[stream["dataset"]]
        dataset.streams += 1
        if "sent" not in new:
            dataset.bytes_per_second += rate.bytes_per_second
            dataset.rows_per_second += rate.rows_per_second
    for name, sent in new.get("sent", {}).items():
        rate = _rate(old.get("sent", {}).get(name, {}), sent, seconds)
        if name in rates.datasets or rate != Rate():
            rates.datasets[name].bytes_per_second = rate.bytes_per_second
            rates.datasets[name].rows_per_second = rate.rows_per_second
    return rates


def _rate(old: Report, new: Report, seconds: float) -> Rate:
    nbytes, rows = (new.get(name, 0) - old.get(name, 0) for name in ("bytes", "rows"))
    return Rate(max(0, nbytes) / seconds, max(0, rows) / seconds)


def _describe(rate: Rate) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(rate).items()}


def _total(report: Report, *names: str) -> int:
    stats = report.get("stats", {})
    return sum(stats.get(name, 0) for name in names)
