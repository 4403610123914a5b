"""Print rows as a table of text, a few at a time."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pyarrow as pa

from .formatting import escape_text, format_count, shorten
from .terminal import is_terminal, print_message

_SAMPLE_ROWS = 1000
"""The number of rows that determine the widths of the columns."""
_MAX_WIDTH, _PIPE_WIDTH = 40, 120
_GAP = "  "


class TablePrinter:
    """Prints record batches with aligned columns to standard output.

    The first rows determine the widths. Later values that are longer are shortened. Columns that
    do not fit the width of the terminal are left out, and named at the end.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [escape_text(name) for name in schema.names]
        self._numeric = [_is_numeric(schema, index) for index in range(len(schema))]
        self._pending: list[list[str]] = []
        self._widths: list[int] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the rows of a batch, or keep them until the widths are known."""
        shown = len(self._names) if self._widths is None else len(self._widths)
        for begin in range(0, batch.num_rows, _SAMPLE_ROWS):
            part = batch.slice(begin, _SAMPLE_ROWS)
            columns = [_format_column(part, index) for index in range(shown)]
            rows: Any = zip(*columns, strict=True) if columns else ((),) * part.num_rows
            self._pending.extend([*row] for row in rows)
            if len(self._pending) >= _SAMPLE_ROWS:
                self._print_pending()

    def close(self) -> None:
        """Print the rest, and name the columns that were left out."""
        self._print_pending()
        hidden = self._names[len(self._widths or ()) :]
        if hidden:
            names = shorten(", ".join(hidden), _PIPE_WIDTH)
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
        left = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _PIPE_WIDTH
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
    try:
        data_type: Any = schema.field(index).type
    except KeyError:  # an interval that pyarrow has no class for
        return False
    types = pa.types
    return (
        types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type)
    )


def _format_column(batch: pa.RecordBatch, index: int) -> list[str]:
    try:
        column: Any = batch.column(index)
    except KeyError:
        return ["?"] * batch.num_rows
    return [format_value(value) for value in column]


def format_value(value: pa.Scalar[Any], width: int = _MAX_WIDTH) -> str:
    """Return the text of a value on one line; a question mark if Python cannot represent it."""
    try:
        while isinstance(value, pa.DictionaryScalar):
            value = value.value
        text = str(value) if value.is_valid else "null"
    except Exception:  # the year 12000, or invalid UTF-8
        text = "?"
    return shorten(escape_text(text), width)
