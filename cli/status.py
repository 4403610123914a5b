"""``splitarrow status``: show the state and metrics of a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from .connection import AsJson, ConnectTimeout, ControlUri, Token, open_client
from .formatting import escape_text, format_bytes, format_duration, format_number
from .tables import make_console, make_properties, make_table
from .terminal import standard_output
from .tls_options import with_tls_options


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
    for name, value in _properties(report):
        table.add_row(Text(escape_text(name)), Text(value))
    console.print(table)
    if streams := report.get("streams"):
        console.print()
        console.print(_streams(streams))


def _properties(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "version", escape_text(str(report.get("version", "?")))
    yield "state", "draining" if report.get("draining") else "serving"
    uptime = report.get("uptime_seconds")
    if isinstance(uptime, (int, float)):
        yield "uptime", format_duration(uptime)
    yield "listens on", "\n".join(escape_text(str(uri)) for uri in report.get("listen", ()))
    yield "datasets", format_number(len(report.get("datasets", ())))
    for name, value in report.get("stats", {}).items():
        if isinstance(value, (int, float)):
            text = format_bytes(value) if "bytes" in name else f"{value:,}"
            yield name.replace("_", " "), text


def _streams(streams: list[dict[str, Any]]) -> Table:
    """Return a table of the running streams. A later server may report more columns."""
    table = make_table()
    names = [name for name, value in streams[0].items() if not isinstance(value, (dict, list))]
    for name in names:
        table.add_column(Text(escape_text(name)))
    for stream in streams:
        table.add_row(*(Text(escape_text(str(stream.get(name, "")))) for name in names))
    return table
