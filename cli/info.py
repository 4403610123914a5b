"""``splitarrow info``: describe one dataset of a server."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ..formats.arrow.tensors.tensor import format_shape
from .completion import complete_name
from .connection import (
    AsJson,
    ConnectTimeout,
    ControlUri,
    Token,
    describe_dataset,
    locate,
    open_client,
    report_unreachable,
)
from .formatting import escape_text, format_bytes, format_count, format_number
from .tables import make_console, make_properties, make_table
from .terminal import standard_output
from .tls_options import with_tls_options

if TYPE_CHECKING:
    from ..client.rpc.info import DatasetInfo, Endpoint


_WRITERS = {
    "refused": "refused",
    "undetected": "noticed by modification times only: the server's files have no file leases",
    "allowed": "allowed, at the operator's risk: a read may mix two states of a file",
}


@with_tls_options
def info(
    uri: ControlUri,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The dataset, unless the URI ends with its name.",
            metavar="NAME",
            autocompletion=complete_name,
        ),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show the columns, size and locations of a dataset.

    [dim]splitarrow info grpc://host:8815 trips[/dim]
    """
    address, name = locate(uri, name, "info")
    with open_client(address, token, connect_timeout) as client:
        dataset = client.info(name)
        report_unreachable(client)
    with standard_output():
        if as_json:
            endpoints = [_describe_endpoint(endpoint) for endpoint in dataset.endpoints]
            description = {**describe_dataset(dataset), "endpoints": endpoints}
            print(json.dumps(description, ensure_ascii=False))
        else:
            console = make_console()
            console.print(_properties(dataset))
            console.print()
            console.print(_tensors(dataset) if dataset.tensor_count else _columns(dataset))


def _describe_endpoint(endpoint: Endpoint) -> dict[str, Any]:
    description: dict[str, Any] = {"locations": endpoint.redacted_locations}
    if endpoint.ordinal is not None:
        description["ordinal"] = endpoint.ordinal
    if endpoint.held_by:
        description["held_by"] = list(endpoint.held_by)
    return description


def _properties(dataset: DatasetInfo) -> Table:
    table = make_properties()
    table.add_row("name", Text(escape_text(dataset.name)))
    table.add_row("kind", Text(escape_text(dataset.kind)))
    if not dataset.tensor_count:
        table.add_row("rows", "unknown" if dataset.rows is None else format_number(dataset.rows))
    table.add_row("size", "unknown" if dataset.bytes is None else format_bytes(dataset.bytes))
    table.add_row("version", Text(escape_text(dataset.version) or "unknown"))
    if dataset.writers:
        table.add_row("writers", Text(_WRITERS.get(dataset.writers, escape_text(dataset.writers))))
    table.add_row("parts", format_count(len(dataset.endpoints), "endpoint"))
    holders = Counter(uri for endpoint in dataset.endpoints for uri in endpoint.held_by)
    for index, (uri, shards) in enumerate(sorted(holders.items())):
        table.add_row("" if index else "held by", Text(f"{escape_text(uri)}: {shards:,}"))
    locations = dict.fromkeys(
        uri for endpoint in dataset.endpoints for uri in endpoint.redacted_locations
    )
    for index, uri in enumerate(locations):
        table.add_row("" if index else "at", Text(escape_text(uri)))
    return table


def _tensors(dataset: DatasetInfo) -> Table:
    table = make_table()
    for heading in ("tensor", "kind", "type", "shape", "dimensions"):
        table.add_column(heading, overflow="fold")
    for tensor in dataset.tensors:
        texts = (tensor.name or "", tensor.kind, tensor.dtype, format_shape(tensor.shape))
        names = ", ".join(tensor.dim_names)
        table.add_row(*(Text(escape_text(text)) for text in (*texts, names)))
    hidden = dataset.tensor_count - len(dataset.tensors)
    if hidden > 0:
        table.add_row(f"… and {hidden:,} more")
    return table


def _columns(dataset: DatasetInfo) -> Table:
    table = make_table()
    table.add_column("column", overflow="fold")
    table.add_column("type", overflow="fold")
    for field in dataset.schema:
        type_name = str(field.type) if field.nullable else f"{field.type} not null"
        table.add_row(Text(escape_text(field.name)), Text(escape_text(type_name), "cyan"))
    return table
