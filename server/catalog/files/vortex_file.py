"""Vortex files, read through the library's scan: only the columns and rows that are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from ....errors import InvalidDataError
from ....formats.vortex.decoding import call_library, convert_to_arrow, import_library
from ....formats.vortex.file_footer import read_file_footer
from ....formats.vortex.plain_types import find_plain_type
from ....formats.vortex.storage import restore_rows
from ....transport.memory.files import SourceFile
from ..messages.reencoding import Batches
from ..query.selection import Selection
from .file_access import map_read_errors
from .file_dataset import FileContents, FileDataset

_FILE_TYPE = "a Vortex file"


class VortexPlan(NamedTuple):
    """What the footer of a Vortex file describes."""

    footer: Any
    """The footer, which another open of the same file need not read again."""
    splits: tuple[tuple[int, int], ...]
    """The first row of each stored chunk, and the one after its last."""


class VortexFileDataset(FileDataset):
    """A dataset in a Vortex file. Each chunk of its layout is a stored record batch."""

    _kind = "vortex file"

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, from its footer."""
        with map_read_errors(file.path, _FILE_TYPE):
            read_file_footer(file.read, file.size)
            opened = _open(file)
            splits = tuple(call_library(opened.splits, "read"))
            rows = len(opened)
            schema = read_plain_schema(opened.dtype)
            _check_splits(splits, rows)
            plan = VortexPlan(opened.footer, splits)
            return FileContents(file.version, schema, file.size, rows=rows, plan=plan)

    def list_batch_rows(self, file: SourceFile, contents: FileContents) -> list[int]:
        """Return the rows of each chunk."""
        return [end - begin for begin, end in contents.plan.splits]

    def skip_rows(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Selection:
        """Return an equal selection that skips whole chunks; see `FileDataset.skip_rows`."""
        offset, first = selection.offset, selection.first_batch
        if not offset or selection.filter is not None:
            return selection
        for begin, end in contents.plan.splits[first : selection.end_batch]:
            if offset < end - begin:
                break
            offset -= end - begin
            first += 1
        return replace(selection, first_batch=first, offset=offset)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        splits = contents.plan.splits[selection.first_batch : selection.end_batch]
        names = [field.name for field in contents.schema]
        by_name = selection.columns is not None and len(set(names)) == len(names)
        chosen = [names[column] for column in selection.columns or ()] if by_name else None
        schema = selection.schema if by_name else contents.schema
        data_type: Any = pa.struct(list(schema))
        left = selection.limit
        with map_read_errors(file.path, _FILE_TYPE):
            opened = _open(file, contents.plan.footer)
            scan = call_library(lambda: opened.to_repeated_scan(chosen), "read")
            for begin, end in splits:
                if left is not None:
                    end = min(end, begin + left)
                    left -= end - begin
                array = _read_rows(scan, begin, end, data_type)
                file.check()
                batch = restore_rows(array, schema)
                if not by_name and selection.columns is not None:
                    batch = batch.select(list(selection.columns))
                yield batch, None
                if left == 0:
                    return


def _read_rows(scan: Any, begin: int, end: int, data_type: Any) -> Any:
    """Return some rows of a file as one struct array."""

    def read() -> Any:
        return scan.execute(row_range=(begin, end)).read_all()

    return convert_to_arrow(call_library(read, "read"), end - begin, data_type)


def read_plain_schema(dtype: Any) -> pa.Schema:
    """Return the Arrow schema for a dtype of vortex-data, with plain texts instead of views.

    Raises
    ------
    InvalidDataError
        If the dtype is not that of rows, or has no form in Arrow.
    """
    data_type: Any = call_library(dtype.to_arrow_type, "read")
    if not pa.types.is_struct(data_type):
        raise InvalidDataError(f"its values have the type {dtype}; expected a struct with columns")
    fields = [data_type.field(index) for index in range(data_type.num_fields)]
    return pa.schema([field.with_type(find_plain_type(field.type)) for field in fields])


def _check_splits(splits: tuple[tuple[int, int], ...], rows: int) -> None:
    """Check that the chunks are adjacent, and have all rows."""
    ends = [0, *(end for _, end in splits)]
    if any(begin != end for (begin, _), end in zip(splits, ends, strict=False)) or ends[-1] != rows:
        raise InvalidDataError(f"its chunks do not have its {rows} rows")


def _open(file: SourceFile, footer: Any = None) -> Any:
    vortex = import_library()
    return call_library(lambda: vortex.open_readable(_FileReader(file), footer=footer), "read")


class _FileReader:
    """An open file as the library reads it, from any thread."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.size

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes of the file."""
        return self._file.read(offset, min(length, max(self._file.size - offset, 0)))
