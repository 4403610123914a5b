"""The state and the streams of a running server: ``splitarrow status``, ``top`` and ``cancel``."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..errors import SplitArrowError, UsageError
from ..formats.text import format_bytes
from .connection import (
    OFFLINE,
    AsJson,
    ConnectTimeout,
    ControlUri,
    Quiet,
    Token,
    open_client,
    open_single_client,
    with_tls_options,
)
from .formatting import (
    escape_text,
    format_count,
    format_duration,
    format_number,
    shorten,
)
from .options import flag, option
from .terminal import (
    is_terminal,
    make_console,
    make_properties,
    make_table,
    print_message,
    standard_output,
)

if TYPE_CHECKING:
    from ..client.connect import AnyClient


StatusReport = Mapping[str, Any]
"""The response of the action ``status``, or ``{"error": TEXT}``."""


@dataclass(frozen=True, slots=True)
class StatusSample:
    """The status of a server at one time."""

    seconds: float
    """When it was requested, from any epoch."""
    report: StatusReport
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
            **_describe_rate(self.total),
            "datasets": [
                {"dataset": name, **_describe_rate(rate)} for name, rate in self.datasets.items()
            ],
        }


def compute_rates(before: StatusSample, after: StatusSample) -> Rates:
    """Return the rates between two samples.

    They include streams that have ended in between. A server that reports no totals by dataset has
    the rates of its running streams only. The rates of a server that has restarted in between
    count from its start.

    >>> first = StatusSample(10.0, {"stats": {"bytes_sent": 100, "rows": 1}})
    >>> compute_rates(first, StatusSample(12.0, {"stats": {"bytes_sent": 300, "rows": 7}})).total
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


def _rate(old: StatusReport, new: StatusReport, seconds: float) -> Rate:
    nbytes, rows = (new.get(name, 0) - old.get(name, 0) for name in ("bytes", "rows"))
    return Rate(max(0, nbytes) / seconds, max(0, rows) / seconds)


def _describe_rate(rate: Rate) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(rate).items()}


def _total(report: StatusReport, *names: str) -> int:
    stats = report.get("stats", {})
    return sum(stats.get(name, 0) for name in names)


_NAME_CHARACTERS = 40
_FIXED_LINES = 12
"""The lines of a view that do not list datasets or streams."""


def render_server(uri: str, report: StatusReport, rates: Rates, lines: int | None = None) -> Group:
    """Return the view of one server, in about `lines` lines; None shows everything."""
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
        parts += [Text(), _stream_rates(left, rates), *_rest(len(streams) - len(left), "stream")]
    return Group(*parts)


def _by_speed(rate: Rate) -> float:
    return -rate.bytes_per_second


def _first(items: list[Any], count: int | None) -> list[Any]:
    return items if count is None else items[:count]


def _rest(count: int, noun: str) -> list[Text]:
    return [Text(f"and {format_count(count, noun)} more", "dim")] if count else []


def _heading(uri: str, report: StatusReport) -> Text:
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


def _summary(report: StatusReport, total: Rate) -> Table:
    stats = dict(report.get("stats", {}))

    def number(name: str) -> str:
        return format_number(int(stats.get(name, 0)))

    def nbytes(name: str) -> str:
        return format_bytes(int(stats.get(name, 0)))

    leases = f"{number('leases')}, {nbytes('leased_bytes')}"
    if stats.get("leases"):
        leases += f", the oldest since {_format_age(stats.get('lease_seconds', 0))}"
    rows: dict[str, str | Text] = {}
    if is_offline(report):
        rows["upstream"] = Text(OFFLINE, "bold yellow")
    rows |= {
        "sends": f"{_format_bytes_rate(total)}, {_format_rows(total)} rows/s",
        "streams": f"{format_number(total.streams)} now, {number('streams_total')} since the start",
    }
    if "connections" in stats:  # only for operators
        rows |= {
            "streams": f"{rows['streams']}, {number('failures')} failed",
            "connections": f"{number('connections')} now, {number('connections_total')} since the "
            f"start, {number('refused')} refused",
            "leases": leases,
            "shared memory": nbytes("shared_bytes"),
        }
    caches = list(_caches(report))
    if caches:
        rows["caches"] = ", ".join(caches)
    rows |= _describe_relay(report)
    table = make_properties()
    for name, value in rows.items():
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def is_offline(report: StatusReport) -> bool:
    """Return whether a report is that of a relay that reaches no upstream."""
    return bool(report.get("relay", {}).get("offline"))


