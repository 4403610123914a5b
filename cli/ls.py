"""``splitarrow ls``: list the datasets of a server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from .connection import (
    AsJson,
    ConnectTimeout,
    ControlUri,
    Token,
    describe_dataset,
    open_client,
    report_unreachable,
)
from .formatting import escape_text, format_bytes, format_number
from .tables import make_console, make_table
from .terminal import print_message, standard_output
from .tls_options import with_tls_options

if TYPE_CHECKING:
    from ..client.rpc.info import DatasetInfo


@with_tls_options
def ls(
    uri: ControlUri,
    glob: Annotated[
        str | None,
        typer.Argument(help="List matching names only, as in 'flights-*'.", metavar="GLOB"),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """List the datasets that you can read.

    [dim]splitarrow ls grpc://host:8815[/dim]
    """
    with open_client(uri, token, connect_timeout) as client:
        datasets = sorted(client.datasets(glob), key=lambda info: info.name)
        report_unreachable(client)
    with standard_output():
        if as_json:
            print(json.dumps([describe_dataset(info) for info in datasets], ensure_ascii=False))
        elif datasets:
            make_console().print(_table(datasets))
        elif glob is None:
            print_message("splitarrow: the server has no dataset that you can read")
        else:
            print_message(f"splitarrow: no dataset matches {escape_text(glob)!r}")


def _describe_rows(info: DatasetInfo) -> str:
    if info.tensor_count:
        return ""
    return "?" if info.rows is None else format_number(info.rows)


def _describe_kind(info: DatasetInfo) -> str:
    if info.tensor_count != 1 or not info.tensors:
        return info.kind
    tensor = info.tensors[0]
    repeated = f"{tensor.kind} " if info.kind.startswith(tensor.kind) else ""
    return f"{info.kind}: {str(tensor).removeprefix(repeated)}"


def _table(datasets: Iterable[DatasetInfo]) -> Table:
    table = make_table()
    table.add_column("name")
    for heading in ("rows", "size", "columns"):
        table.add_column(heading, justify="right")
    table.add_column("kind")
    for info in datasets:
        table.add_row(
            Text(escape_text(info.name)),
            _describe_rows(info),
            "?" if info.bytes is None else format_bytes(info.bytes),
            "" if info.tensor_count else format_number(len(info.schema)),
            Text(escape_text(_describe_kind(info)), "cyan"),
        )
    return table
