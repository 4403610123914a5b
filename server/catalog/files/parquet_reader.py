"""Opening Parquet files for pyarrow, with a schema that it reads without loss."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ....formats.parquet.columns import Columns, plan_columns
from ....formats.parquet.corrections import DEFAULT_OPTIONS, correct_schema
from ....formats.parquet.footer import TAIL_BYTES, Footer, read_footer_size, wrap_footer
from ....formats.parquet.geo.boxes import Box
from ....formats.parquet.geo.conditions import may_match
from ....formats.parquet.geo.crs import hide_extension
from ....formats.parquet.row_groups import find_malformed_statistics
from ....formats.parquet.thrift import Struct
from ....transport.memory.files import SourceFile
from ..query.filters import RowFilter
from ..query.selection import Selection
from .file_access import open_handle
from .object_file import ObjectFile

_COLUMN_BUFFER = 1 << 20
_TAIL_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class ParquetPlan:
    """How to read a file."""

    columns: Columns
    """The columns that readers get."""
    elements: tuple[Struct, ...] | None
    """The schema that pyarrow reads; None if it is that of the file."""


def inspect_parquet(file: SourceFile) -> tuple[ParquetPlan, Any]:
    """Return the plan to read a file, and a ``pyarrow.parquet.ParquetFile`` to close.

    Raises
    ------
    ProtocolError
        If the footer is malformed.
    pyarrow.ArrowException
        If pyarrow refuses the file.
    """
    data = _read_footer(file)
    footer = Footer.parse(data)
    elements = correct_schema(footer)
    malformed = find_malformed_statistics(data, footer.root)
    parquet = _open(file, None if elements is None else (footer, elements))
    try:
        key_values = parquet.metadata.metadata or {}
        columns = plan_columns(footer.root, parquet.schema_arrow, key_values, malformed)
    except BaseException:
        parquet.close()
        raise
    return ParquetPlan(columns, elements), parquet


@contextmanager
def open_parquet(file: SourceFile, plan: ParquetPlan) -> Generator[Any]:
    """Open a file as ``pyarrow.parquet.ParquetFile`` while the context lasts.

    Its batches have the types of pyarrow; see `Columns.convert`.
    """
    corrected = None
    if plan.elements is not None:
        corrected = (Footer.parse(_read_footer(file)), plan.elements)
    with closing(_open(file, corrected)) as parquet:
        yield parquet


@contextmanager
def read_parquet(path: Path) -> Generator[tuple[pa.Schema, Iterator[pa.RecordBatch], int]]:
    """Open a local file, and yield its schema, its batches and its number of rows.

    Raises
    ------
    DatasetError
        If the file cannot be opened.
    ProtocolError
        If the footer is malformed; also while the batches are read, if a value is invalid.
    pyarrow.ArrowException
        If pyarrow refuses the file; also while the batches are read.
    """
    with closing(SourceFile(path, refuse_writers=False)) as file:
        plan, parquet = inspect_parquet(file)
        columns = plan.columns
        with closing(parquet):
            batches = (
                columns.convert(batch, by_name=False, options=DEFAULT_OPTIONS)
                for batch in parquet.iter_batches()
            )
            yield columns.schema, batches, parquet.metadata.num_rows


def select_row_groups(
    file: SourceFile, parquet: Any, plan: ParquetPlan, selection: Selection
) -> list[int]:
    """Return the row groups to read. Statistics rule out those in which the filter cannot match.

    Parameters
    ----------
    file : SourceFile
        The file.
    parquet : pyarrow.parquet.ParquetFile
        The same file.
    plan : ParquetPlan
        Its plan.
    selection : Selection
        The row groups and the filter.
    """
    selected = range(parquet.num_row_groups)[selection.first_batch : selection.end_batch]
    row_filter = selection.filter
    if row_filter is None or not row_filter.cost.allows_pruning(parquet.num_row_groups):
        return list(selected)
    groups = list(selected)
    if row_filter.boxes:
        groups = [
            group for group in groups if _may_match(parquet.metadata, group, plan, row_filter)
        ]
    if (
        row_filter.expression is None
        or not row_filter.uses_dataset_numbers
        or not _have_order(plan.columns, row_filter)
    ):
        return groups
    matching = _match_statistics(file, plan, row_filter.expression)
    return groups if matching is None else [group for group in groups if group in matching]


def _may_match(metadata: Any, group: int, plan: ParquetPlan, row_filter: RowFilter) -> bool:
    """Return whether the boxes of a row group allow rows that pass a filter."""
    columns = metadata.row_group(group)
    boxes: dict[str, tuple[Box, bool]] = {}
    for test in row_filter.boxes:
        found = columns.column(plan.columns.leaves[test.column]).geo_statistics
        if found is not None and None not in (found.xmin, found.ymin, found.xmax, found.ymax):
            box = Box(found.xmin, found.ymin, found.xmax, found.ymax)
            boxes[test.condition.column] = (box, test.edges is not None)
    return may_match([test.condition for test in row_filter.boxes], boxes)


def _match_statistics(file: SourceFile, plan: ParquetPlan, expression: Any) -> set[int] | None:
    """Return the row groups whose statistics allow an expression; None if they are no help."""
    import pyarrow.dataset as ds  # takes a third of a second
    from pyarrow import fs

    parquet_format = ds.ParquetFileFormat()
    try:
        if plan.elements is not None:
            footer = Footer.parse(_read_footer(file)).with_elements(plan.elements)
            handle: Any = pa.BufferReader(wrap_footer(hide_extension(footer)))
            fragment: Any = parquet_format.make_fragment(handle)
        elif isinstance(file, ObjectFile):
            handle = file.open_handle()
            fragment = parquet_format.make_fragment(handle)
        else:
            descriptor = f"/proc/self/fd/{file.fileno()}"
            fragment = parquet_format.make_fragment(descriptor, fs.LocalFileSystem())
        return {group.id for group in fragment.subset(filter=expression).row_groups}
    except (pa.ArrowException, OSError, ValueError):
        return None  # Arrow cannot compare this expression with statistics


def _have_order(columns: Columns, row_filter: RowFilter) -> bool:
    """Return whether statistics bound what the filter sees in each of its columns.

    Those of floating-point columns leave out NaN, so only comparisons that are false for it count.
    """
    used = frozenset(row_filter.fields.values())
    if used & columns.without_order:
        return False
    if not row_filter.may_hold_for_nan:
        return True
    types = [columns.schema.field(index).type for index in used]
    return not any(_has_nan(each) for each in types)


def _has_nan(data_type: Any) -> bool:
    if pa.types.is_floating(data_type):
        return True
    return any(_has_nan(data_type.field(index).type) for index in range(data_type.num_fields))


def _open(file: SourceFile, corrected: tuple[Footer, tuple[Struct, ...]] | None) -> Any:
    import pyarrow.parquet as pq  # takes a tenth of a second

    metadata = None
    if corrected is not None:
        footer, elements = corrected
        data = hide_extension(footer.with_elements(elements))
        metadata = pq.read_metadata(pa.BufferReader(wrap_footer(data)))
    handle = open_handle(file)
    try:
        # Without a buffer size, pyarrow reads a whole column of a row group before decoding it.
        # From an object store, it reads the columns of a row group in few large requests.
        is_remote = isinstance(file, ObjectFile)
        parquet: Any = pq.ParquetFile(
            handle,
            metadata=metadata,
            pre_buffer=is_remote,
            buffer_size=0 if is_remote else _COLUMN_BUFFER,
            page_checksum_verification=True,
        )
    except BaseException:
        handle.close()
        raise
    return _Closing(parquet, handle)


class _Closing:
    """A ``ParquetFile`` that closes its handle, too."""

    def __init__(self, parquet: Any, handle: pa.NativeFile) -> None:
        self._parquet = parquet
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parquet, name)

    def close(self) -> None:
        self._parquet.close()
        self._handle.close()


def _read_footer(file: SourceFile) -> bytes:
    """Return the footer of a file; raise `ProtocolError` if it has none."""
    nbytes = min(file.size, _TAIL_READ)
    tail = bytes(file.read(file.size - nbytes, nbytes))
    size = read_footer_size(tail[-TAIL_BYTES:], file.size)
    end = nbytes - TAIL_BYTES
    if size <= end:
        return tail[end - size : end]
    return bytes(file.read(file.size - TAIL_BYTES - size, size))
