"""``splitarrow cat``: show all rows of an input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from . import signals
from .connection import ConnectTimeout, Token
from .fetch_options import (
    Batches,
    Bbox,
    Columns,
    Filter,
    Limit,
    Rows,
    StallTimeout,
    Transport,
    Validate,
)
from .inputs import Input, InputFormat, open_input
from .options import option
from .selection import parse_selection
from .terminal import standard_output
from .tls_options import with_tls_options

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .remote_sources import Source

RowFormat = Annotated[
    Literal["table", "csv", "jsonl"],
    option(help="How to show the rows."),
]


@with_tls_options
def cat(
    input: Input,
    format: RowFormat = "table",
    input_format: InputFormat = None,
    columns: Columns = None,
    filter: Filter = None,
    bbox: Bbox = None,
    limit: Limit = None,
    batches: Batches = None,
    rows: Rows = None,
    transport: Transport = "auto",
    token: Token = None,
    validate: Validate = None,
    connect_timeout: ConnectTimeout = 10.0,
    stall_timeout: StallTimeout = 30.0,
) -> None:
    """Show all rows of an input.

    [dim]splitarrow cat trips.arrow --format jsonl | jq .fare[/dim]
    """
    selection = parse_selection(
        columns=columns, filter=filter, bbox=bbox, limit=limit, batches=batches, rows=rows
    )
    source = open_input(
        input,
        selection,
        token=token,
        transport=transport,
        validate=validate,
        connect_timeout=connect_timeout,
        stall_timeout=stall_timeout,
        input_format=input_format,
        quiet=True,
    )
    show_rows(source, format)


def show_rows(source: AbstractContextManager[Source], format: str) -> None:
    """Print the rows of a source on standard output."""
    from .output_formats import StandardOutputTextSink
    from .row_printer import TablePrinter

    with (
        signals.raise_on_signals(),
        source as (_, _, open_stream),
        open_stream() as stream,
        standard_output(),
    ):
        if format == "table":
            printer: TablePrinter | StandardOutputTextSink = TablePrinter(stream.schema)
        else:
            printer = StandardOutputTextSink(format, stream.schema)
        try:
            for batch in stream:
                printer.write(batch)
            printer.close()
        except BaseException:
            printer.abort()
            raise