def _describe_relay(report: StatusReport) -> dict[str, str]:
    """Return a row about the cache of a relay, as far as an operator gets it."""
    relay: dict[str, Any] = report.get("relay", {})
    cache = report.get("caches", {}).get("objects", {})
    if "limit_bytes" not in cache or "saved_bytes" not in relay:
        return {}
    hits = f"{format_count(cache['hits'], 'hit')} in {format_count(_count_uses(cache), 'use')}"
    used = f"{format_bytes(cache['bytes'])} of {format_bytes(cache['limit_bytes'])}"
    saved = f"{format_bytes(relay['saved_bytes'])} saved"
    pinned = relay.get("pinned_bytes", 0)
    pins = f", {format_bytes(pinned)} pinned" if pinned else ""
    return {"relay cache": f"{used}, {hits}, {saved}{pins}"}


def _count_uses(cache: Mapping[str, int]) -> int:
    return cache.get("hits", 0) + cache.get("misses", 0)


def _caches(report: StatusReport) -> Iterator[str]:
    """Yield the share of the uses of each cache that found the data."""
    for name, uses in sorted(report.get("caches", {}).items()):
        count = _count_uses(uses)
        if count:
            label = escape_text(name.replace("_", " "))
            yield f"{label} {uses.get('hits', 0) / count:.0%} of {format_count(count, 'use')}"


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


def _stream_rates(streams: list[dict[str, Any]], rates: Rates) -> Table:
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


@with_tls_options
def status(
    uri: ControlUri,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show the state, metrics and running streams of a server.

    [dim]splitarrow status grpc://host:8815[/dim]
    """
    with open_client(uri, token, connect_timeout) as client:
        report = client.status()
    with standard_output():
        if as_json:
            print(json.dumps(report, ensure_ascii=False))
        elif "daemons" in report:
            for index, (daemon_uri, daemon) in enumerate(report["daemons"].items()):
                if index:
                    print()
                make_console().print(Text(escape_text(daemon_uri), "bold cyan"))
                _show(daemon)
        else:
            _show(report)


def _show(report: dict[str, Any]) -> None:
    console = make_console()
    if "error" in report:
        console.print(Text(escape_text(str(report["error"])), "red"))
        return
    table = make_properties()
    for name, value in _list_properties(report):
        table.add_row(Text(escape_text(name)), Text(value))
    console.print(table)
    if streams := report.get("streams"):
        console.print()
        console.print(_stream_table(streams))


def _list_properties(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "version", escape_text(str(report.get("version", "?")))
    yield "state", "draining" if report.get("draining") else "serving"
    if is_offline(report):
        yield "upstream", OFFLINE
    uptime = report.get("uptime_seconds")
    if isinstance(uptime, (int, float)):
        yield "uptime", format_duration(uptime)
    if "listen" in report:  # only for operators
        yield "listens on", "\n".join(escape_text(str(uri)) for uri in report["listen"])
    yield "datasets", format_number(len(report.get("datasets", ())))
    yield from _describe_relay(report).items()
    for name, value in report.get("stats", {}).items():
        if isinstance(value, (int, float)):
            text = format_bytes(value) if "bytes" in name else f"{value:,}"
            yield name.replace("_", " "), text


def _stream_table(streams: list[dict[str, Any]]) -> Table:
    """Return a table of the running streams. A later server may report more columns."""
    table = make_table()
    names = [name for name, value in streams[0].items() if not isinstance(value, (dict, list))]
    for name in names:
        table.add_column(Text(escape_text(name)))
    for stream in streams:
        table.add_row(*(Text(escape_text(str(stream.get(name, "")))) for name in names))
    return table


_MIN_INTERVAL = 0.1


@with_tls_options
def top(
    uri: ControlUri,
    once: Annotated[bool, flag("--once", help="Print one view, and exit.")] = False,
    interval: Annotated[
        float,
        option(help="The time between two updates, in seconds.", metavar="SECONDS"),
    ] = 2.0,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Watch the streams, rates, leases and shared memory of a server.

    The view is updated until Ctrl-C. With --once, with --json, or if standard output is not a
    terminal, one view is printed, with the rates of one interval. It shows the streams of the
    datasets that you can read, the fastest first.

    [dim]splitarrow top grpc://host:8815[/dim]
    """
    if interval < _MIN_INTERVAL:
        raise UsageError(f"--interval {interval:g} must be at least {_MIN_INTERVAL:g} seconds")
    with open_client(uri, token, connect_timeout) as client:
        if once or as_json or not is_terminal(sys.stdout):
            before, after = _sample(client), _sample(client, interval)
            with standard_output():
                if as_json:
                    print(json.dumps(_describe_change(before, after), ensure_ascii=False))
                else:
                    make_console().print(_render_all(before, after))
        else:
            with suppress(KeyboardInterrupt):
                _watch(client, interval)


def _watch(client: AnyClient, interval: float) -> None:
    """Update the view until Ctrl-C. A server that does not respond may return."""
    from rich.live import Live

    console = make_console()
    before = _sample(client)
    after = before
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_render_all(before, after, console.height), refresh=True)
            try:
                before, after = after, _sample(client, interval)
            except SplitArrowError as error:
                failed = StatusSample(time.monotonic(), {"error": str(error)})
                before, after = {client.uri: failed}, {client.uri: failed}


