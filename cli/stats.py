"""``splitarrow stats``: show statistics of the columns of an input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.text import Text

from . import signals
from .connection import AsJson, ConnectTimeout, Quiet, Token
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
from .formatting import escape_text, format_bytes, format_count, format_number, shorten
from .inputs import Input, InputFormat, open_input
from .selection import count_expected_rows, parse_selection
from .tables import make_console, make_table
from .terminal import standard_output
from .tls_options import with_tls_options

if TYPE_CHECKING:
    from .column_statistics import ColumnStatistics

_NAME_WIDTH, _VALUE_WIDTH = 30, 24


@with_tls_options
def stats(
    input: Input,
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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show statistics of the columns of an input.

    They are the nulls, the smallest and the largest value, the number of distinct values, which is
    an estimate above 2,048, the size in memory and, if it is known, the stored size.

    [dim]splitarrow stats trips.parquet --columns fare,tip[/dim]
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
        quiet=quiet,
    )
    with signals.raise_on_signals(), source as (name, row_count, open_stream):
        from ..formats.arrow.tensors.labels import is_tensor_content
        from .column_statistics import ColumnStatistics
        from .progress import TransferProgress
        from .stored_sizes import measure_stored_sizes
        from .tensor_output import show_tensors

        total = count_expected_rows(row_count, selection)
        with TransferProgress(name, total, enabled=not quiet) as progress, open_stream() as stream:
            if is_tensor_content(stream.schema):
                show_tensors(stream, as_json=as_json)
                return
            found = [
                ColumnStatistics(field_name, _name_type(stream.schema, index))
                for index, field_name in enumerate(stream.schema.names)
            ]
            counted = 0
            for batch in stream:
                counted += batch.num_rows
                for index, column in enumerate(found):
                    column.add(batch, index)
                progress.update(stream.rows_received, stream.bytes_received)
        whole = all(value is None for key, value in selection.items() if key != "columns")
        stored = measure_stored_sizes(input) if whole else {}
    with standard_output():
        if as_json:
            described = {
                "rows": counted,
                "bytes": stream.bytes_received,
                "columns": [_describe(column, stored) for column in found],
            }
            print(json.dumps(described, ensure_ascii=False))
        else:
            _show(name, counted, stream.bytes_received, found, stored)


def _name_type(schema: Any, index: int) -> str:
    try:
        return str(schema.field(index).type)
    except KeyError:  # an interval that pyarrow has no class for
        return "interval"


def _describe(column: ColumnStatistics, stored: dict[str, int]) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "nulls": column.nulls,
        "min": _text(column.minimum),
        "max": _text(column.maximum),
        "distinct": column.distinct,
        "distinct_is_exact": column.is_distinct_exact,
        "bytes": column.nbytes,
        "stored_bytes": stored.get(column.name),
    }


def _text(value: Any) -> str | None:
    from .row_printer import format_value

    return None if value is None else format_value(value)


def _show(
    name: str, rows: int, nbytes: int, columns: list[ColumnStatistics], stored: dict[str, int]
) -> None:
    console = make_console()
    title = Text(escape_text(name), "bold")
    title.append(f"  {format_count(rows, 'row')}, {format_bytes(nbytes)}", "dim")
    console.print(title)
    table = make_table()
    table.add_column("column", overflow="fold")
    table.add_column("type")
    for heading in ("nulls", "distinct"):
        table.add_column(heading, justify="right")
    table.add_column("min")
    table.add_column("max")
    table.add_column("in memory", justify="right")
    if stored:
        table.add_column("stored", justify="right")
    for column in columns:
        sizes = [format_bytes(column.nbytes)]
        if stored:
            size = stored.get(column.name)
            sizes.append("" if size is None else format_bytes(size))
        table.add_row(
            Text(shorten(escape_text(column.name), _NAME_WIDTH)),
            Text(shorten(escape_text(column.type), _NAME_WIDTH), "cyan"),
            "?" if column.nulls is None else format_number(column.nulls),
            _count_distinct(column),
            *(Text(_cell(value)) for value in (column.minimum, column.maximum)),
            *sizes,
        )
    console.print(table)


def _count_distinct(column: ColumnStatistics) -> str:
    if column.distinct is None:
        return ""
    return f"{'' if column.is_distinct_exact else '~'}{format_number(column.distinct)}"


def _cell(value: Any) -> str:
    return shorten(_text(value) or "", _VALUE_WIDTH)
