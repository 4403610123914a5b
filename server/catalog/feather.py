"""Feather files of version 1, as pyarrow still reads them. Version 2 is the Arrow IPC file."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa

from ...transport.regions import RegionFile
from .encoded import Batches
from .files import Contents, FileDataset, arrow_handle, reading
from .selection import Selection

_WHAT = "a Feather file of version 1"


class FeatherDataset(FileDataset):
    """A dataset in a Feather file of version 1. Each reader has it read into memory whole."""

    _kind = "feather v1 file"

    def look_into(self, file: RegionFile) -> Contents:
        """Return schema and size, which such a file tells only when it is read."""
        table = _table(file)
        return Contents(file.version, table.schema, file.size, rows=table.num_rows)

    def batches(self, file: RegionFile, contents: Contents, selection: Selection) -> Batches:
        """Yield the table's batches."""
        table = _table(file)
        file.check()
        if selection.columns is not None:
            table = table.select(list(selection.columns))
        for batch in table.to_batches():
            yield batch, None


def _table(file: RegionFile) -> pa.Table:
    from pyarrow import feather  # takes a twentieth of a second

    with reading(file.path, _WHAT), closing(arrow_handle(file)) as handle:
        source: Any = handle
        return feather.read_table(source, memory_map=False)
