"""``splitarrow status``: what a running server counts."""

from __future__ import annotations

import json
from typing import Any

from rich.table import Table
from rich.text import Text

from .connecting import AsJson, ConnectTimeout, ControlUri, Token, connected, console
from .figures import count, duration, printable, size
from .output import standard_output


def status(
    uri: ControlUri,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show what a server does and has done since it started.

    [dim]splitarrow status grpc://host:8815[/dim]
    """
    with connected(uri, token, connect_timeout) as client:
        told = client.status()
    with standard_output():
        if as_json:
            print(json.dumps(told, ensure_ascii=False))
        elif "daemons" in told:
            for index, (where, each) in enumerate(told["daemons"].items()):
                if index:
                    print()
                console().print(Text(printable(where), "bold cyan"))
                _show(each)
        else:
            _show(told)


def _show(told: dict[str, Any]) -> None:
    out = console()
    if "error" in told:
        out.print(Text(printable(str(told["error"])), "red"))
        return
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    uptime = told.get("uptime_seconds")
    facts.add_row("version", Text(printable(str(told.get("version", "?")))))
    facts.add_row("state", "draining" if told.get("draining") else "serving")
    if isinstance(uptime, (int, float)):
        facts.add_row("up for", duration(uptime))
    facts.add_row("listens at", Text("\n".join(printable(str(x)) for x in told.get("listen", ()))))
    facts.add_row("datasets", count(len(told.get("datasets", ()))))
    for name, value in told.get("stats", {}).items():
        if isinstance(value, (int, float)):
            shown = size(value) if "bytes" in name else f"{value:,}"
            facts.add_row(Text(printable(name.replace("_", " "))), shown)
    out.print(facts)
    streams = told.get("streams") or []
    if streams:
        out.print()
        table = Table(box=None, pad_edge=False, header_style="bold")
        names = [name for name in streams[0] if not isinstance(streams[0][name], (dict, list))]
        for name in names:
            table.add_column(Text(printable(name)))
        for stream in streams:
            table.add_row(*(Text(printable(str(stream.get(name, "")))) for name in names))
        out.print(table)
