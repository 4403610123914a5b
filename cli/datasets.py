"""The datasets of a server: ``splitarrow ls``, ``info``, ``put`` and ``drop``."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ..errors import DatasetError
from ..formats.text import format_bytes
from .completion import complete_name
from .connection import (
    OFFLINE,
    AsJson,
    ConnectTimeout,
    ControlUri,
    Quiet,
    Token,
    describe_dataset,
    locate,
    open_client,
    open_single_client,
    report_unreachable,
    with_tls_options,
)
from .exit_status import raise_on_signals
from .formatting import (
    escape_text,
    format_count,
    format_duration,
    format_number,
    format_rate,
)
from .inputs import TextSchema
from .terminal import (
    TransferProgress,
    make_console,
    make_properties,
    make_table,
    print_message,
    standard_output,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ..client.rpc.info import DatasetInfo, Endpoint


@contextmanager
def open_upload(
    path: Path, text_schema: str | None = None
) -> Generator[tuple[pa.Schema, Iterable[pa.RecordBatch], int | None]]:
    """Open a file; return its schema, its batches, and its rows, if the format stores them.

    `text_schema` names the file with the schema of text.

    Raises `DatasetError` if the format is unknown or the file cannot be read, also while its
    batches are read.
    """
    from ..formats.arrow.tensors.labels import is_tensor_content
    from .local_input import open_local, open_selection, read_schema

    given = None if text_schema is None else read_schema(text_schema)
    with open_local(str(path), given) as dataset:
        if is_tensor_content(dataset.schema):
            raise DatasetError(
                f"{path} holds tensors, which cannot be uploaded; name the file as a dataset of "
                "'splitarrow serve'"
            )
        with open_selection(dataset, str(path)) as stream:
            yield stream.schema, stream, dataset.rows


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
    if dataset.offline:
        table.add_row("upstream", Text(OFFLINE, "yellow"))
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
    from ..formats.arrow.tensors.tensor import format_shape

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


@with_tls_options
def put(
    uri: ControlUri,
    name: Annotated[str, typer.Argument(help="The name of the dataset.", metavar="NAME")],
    file: Annotated[
        Path,
        typer.Argument(
            help="A file of any type that [cyan]splitarrow serve[/cyan] reads, such as Arrow IPC, "
            "Parquet, ORC, Vortex, .csv or .jsonl; or a folder of files.",
            metavar="FILE",
        ),
    ],
    text_schema: TextSchema = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the dataset if it was uploaded before.")
    ] = False,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Upload a file as a dataset.

    The dataset appears on the server once it is complete. A failed upload leaves nothing behind.
    A name that is taken is an error, unless [cyan]--replace[/cyan] is given.

    [dim]splitarrow put grpc://host:8815 trips trips.parquet[/dim]
    """
    started = time.perf_counter()
    with (
        raise_on_signals(),
        open_upload(file, text_schema) as (schema, batches, rows),
        open_single_client(uri, token, connect_timeout) as client,
        TransferProgress(name, rows, enabled=not quiet) as progress,
    ):
        stored = client.put(
            name,
            batches,
            schema=schema,
            if_exists="replace" if replace else "error",
            progress=progress.update,
        )
    seconds = time.perf_counter() - started
    if as_json:
        with standard_output():
            summary = {"dataset": stored.name, "rows": stored.rows, "bytes": stored.bytes}
            print(json.dumps({**summary, "seconds": round(seconds, 6)}, ensure_ascii=False))
    if not quiet:
        print_message(
            f"{escape_text(stored.name)}: {format_count(stored.rows, 'row')}, "
            f"{format_bytes(stored.bytes)} in {format_duration(seconds)}, "
            f"{format_rate(stored.bytes, seconds)}"
        )


@with_tls_options
def drop(
    uri: ControlUri,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The dataset, unless the URI names it.",
            metavar="NAME",
            autocompletion=complete_name,
        ),
    ] = None,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Remove an uploaded or published dataset from a server.

    Its files are removed as well. Running streams continue to their end. A dataset of the
    configuration is not removed: delete it there, and use `reload`. The token needs the right to
    write the dataset.

    [dim]splitarrow drop grpc://host:8815 scores[/dim]
    """
    address, dataset = locate(uri, name, "drop")
    with open_client(address, token, connect_timeout) as client:
        client.drop(dataset)
    if as_json:
        with standard_output():
            print(json.dumps({"dropped": dataset}, ensure_ascii=False))
    elif not quiet:
        print_message(f"dropped {escape_text(dataset)}")
