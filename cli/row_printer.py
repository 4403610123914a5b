"""Show rows on standard output: all of them as a table, or the first ones for each column."""

from __future__ import annotations

import shutil
import sys
from itertools import islice
from typing import Any

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from ..formats.arrow.supported_types import SupportedTypes
from .formatting import escape_text, format_count, shorten
from .terminal import PIPE_WIDTH, is_terminal, make_console, make_table, print_message

_SAMPLE_ROWS = 1000
"""The number of rows that determine the widths of the columns."""
_MAX_WIDTH = 40
_GAP = "  "
_PREVIEW_ROWS = 5
_MAX_COLUMNS = 60
_PREVIEW_WIDTH = 32
_NAME_WIDTH = 30


class TablePrinter:
    """Prints record batches with aligned columns to standard output.

    The first rows determine the widths. Later values that are longer are shortened. Columns that
    do not fit the width of the terminal are left out, and named at the end.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._types = SupportedTypes(schema)
        schema = self._types.schema
        self._names = [escape_text(name) for name in schema.names]
        self._numeric = [_is_numeric(schema, index) for index in range(len(schema))]
        self._pending: list[list[str]] = []
        self._widths: list[int] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the rows of a batch, or keep them until the widths are known."""
        shown = len(self._names) if self._widths is None else len(self._widths)
        for begin in range(0, batch.num_rows, _SAMPLE_ROWS):
            part = self._types.convert(batch.slice(begin, _SAMPLE_ROWS))
            columns = [[format_value(value) for value in part.column(n)] for n in range(shown)]
            rows: Any = zip(*columns, strict=True) if columns else ((),) * part.num_rows
            self._pending.extend([*row] for row in rows)
            if len(self._pending) >= _SAMPLE_ROWS:
                self._print_pending()

    def close(self) -> None:
        """Print the rest, and name the columns that were left out."""
        self._print_pending()
        hidden = self._names[len(self._widths or ()) :]
        if hidden:
            names = shorten(", ".join(hidden), PIPE_WIDTH)
            print_message(f"{format_count(len(hidden), 'more column')}: {names}")

    def abort(self) -> None:
        """Drop the rows that were not printed."""
        self._pending.clear()

    def _print_pending(self) -> None:
        if self._widths is None:
            self._widths = self._choose_widths()
            header = [shorten(name, _MAX_WIDTH) for name in self._names[: len(self._widths)]]
            print(self._align(header))
        lines = [self._align(row[: len(self._widths)]) for row in self._pending]
        self._pending.clear()
        if lines:
            print("\n".join(lines))

    def _choose_widths(self) -> list[int]:
        columns: list[Any] = [
            [name, *(row[index] for row in self._pending)] for index, name in enumerate(self._names)
        ]
        left = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else PIPE_WIDTH
        widths: list[int] = []
        for values in columns:
            width = min(_MAX_WIDTH, max(map(len, values)))
            left -= width + (len(_GAP) if widths else 0)
            if left < 0 and widths:
                break
            widths.append(width)
        return widths

    def _align(self, values: list[str]) -> str:
        assert self._widths is not None
        cells = [
            f"{shorten(value, width):>{width}}" if numeric else f"{shorten(value, width):<{width}}"
            for value, width, numeric in zip(values, self._widths, self._numeric, strict=False)
        ]
        return _GAP.join(cells).rstrip()


def _is_numeric(schema: pa.Schema, index: int) -> bool:
    data_type: Any = schema.field(index).type
    types = pa.types
    return (
        types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type)
    )


def format_value(value: pa.Scalar[Any], width: int = _MAX_WIDTH) -> str:
    """Return the text of a value on one line; a question mark if Python cannot represent it."""
    try:
        while isinstance(value, pa.DictionaryScalar):
            value = value.value
        text = str(value) if value.is_valid else "null"
    except Exception:  # the year 12000, or invalid UTF-8
        text = "?"
    return shorten(escape_text(text), width)


class Preview:
    """Keeps the first rows of a stream of record batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._types = SupportedTypes(schema)
        self._batches: list[pa.RecordBatch] = []
        self._missing_rows = _PREVIEW_ROWS

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep the rows of a batch, if the preview has too few."""
        if self._missing_rows and batch.num_rows:
            rows = min(self._missing_rows, batch.num_rows)
            self._batches.append(self._types.convert(batch.slice(0, rows)))
            self._missing_rows -= rows

    def show(self) -> None:
        """Print the preview on standard output: a line for each column."""
        console = make_console()
        console.print(self._table())
        hidden = len(self._schema) - _MAX_COLUMNS
        if hidden > 0:
            console.print(f"… and {format_count(hidden, 'more column')}")

    def _table(self) -> Table:
        fields = list(islice(self._schema, _MAX_COLUMNS))
        names = [shorten(escape_text(field.name), _NAME_WIDTH) for field in fields]
        types = [shorten(escape_text(_type_name(field)), _NAME_WIDTH) for field in fields]
        table = make_table()
        # Names and types are complete. The values get the rest of the line.
        table.add_column("column", no_wrap=True, min_width=max(map(len, names), default=0))
        table.add_column("type", no_wrap=True, min_width=max(map(len, types), default=0))
        table.add_column("first values")
        for index, (name, type_name) in enumerate(zip(names, types, strict=True)):
            values = [
                format_value(value, _PREVIEW_WIDTH)
                for batch in self._batches
                for value in batch.column(index)
            ]
            line = Text(", ".join(values), overflow="ellipsis", no_wrap=True)
            table.add_row(Text(name), Text(type_name, "cyan"), line)
        return table


def _type_name(field: pa.Field[Any]) -> str:
    if isinstance(field.type, pa.DictionaryType):
        name = f"dictionary<{field.type.value_type}>"
    else:
        name = str(field.type)
    return name if field.nullable else f"{name} not null"