def _sample(client: AnyClient, delay: float = 0.0) -> dict[str, StatusSample]:
    """Return a sample of each server, after a delay in seconds."""
    time.sleep(delay)
    report = client.status()
    seconds = time.monotonic()
    reports: dict[str, StatusReport] = report.get("daemons", {client.uri: report})
    return {uri: StatusSample(seconds, report) for uri, report in reports.items()}


def _pairs(
    before: dict[str, StatusSample], after: dict[str, StatusSample]
) -> Iterator[tuple[str, StatusReport, Rates]]:
    """Yield the address, the status and the rates of each server."""
    for uri, sample in after.items():
        earlier = before.get(uri, sample)
        if "error" in sample.report or "error" in earlier.report:
            earlier = sample
        yield uri, sample.report, compute_rates(earlier, sample)


def _render_all(
    before: dict[str, StatusSample], after: dict[str, StatusSample], height: int | None = None
) -> Group:
    lines = None if height is None else height // len(after)
    parts: list[Any] = []
    for uri, report, rates in _pairs(before, after):
        parts += [Text()] if parts else []
        parts.append(render_server(uri, report, rates, lines))
    return Group(*parts)


def _describe_change(
    before: dict[str, StatusSample], after: dict[str, StatusSample]
) -> dict[str, Any]:
    """Return the view for JSON: the status with the rates of one server, or of several."""
    described = {
        uri: dict(report) if "error" in report else {**report, "rates": rates.as_json()}
        for uri, report, rates in _pairs(before, after)
    }
    (first, *rest) = described.values()
    return {"daemons": described} if rest else first


@with_tls_options
def cancel(
    uri: ControlUri,
    streams: Annotated[
        list[int],
        typer.Argument(
            help="The numbers of the streams, as [cyan]status[/cyan] and [cyan]top[/cyan] show "
            "them.",
            metavar="STREAM",
        ),
    ],
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Cancel running streams of a server.

    Their readers get the error ABORTED. You can cancel your own streams. To cancel those of
    others, the token needs the right to write '*'.

    [dim]splitarrow cancel grpc://host:8815 17[/dim]
    """
    with open_single_client(uri, token, connect_timeout) as client:
        for number in streams:
            client.act("cancel", json.dumps({"stream": number}).encode())
    if as_json:
        with standard_output():
            print(json.dumps({"cancelled": streams}))
    elif not quiet:
        print_message(f"cancelled {format_count(len(streams), 'stream')}")
