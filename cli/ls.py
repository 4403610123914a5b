"""``splitarrow ls``: which datasets a server has."""

from __future__ import annotations

import json
from typing import Annotated

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
from .figures import count, printable, size
from .output import say, standard_output


def ls(
    uri: ControlUri,
    glob: Annotated[
        str | None,
        typer.Argument(help="Which names to list, such as 'flights-*', in quotes.", metavar="GLOB"),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """List the datasets of a server, as far as you may read them.

    [dim]splitarrow ls grpc://host:8815[/dim]
    """
    with connected(uri, token, connect_timeout) as client:
        found = sorted(client.datasets(glob), key=lambda info: info.name)
        tell_absent(client)
    with standard_output():
        if as_json:
            print(json.dumps([described(info) for info in found], ensure_ascii=False))
            return
        if not found:
            say(
                "splitarrow: the server has no dataset that you may read"
                if glob is None
                else f"splitarrow: no dataset's name matches {printable(glob)!r}"
            )
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("name", "rows", "size", "columns"):
            table.add_column(heading, justify="left" if heading == "name" else "right")
        table.add_column("kind")
        for info in found:
            table.add_row(
                Text(printable(info.name)),
                "?" if info.rows is None else count(info.rows),
                "?" if info.bytes is None else size(info.bytes),
                count(len(info.schema)),
                Text(printable(info.kind), "cyan"),
            )
        console().print(table)
