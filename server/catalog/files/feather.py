"""Feather files of version 1. Version 2 is the Arrow IPC file format; see `arrow_file`."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa

from ....transport.memory.files import SourceFile
from ..messages.reencoding import Batches
from ..query.selection import Selection
from .file_access import map_read_errors, open_handle
from .file_dataset import FileContents, FileDataset

_FILE_TYPE = "a Feather file of version 1"


class FeatherDataset(FileDataset):
    """A dataset in a Feather file of version 1. Each reader has the whole file in memory."""

    _kind = "feather v1 file"

    def inspect(self, file: SourceFile) -> FileContents:
        """Read the whole file, and return its contents."""
        table = _read_table(file)
        return FileContents(file.version, table.schema, file.size, rows=table.num_rows)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        table = _read_table(file)
        file.check()
        if selection.columns is not None:
            table = table.select(list(selection.columns))
        for batch in table.to_batches()[selection.first_batch : selection.end_batch]:
            yield batch, None


def _read_table(file: SourceFile) -> pa.Table:
    from pyarrow import feather  # takes a twentieth of a second

    with map_read_errors(file.path, _FILE_TYPE), closing(open_handle(file)) as handle:
        source: Any = handle
        return feather.read_table(source, memory_map=False)
