"""CSV and JSON Lines files: types inferred from all rows, then read block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from ....transport.memory.files import SourceFile
from ..messages.reencoding import Batches
from ..selection import Selection
from .file_dataset import FileContents, FileDataset
from .origins import open_with_arrow

_BLOCK_BYTES = 8 << 20
"""The size of the text that becomes one record batch, in bytes. A longer line is an error."""


class _TextDataset(FileDataset):
    """A dataset in a text file. The server reads it once to infer the types of its columns."""

    decodes_batches = True
    _file_type: ClassVar[str]

    def inspect(self, file: SourceFile) -> FileContents:
        """Read the whole file, and return its contents."""
        with open_with_arrow(file, self._file_type) as handle:
            table = self._read_all(handle)
        return FileContents(file.version, table.schema, file.size, rows=table.num_rows)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        with open_with_arrow(file, self._file_type) as handle:
            batches = self._open(handle, contents.schema)
            for batch in selection.batches.iterate(batches):
                file.check()
                yield selection.select_columns(batch), None

    def _read_all(self, handle: Any) -> pa.Table:
        raise NotImplementedError

    def _open(self, handle: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class CsvDataset(_TextDataset):
    """A dataset in a CSV file whose first line has the names of the columns."""

    _kind = "csv file"
    _file_type = "a CSV file"

    def _read_all(self, handle: Any) -> pa.Table:
        from pyarrow import csv

        return csv.read_csv(handle, csv.ReadOptions(block_size=_BLOCK_BYTES))

    def _open(self, handle: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        # The names of the file may repeat, so the columns get other names for their types.
        names = [str(index) for index in range(len(schema))]
        types = dict(zip(names, schema.types, strict=True))
        reader: Any = csv.open_csv(
            handle,
            csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=names, skip_rows=1),
            convert_options=csv.ConvertOptions(column_types=types),
        )
        for batch in reader:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


class JsonLinesDataset(_TextDataset):
    """A dataset in a file with a JSON object on each line."""

    _kind = "json lines file"
    _file_type = "a JSON Lines file"

    def _read_all(self, handle: Any) -> pa.Table:
        from pyarrow import json

        return json.read_json(handle, json.ReadOptions(block_size=_BLOCK_BYTES))

    def _open(self, handle: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from pyarrow import json

        reader: Any = json.open_json(  # pyright: ignore[reportAttributeAccessIssue]
            handle,
            json.ReadOptions(block_size=_BLOCK_BYTES),
            json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        for batch in reader:
            yield batch.select(schema.names)
