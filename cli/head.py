"""``splitarrow head``: show the first rows of an input."""

from __future__ import annotations

from typing import Annotated

from .cat import RowFormat, show_rows
from .connection import ConnectTimeout, Token
from .fetch_options import Batches, Bbox, Columns, Filter, Rows, StallTimeout, Transport, Validate
from .inputs import Input, InputFormat, open_input
from .options import option
from .selection import parse_selection
from .tls_options import with_tls_options

Count = Annotated[
    int, option("-n", "--lines", min=0, help="The largest number of rows to show.", metavar="ROWS")
]


@with_tls_options
def head(
    input: Input,
    count: Count = 10,
    format: RowFormat = "table",
    input_format: InputFormat = None,
    columns: Columns = None,
    filter: Filter = None,
    bbox: Bbox = None,
    batches: Batches = None,
    rows: Rows = None,
    transport: Transport = "auto",
    token: Token = None,
    validate: Validate = None,
    connect_timeout: ConnectTimeout = 10.0,
    stall_timeout: StallTimeout = 30.0,
) -> None:
    """Show the first rows of an input.

    [dim]splitarrow head trips.parquet --columns fare,tip[/dim]

    [dim]splitarrow head grpc://host:8815/trips -n 100 --format csv[/dim]
    """
    selection = parse_selection(
        columns=columns, filter=filter, bbox=bbox, limit=count, batches=batches, rows=rows
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
