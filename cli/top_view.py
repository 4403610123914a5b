"""What ``splitarrow top`` shows of a server: its state, its datasets and its running streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .formatting import (
    escape_text,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    shorten,
)
from .rates import Rate, Rates, Report
from .tables import make_properties, make_table

_NAME_CHARACTERS = 40
_FIXED_LINES = 12
"""The lines of a view that do not list datasets or streams."""


def render(uri: str, report: Report, rates: Rates, lines: int | None = None) -> Group:
    """Return the view of one server.

    `lines`: By default, all datasets and streams are shown.
    """
    parts: list[Any] = [_heading(uri, report)]
    if "error" in report:
        return Group(*parts, Text(escape_text(str(report["error"])), "red"))
    room = None if lines is None else max(2, lines - _FIXED_LINES)
    datasets = sorted(rates.datasets.items(), key=lambda item: _by_speed(item[1]))
    streams = sorted(
        report.get("streams", ()), key=lambda each: _by_speed(rates.streams[each["stream"]])
    )
    parts.append(_summary(report, rates.total))
    shown = _first(datasets, None if room is None else room // 2)
    parts += [Text(), _datasets(shown), *_rest(len(datasets) - len(shown), "dataset")]
    if streams:
        left = _first(streams, None if room is None else max(1, room - len(shown)))
        parts += [Text(), _streams(left, rates), *_rest(len(streams) - len(left), "stream")]
    return Group(*parts)


def _by_speed(rate: Rate) -> float:
    return -rate.bytes_per_second


def _first(items: list[Any], count: int | None) -> list[Any]:
    return items if count is None else items[:count]


def _rest(count: int, noun: str) -> list[Text]:
    return [Text(f"and {format_count(count, noun)} more", "dim")] if count else []


def _heading(uri: str, report: Report) -> Text:
    text = Text(escape_text(uri), "bold cyan")
    if "error" in report:
        return text.append("  no response", "bold red")
    state = ("draining", "bold yellow") if report.get("draining") else ("serving", "bold green")
    text.append(f"  splitarrow {escape_text(str(report.get('version', '?')))}  ", "default")
    text.append(*state)
    uptime = report.get("uptime_seconds")
    if isinstance(uptime, (int, float)):
        text.append(f" for {_format_age(uptime)}", "default")
    return text


def _summary(report: Report, total: Rate) -> Table:
    stats = dict(report.get("stats", {}))

    def number(name: str) -> str:
        return format_number(int(stats.get(name, 0)))

    def nbytes(name: str) -> str:
        return format_bytes(int(stats.get(name, 0)))

    leases = f"{number('leases')}, {nbytes('leased_bytes')}"
    if stats.get("leases"):
        leases += f", the oldest since {_format_age(stats.get('lease_seconds', 0))}"
    rows = {
        "sends": f"{_format_bytes_rate(total)}, {_format_rows(total)} rows/s",
        "streams": f"{format_number(total.streams)} now, {number('streams_total')} since the "
        f"start, {number('failures')} failed",
        "connections": f"{number('connections')} now, {number('connections_total')} since the "
        f"start, {number('refused')} refused",
        "leases": leases,
        "shared memory": nbytes("shared_bytes"),
    }
    caches = list(_caches(report))
    if caches:
        rows["caches"] = ", ".join(caches)
    table = make_properties()
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _caches(report: Report) -> Iterator[str]:
    """Yield the share of the uses of each cache that found the data."""
    for name, uses in sorted(report.get("caches", {}).items()):
        hits, misses = uses.get("hits", 0), uses.get("misses", 0)
        if hits + misses:
            share = hits / (hits + misses)
            label = escape_text(name.replace("_", " "))
            yield f"{label} {share:.0%} of {format_count(hits + misses, 'use')}"


def _datasets(datasets: list[tuple[str, Rate]]) -> Table | Text:
    if not datasets:
        return Text("nothing is being sent", "dim")
    table = make_table()
    table.add_column("dataset", no_wrap=True)
    for heading in ("streams", "rows/s", "rate"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, rate in datasets:
        table.add_row(
            _name(name), format_number(rate.streams), _format_rows(rate), _format_bytes_rate(rate)
        )
    return table


def _streams(streams: list[dict[str, Any]], rates: Rates) -> Table:
    table = make_table()
    for heading in ("stream", "dataset", "transport"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows", "size", "rate", "age"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stream in streams:
        table.add_row(
            Text(str(stream["stream"])),
            _name(stream["dataset"]),
            Text(escape_text(str(stream.get("transport", "")))),
            format_number(stream["rows"]),
            format_bytes(stream["bytes"]),
            _format_bytes_rate(rates.streams[stream["stream"]]),
            _format_age(stream.get("seconds", 0)),
        )
    return table


def _name(name: str) -> Text:
    return Text(shorten(escape_text(name), _NAME_CHARACTERS))


def _format_bytes_rate(rate: Rate) -> str:
    return f"{format_bytes(int(rate.bytes_per_second))}/s"


def _format_rows(rate: Rate) -> str:
    return format_number(round(rate.rows_per_second))


def _format_age(seconds: float) -> str:
    """Return a duration in the two largest of its units.

    >>> [_format_age(seconds) for seconds in (4.2, 95, 3720, 200000)]
    ['4.20 s', '1 min 35 s', '1 h 2 min', '2 d 7 h']
    """
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 60:
        return format_duration(seconds)
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"
