"""Show the columns, types and first values of a dataset."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from .formatting import escape_text, format_count, shorten
from .row_printer import format_value
from .tables import make_console, make_table

_ROWS = 5
_MAX_COLUMNS = 60
_VALUE_WIDTH = 32
_NAME_WIDTH = 30


class Preview:
    """Keeps the first rows of a stream of record batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._missing_rows = _ROWS

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep the rows of a batch, if the preview has too few."""
        if self._missing_rows and batch.num_rows:
            rows = min(self._missing_rows, batch.num_rows)
            self._batches.append(batch.slice(0, rows))
            self._missing_rows -= rows

    def show(self) -> None:
        """Print the preview on standard output: a line for each column."""
        console = make_console()
        console.print(self._table())
        hidden = len(self._schema) - _MAX_COLUMNS
        if hidden > 0:
            console.print(f"… and {format_count(hidden, 'more column')}")

    def _table(self) -> Table:
        fields = list(itertools.islice(self._schema, _MAX_COLUMNS))
        names = [shorten(escape_text(field.name), _NAME_WIDTH) for field in fields]
        types = [shorten(escape_text(_type_name(field)), _NAME_WIDTH) for field in fields]
        table = make_table()
        # Names and types are complete. The values get the rest of the line.
        table.add_column("column", no_wrap=True, min_width=max(map(len, names), default=0))
        table.add_column("type", no_wrap=True, min_width=max(map(len, types), default=0))
        table.add_column("first values")
        for index, (name, type_name) in enumerate(zip(names, types, strict=True)):
            values = [
                format_value(value, _VALUE_WIDTH)
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
