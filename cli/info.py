"""``splitarrow info``: what a server tells of one dataset."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .connecting import (
    AsJson,
    ConnectTimeout,
    ControlUri,
    Token,
    connected,
    console,
    described,
    tell_absent,
)
from .figures import count, counted, printable, size
from .output import standard_output

if TYPE_CHECKING:
    from ..client.described import DatasetInfo, Endpoint


def info(
    uri: ControlUri,
    name: Annotated[str, typer.Argument(help="The dataset.", metavar="NAME")],
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show a dataset's columns, its size, and where it can be fetched.

    [dim]splitarrow info grpc://host:8815 trips[/dim]
    """
    with connected(uri, token, connect_timeout) as client:
        found = client.info(name)
        tell_absent(client)
    with standard_output():
        if as_json:
            endpoints = [_endpoint(endpoint) for endpoint in found.endpoints]
            print(json.dumps({**described(found), "endpoints": endpoints}, ensure_ascii=False))
        else:
            _show(found)


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    told: dict[str, Any] = {"locations": endpoint.redacted}
    if endpoint.ordinal is not None:
        told["ordinal"] = endpoint.ordinal
    if endpoint.held_by:
        told["held_by"] = list(endpoint.held_by)
    return told


def _show(found: DatasetInfo) -> None:
    out = console()
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    rows = "unknown" if found.rows is None else count(found.rows)
    nbytes = "unknown" if found.bytes is None else size(found.bytes)
    facts.add_row("name", Text(printable(found.name)))
    facts.add_row("kind", Text(printable(found.kind)))
    facts.add_row("rows", rows)
    facts.add_row("size", nbytes)
    facts.add_row("version", Text(printable(found.version) or "unknown"))
    facts.add_row("parts", counted(len(found.endpoints), "endpoint"))
    holders = Counter(where for endpoint in found.endpoints for where in endpoint.held_by)
    for index, (where, held) in enumerate(sorted(holders.items())):
        facts.add_row("" if index else "held by", Text(f"{printable(where)}: {held:,}"))
    places = dict.fromkeys(uri for endpoint in found.endpoints for uri in endpoint.redacted)
    for index, place in enumerate(places):
        facts.add_row("" if index else "at", Text(printable(place)))
    out.print(facts)
    out.print()
    columns = Table(box=None, pad_edge=False, header_style="bold")
    columns.add_column("column", overflow="fold")
    columns.add_column("type", overflow="fold")
    for field in found.schema:
        kind = str(field.type) if field.nullable else f"{field.type} not null"
        columns.add_row(Text(printable(field.name)), Text(printable(kind), "cyan"))
    out.print(columns)
