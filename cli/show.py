"""Show an input: ``splitarrow cat``, ``head``, ``schema`` and ``stats``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.text import Text
from rich.tree import Tree

from ..formats.text import format_bytes
from .connection import AsJson, Quiet, Token, with_tls_options
from .exit_status import raise_on_signals
from .formatting import escape_text, format_count, format_number, shorten
from .inputs import Input, open_input, parse_text
from .options import option, with_arguments
from .selection import (
    count_expected_rows,
    parse_reading,
    parse_selection,
    require_validation,
)
from .terminal import make_console, make_table, standard_output

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..formats.arrow.schema_description import FieldDescription, SchemaDescription
    from .column_statistics import ColumnStatistics
    from .inputs import Source

_NAME_WIDTH, _CELL_WIDTH, _METADATA_WIDTH = 30, 24, 60

RowFormat = Annotated[
    Literal["table", "csv", "jsonl"],
    option("--output-format", "--format", help="How to show the rows."),
]


@with_tls_options
@with_arguments(parse_text, parse_selection, parse_reading)
def cat(
    input: Input,
    format: RowFormat = "table",
    *,
    arguments: dict[str, Any],
    token: Token = None,
) -> None:
    """Show all rows of an input.

    [dim]splitarrow cat trips.arrow --format jsonl | jq .fare[/dim]
    """
    require_validation(arguments)
    source = open_input(input, arguments, token, quiet=True)
    show_rows(source, format)


def show_rows(source: AbstractContextManager[Source], format: str) -> None:
    """Print the rows of a source on standard output."""
    with raise_on_signals(), source as (_, _, open_stream):
        # An input that cannot be opened needs none of these.
        from .output_formats import StandardOutputTextSink
        from .row_printer import TablePrinter

        with open_stream() as stream, standard_output():
            if format == "table":
                printer = TablePrinter(stream.schema)
            else:
                printer = StandardOutputTextSink(format, stream.schema)
            try:
                for batch in stream:
                    printer.write(batch)
                printer.close()
            except BaseException:
                printer.abort()
                raise


Count = Annotated[
    int, option("-n", "--lines", min=0, help="The largest number of rows to show.", metavar="ROWS")
]


@with_tls_options
@with_arguments(parse_text, parse_selection, parse_reading, without=("limit",))
def head(
    input: Input,
    count: Count = 10,
    format: RowFormat = "table",
    *,
    arguments: dict[str, Any],
    token: Token = None,
) -> None:
    """Show the first rows of an input.

    [dim]splitarrow head trips.parquet --columns fare,tip[/dim]

    [dim]splitarrow head grpc://host:8815/trips -n 100 --format csv[/dim]
    """
    source = open_input(input, arguments | {"limit": count}, token, quiet=True)
    show_rows(source, format)


@with_tls_options
@with_arguments(parse_text, parse_reading, without=("validate",))
def schema(
    input: Input,
    *,
    arguments: dict[str, Any],
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show the schema of an input.

    It has the types, nullability, dictionaries, extension types and custom metadata of all fields,
    and the byte order and the features that the data declares.

    [dim]splitarrow schema trips.arrow[/dim]
    """
    source = open_input(input, arguments, token, quiet=True)
    with raise_on_signals(), source as (name, _, open_stream), open_stream() as stream:
        from ..formats.arrow.schema_description import describe_schema
        from ..formats.arrow.tensors.labels import is_tensor_content
        from .local_input import read_schema_metadata
        from .tensor_output import show_tensors

        if is_tensor_content(stream.schema):
            show_tensors(stream, as_json=as_json)
            return
        described = describe_schema(read_schema_metadata(stream))
        footer = {
            key.decode(errors="backslashreplace"): value.decode(errors="backslashreplace")
            for key, value in (stream.footer_metadata or {}).items()
        }
    with standard_output():
        if as_json:
            print(json.dumps({**asdict(described), "footer": footer}, ensure_ascii=False))
        else:
            make_console().print(_schema_tree(name, described, footer))


def _schema_tree(name: str, schema: SchemaDescription, footer: Mapping[str, str]) -> Tree:
    features = ", ".join(schema.features) or "no features"
    title = Text(escape_text(name), "bold")
    title.append(f"  {schema.metadata_version}, {schema.endianness}-endian, {features}", "dim")
    tree = Tree(title)
    _add_pairs(tree, schema.metadata, "metadata")
    _add_pairs(tree, footer, "footer")
    for field in schema.fields:
        _add_field(tree, field)
    return tree


def _add_field(tree: Tree, field: FieldDescription) -> None:
    line = Text(escape_text(field.name) or "''")
    line.append(f"  {escape_text(field.type)}", "cyan")
    if not field.nullable:
        line.append(" not null")
    if field.dictionary is not None:
        order = ", ordered" if field.dictionary.ordered else ""
        each = field.dictionary
        line.append(f"  dictionary {each.id} by {each.index_type}{order}", "dim")
    if field.extension is not None:
        line.append(f"  {escape_text(field.extension)}", "green")
    branch = tree.add(line)
    _add_pairs(branch, field.metadata, None)
    for child in field.children:
        _add_field(branch, child)


def _add_pairs(tree: Any, pairs: Mapping[str, str], heading: str | None) -> None:
    for key, value in pairs.items():
        prefix = "" if heading is None else f"{heading} "
        text = f"{prefix}{escape_text(key)} = {shorten(escape_text(value), _METADATA_WIDTH)}"
        tree.add(Text(text, "dim"))


@with_tls_options
@with_arguments(parse_text, parse_selection, parse_reading)
def stats(
    input: Input,
    *,
    arguments: dict[str, Any],
    token: Token = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show statistics of the columns of an input.

    They are the nulls, the smallest and the largest value, the number of distinct values, which is
    an estimate above 2,048, the size in memory and, if it is known, the stored size.

    [dim]splitarrow stats trips.parquet --columns fare,tip[/dim]
    """
    source = open_input(input, arguments, token, quiet=quiet)
    with raise_on_signals(), source as (name, row_count, open_stream):
        from ..formats.arrow.supported_types import SupportedTypes
        from ..formats.arrow.tensors.labels import is_tensor_content
        from .column_statistics import ColumnStatistics, measure_stored_sizes
        from .tensor_output import show_tensors
        from .terminal import TransferProgress

        total = count_expected_rows(row_count, arguments)
        with TransferProgress(name, total, enabled=not quiet) as progress, open_stream() as stream:
            if is_tensor_content(stream.schema):
                show_tensors(stream, as_json=as_json)
                return
            found = [ColumnStatistics(field.name, str(field.type)) for field in stream.schema]
            types = SupportedTypes(stream.schema)
            counted = 0
            for batch in stream:
                counted += batch.num_rows
                supported = types.convert(batch)
                for index, column in enumerate(found):
                    column.add(supported.column(index))
                progress.update(stream.rows_received, stream.bytes_received)
        whole = not arguments.keys() & {"filter", "limit", "batches", "rows"}
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
            _show_statistics(name, counted, stream.bytes_received, found, stored)


def _describe(column: ColumnStatistics, stored: dict[str, int]) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "nulls": column.nulls,
        "min": _format_bound(column.minimum),
        "max": _format_bound(column.maximum),
        "distinct": column.distinct,
        "distinct_is_exact": column.is_distinct_exact,
        "bytes": column.nbytes,
        "stored_bytes": stored.get(column.name),
    }


def _format_bound(value: Any) -> str | None:
    from .row_printer import format_value

    return None if value is None else format_value(value)


def _show_statistics(
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
            format_number(column.nulls),
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
    return shorten(_format_bound(value) or "", _CELL_WIDTH)
