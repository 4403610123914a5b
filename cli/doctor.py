"""``splitarrow doctor``: show what works on this machine, and why the rest does not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from ..errors import SplitArrowError, UsageError
from .connection import AsJson, ConnectTimeout, Token, open_client
from .diagnostics import check_java, check_limits, check_transports, collect_versions
from .format_diagnosis import check_vortex, choose_format
from .formatting import escape_text, format_duration
from .tables import make_console
from .terminal import standard_output
from .tls_options import with_tls_options

_REQUIRED = ("splitarrow", "python", "pyarrow", "anyio", "grpcio")
_SYMBOLS = {"good": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}


@with_tls_options
def doctor(
    uri: Annotated[
        str | None,
        typer.Argument(help="A control plane to connect to.", metavar="CONTROL_URI"),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and the connection to a server.

    It shows versions, transports and limits. The exit status is 1 if a required package is missing
    or the server does not respond.

    [dim]splitarrow doctor grpc://host:8815[/dim]
    """
    report: dict[str, Any] = {
        "versions": collect_versions(),
        "transports": check_transports(),
        "java": check_java(),
        "limits": check_limits(),
        "vortex": check_vortex(),
    }
    if uri is not None:
        report["server"] = _check_server(uri, token, connect_timeout)
    complete = all(report["versions"].get(name) for name in _REQUIRED)
    good = complete and report.get("server", {"reachable": True})["reachable"]
    with standard_output():
        if as_json:
            print(json.dumps({"good": good, **report}, ensure_ascii=False))
        else:
            make_console().print(_table(report))
    if not good:
        raise typer.Exit(1)


def _check_server(uri: str, token: str | None, connect_timeout: float) -> dict[str, Any]:
    """Return the state of a server, and the locations of its first dataset."""
    started = time.perf_counter()
    try:
        with open_client(uri, token, connect_timeout) as client:
            seconds = time.perf_counter() - started
            status = client.status()
            datasets = client.datasets()
            choice = choose_format(client, [dataset.name for dataset in datasets])
    except UsageError:
        raise
    except SplitArrowError as error:
        return {"uri": uri, "reachable": False, "reason": str(error)}
    locations = [
        location
        for dataset in datasets[:1]
        for endpoint in dataset.endpoints
        for location in endpoint.redacted_locations
    ]
    return {
        "uri": uri,
        "reachable": True,
        "seconds": round(seconds, 6),
        "version": status.get("version"),
        "draining": bool(status.get("draining")),
        "datasets": len(datasets),
        "locations": list(dict.fromkeys(locations)),
        "format": choice,
    }


class _Line(NamedTuple):
    """A line of the report."""

    rating: str
    """A key of `_SYMBOLS`."""
    name: str
    text: str


def _table(report: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for line in _lines(report):
        if line is None:
            table.add_row()
        else:
            symbol, style = _SYMBOLS[line.rating]
            name, text = escape_text(line.name), escape_text(line.text)
            table.add_row(Text(symbol, style), Text(name), Text(text))
    return table


def _lines(report: dict[str, Any]) -> Iterator[_Line | None]:
    """Yield the lines of a report. None is an empty one."""
    for name, version in report["versions"].items():
        rating = "good" if version else "bad" if name in _REQUIRED else "note"
        yield _Line(rating, name, version or "not installed")
    yield _java_line(report["java"])
    yield _vortex_line(report["vortex"])
    yield None
    for transport in report["transports"]:
        rating = "good" if transport["available"] else "note"
        text = transport["reason"] or transport.get("detail") or "available"
        yield _Line(rating, transport["scheme"], text)
        for hint in transport.get("hints", ()):
            yield _Line("note", "", hint)
    yield None
    for limit in report["limits"]:
        advice = limit["advice"]
        text = f"{limit['value']}: {advice}" if advice else limit["value"]
        yield _Line("note" if advice else "good", limit["name"], text)
    if server := report.get("server"):
        yield None
        yield from _server_lines(server)


def _vortex_line(vortex: dict[str, Any]) -> _Line:
    if not vortex["available"]:
        return _Line("note", "vortex", vortex["reason"])
    rate = f"{vortex['decoding_rate'] / 1e6:,.0f} MB/s"
    return _Line("good", "vortex", f"arrays decode to {rate} of Arrow")


def _java_line(java: dict[str, Any]) -> _Line:
    if not java["available"]:
        return _Line("note", "java", java["reason"])
    return _Line("good", "java", f"{java['version']}, by {java['origin']}: {java['executable']}")


def _server_lines(server: dict[str, Any]) -> Iterator[_Line]:
    if not server["reachable"]:
        yield _Line("bad", server["uri"], server["reason"])
        return
    draining = server["draining"]
    state = "draining" if draining else "serving"
    text = (
        f"splitarrow {server['version']}, {state} {server['datasets']} datasets, "
        f"responded in {format_duration(server['seconds'])}"
    )
    yield _Line("note" if draining else "good", server["uri"], text)
    for location in server["locations"]:
        yield _Line("good", "  data at", location)
    if choice := server.get("format"):
        text = f"{choice['choice']} for {choice['dataset']!r}: {choice['reason']}"
        yield _Line("good", "  format auto", text)
