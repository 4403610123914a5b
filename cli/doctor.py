"""``splitarrow doctor``: what works here, what does not, and why."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ..errors import SplitArrowError, UsageError
from .connecting import AsJson, ConnectTimeout, Token, connected, console
from .figures import duration, printable
from .machine import java, limits, transports, versions
from .output import standard_output

_MARKS = {"good": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}


def doctor(
    uri: Annotated[
        str | None,
        typer.Argument(help="A control plane, to see whether it answers.", metavar="CONTROL_URI"),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show versions, transports and limits of this machine, and whether a server answers.

    The exit status is 1 if the server does not answer, or a part of splitarrow cannot work here.

    [dim]splitarrow doctor grpc://host:8815[/dim]
    """
    report: dict[str, Any] = {
        "versions": versions(),
        "transports": transports(),
        "java": java(),
        "limits": limits(),
    }
    if uri is not None:
        report["server"] = _server(uri, token, connect_timeout)
    needed = ("splitarrow", "python", "pyarrow", "anyio", "grpcio")
    missing = [name for name in needed if not report["versions"].get(name)]
    failed = bool(missing) or not report.get("server", {"reachable": True})["reachable"]
    with standard_output():
        if as_json:
            print(json.dumps({"good": not failed, **report}, ensure_ascii=False))
        else:
            _show(report, needed)
    if failed:
        raise typer.Exit(1)


def _server(uri: str, token: str | None, connect_timeout: float) -> dict[str, Any]:
    """Return what a server says, and by which ways its first dataset can be reached."""
    started = time.perf_counter()
    try:
        with connected(uri, token, connect_timeout) as client:
            seconds = time.perf_counter() - started
            told = client.status()
            found = client.datasets()
    except UsageError:
        raise
    except SplitArrowError as error:
        return {"uri": uri, "reachable": False, "reason": str(error)}
    places = [place for info in found[:1] for part in info.endpoints for place in part.redacted]
    return {
        "uri": uri,
        "reachable": True,
        "seconds": round(seconds, 6),
        "version": told.get("version"),
        "draining": bool(told.get("draining")),
        "datasets": len(found),
        "locations": list(dict.fromkeys(places)),
    }


def _show(report: dict[str, Any], needed: tuple[str, ...]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def add(mark: str, name: str, text: str) -> None:
        sign, style = _MARKS[mark]
        table.add_row(Text(sign, style), Text(printable(name)), Text(printable(text)))

    for name, version in report["versions"].items():
        absent = "bad" if name in needed else "note"
        add("good" if version else absent, name, version or "not installed")
    found = report["java"]
    good = found["available"]
    add(
        "good" if good else "note",
        "java",
        f"{found['version']}, by {found['origin']}: {found['executable']}"
        if good
        else found["reason"],
    )
    table.add_row()
    for found in report["transports"]:
        add(
            "good" if found["available"] else "note",
            found["scheme"],
            found["reason"] or found.get("detail") or "available",
        )
        for hint in found.get("hints", ()):
            add("note", "", hint)
    table.add_row()
    for found in report["limits"]:
        add("note" if found["advice"] else "good", found["name"], _joined(found))
    server = report.get("server")
    if server is not None:
        table.add_row()
        if server["reachable"]:
            add("note" if server["draining"] else "good", server["uri"], _answer(server))
            for place in server["locations"]:
                add("good", "  data at", place)
        else:
            add("bad", server["uri"], server["reason"])
    console().print(table)


def _joined(found: dict[str, Any]) -> str:
    return f"{found['value']}: {found['advice']}" if found["advice"] else str(found["value"])


def _answer(server: dict[str, Any]) -> str:
    state = "draining" if server["draining"] else "serving"
    return (
        f"splitarrow {server['version']}, {state} {server['datasets']} datasets, "
        f"answered in {duration(server['seconds'])}"
    )
