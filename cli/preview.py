"""What a dataset looks like: its columns, their types and the first values."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .figures import counted, printable, shortened
from .output import is_terminal

_ROWS = 5
_COLUMNS = 60
_VALUE_WIDTH = 32
_NAME_WIDTH = 30
_PIPE_WIDTH = 120


class Preview:
    """Keeps the first rows of what passes by.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._wanted = _ROWS

    def take(self, batch: pa.RecordBatch) -> None:
        """Keep a batch's rows as long as some are wanted."""
        if self._wanted and batch.num_rows:
            rows = min(self._wanted, batch.num_rows)
            self._batches.append(batch.slice(0, rows))
            self._wanted -= rows

    def table(self) -> Table:
        """Return a line for each column: its name, its type and its first values."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        fields = list(itertools.islice(self._schema, _COLUMNS))
        names = [shortened(printable(field.name), _NAME_WIDTH) for field in fields]
        types = [shortened(printable(_type_name(field)), _NAME_WIDTH) for field in fields]
        # Names and types are shown whole; the values get what is left of the line.
        table.add_column("column", no_wrap=True, min_width=max(map(len, names), default=0))
        table.add_column("type", no_wrap=True, min_width=max(map(len, types), default=0))
        table.add_column("first values")
        for index, (name, kind) in enumerate(zip(names, types, strict=True)):
            values = [_shown(value) for batch in self._batches for value in batch.column(index)]
            shown = Text(", ".join(values), overflow="ellipsis", no_wrap=True)
            table.add_row(Text(name), Text(kind, "cyan"), shown)
        return table

    def show(self) -> None:
        """Print it on standard output."""
        width = None if is_terminal(sys.stdout) else _PIPE_WIDTH
        console = Console(highlight=False, width=width)
        console.print(self.table())
        hidden = len(self._schema) - _COLUMNS
        if hidden > 0:
            console.print(f"… and {counted(hidden, 'more column')}")


def _type_name(field: pa.Field[Any]) -> str:
    kind = field.type
    name = str(kind)
    if isinstance(kind, pa.DictionaryType):
        name = f"dictionary<{kind.value_type}>"
    return name if field.nullable else f"{name} not null"


def _shown(value: pa.Scalar[Any]) -> str:
    try:
        text = str(value) if value.is_valid else "null"
    except Exception:  # no Python object stands for it, such as the year 12000 or bad UTF-8
        text = "?"
    return shortened(printable(text), _VALUE_WIDTH)
