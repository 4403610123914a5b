"""Parquet files, decoded a few rows at a time: never a whole row group.

The sizes, the numbers of values and the dictionaries of a row group are checked before pyarrow
decodes it. pyarrow gets a schema that it reads without loss. Row groups that a filter excludes
are skipped. Fields of structs and shredded fields of Variants are read without the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from ....errors import ExhaustedError, InvalidDataError, ProtocolError
from ....formats.nested_fields import NestedField, extend_schema
from ....formats.nested_fields import extract_field as extract_nested_field
from ....formats.parquet.columns import Columns, plan_columns
from ....formats.parquet.conversions import DEFAULT_OPTIONS, correct_schema
from ....formats.parquet.footer import (
    TAIL_BYTES,
    Footer,
    find_malformed_statistics,
    read_footer_size,
    wrap_footer,
)
from ....formats.parquet.geo.crs import hide_extension
from ....formats.parquet.logical_types import Kind, LogicalType
from ....formats.parquet.thrift import CompactReader, Struct
from ....formats.parquet.variant.arrow_fields import VariantField
from ....formats.parquet.variant_columns import (
    extract_field,
    fit_fields,
    physical_names,
)
from ....formats.text import format_size
from ....transport.memory.files import SourceFile
from ..dataset import Budget
from ..decoding_shares import DecodingShares
from ..messages.reencoding import Batches
from ..selection import Derivation, Selection, has_plain_names
from .file_dataset import FileContents, FileDataset
from .origins import ObjectFile, map_read_errors, open_handle
from .parquet_memory import estimate_column, locate_pages, measure_row_group
from .row_groups import select_row_groups

BATCH_BYTES = 8 << 20
"""The decoded size of a batch in bytes, if the request leaves the batch size open."""
MAX_BATCH_ROWS = 128 << 10
"""The largest number of rows in such a batch. Decoded rows may be larger than estimated."""
_FILE_TYPE = "a Parquet file"
_VARIABLE_WIDTH_BYTES = 16
_COLUMN_BUFFER = 64 << 10
_TAIL_READ = 64 << 10
_HEADER_BYTES = 256
_PAGE_BYTES, _DICTIONARY_HEADER, _COUNT = 2, 7, 1
_READS_PER_BATCH = 8
"""What BATCH_BYTES is divided by to get the least size of a read: 1 MiB."""
_MAX_MEASURED = 4
_STEP_BYTES = 64 << 20
"""The memory of small row groups that are decoded together."""
_FIXED = "FIXED_LEN_BYTE_ARRAY"


def check_row_groups(
    file: SourceFile, parquet: Any, groups: list[int], names: list[str] | None, limit: int
) -> None:
    """Check some columns and fields of some row groups; `names` is None for all columns.

    Raises `ExhaustedError` if the decoded size of a column in a row group exceeds `limit` bytes: a
    page or even a value may be as large, and pyarrow decodes a page in one go. Raises
    `InvalidDataError` if a column does not have a value for each row, or a dictionary has another
    size than its values. Repeated columns may have any number of values.
    """
    schema = parquet.schema
    chosen = None if names is None else frozenset(names)
    selected = [
        (index, schema.column(index))
        for index in range(len(schema))
        if chosen is None or _is_selected(schema.column(index).path, chosen)
    ]
    for group in groups:
        row_group = parquet.metadata.row_group(group)
        for index, column in selected:
            chunk = row_group.column(index)
            if chunk.total_uncompressed_size > limit:
                raise ExhaustedError(
                    f"the column {column.path!r} has {chunk.total_uncompressed_size} bytes in row "
                    f"group {group} of {PurePath(file.path).name}; the limit is "
                    f"{format_size(limit)}: write smaller row groups, read other columns, or start "
                    "the server with more parquet_bytes"
                )
            if not column.max_repetition_level and chunk.num_values != row_group.num_rows:
                raise InvalidDataError(
                    f"the column {column.path!r} has {chunk.num_values} values in row group "
                    f"{group}, which has {row_group.num_rows} rows"
                )
            if column.physical_type == _FIXED and chunk.has_dictionary_page:
                _check_dictionary(file, locate_pages(chunk)[0], column)


def _is_selected(path: str, names: frozenset[str]) -> bool:
    """Return whether a column of a file, or a group around it, has one of the names."""
    return not names.isdisjoint(accumulate(path.split("."), "{}.{}".format))


def _check_dictionary(file: SourceFile, offset: int, column: Any) -> None:
    """Check that a dictionary of values of fixed length has the size of its values.

    pyarrow takes any bytes as values. An object is not read for it, which takes a request.
    """
    if isinstance(file, ObjectFile) or not 0 < offset < file.size:
        return
    data = bytes(file.read(offset, min(_HEADER_BYTES, file.size - offset)))
    try:
        header = CompactReader(data).read_struct()
        nbytes: int = header[_PAGE_BYTES].content
        count: int = header[_DICTIONARY_HEADER].content[_COUNT].content
    except (ProtocolError, KeyError, TypeError):  # pyarrow has the better error
        return
    if nbytes != count * column.length:
        raise InvalidDataError(
            f"the dictionary of the column {column.path!r} has {nbytes} bytes, but {count} values "
            f"of {column.length} bytes"
        )


class MeasuredRowGroups:
    """What `measure_row_group` has returned for a file, for the last ways to read it.

    These row groups were checked before. Each takes 16 bytes. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], array[int]] = {}

    def find(self, count: int, leaves: Sequence[int], rows: int, limit: int) -> array[int]:
        """Return the memory and the rows of each row group in turn, with 0 for unknown memory.

        The caller adds what it measures. `count` is the number of row groups, and `limit` that of
        `check_row_groups`.
        """
        key = (limit, rows, *leaves)
        known = self._known.get(key)
        if known is None:
            for oldest in list(self._known)[: 1 - _MAX_MEASURED]:
                self._known.pop(oldest, None)
            known = self._known.setdefault(key, array("q", bytes(16 * count)))
        return known


@dataclass(frozen=True, slots=True)
class ParquetPlan:
    """How to read a file."""

    columns: Columns
    """The columns that readers get."""
    elements: tuple[Struct, ...] | None
    """The schema that pyarrow reads; None if it is that of the file."""
    measured: MeasuredRowGroups = field(default_factory=MeasuredRowGroups, compare=False)
    """The memory of its row groups, as far as it is known."""


@contextmanager
def inspect_parquet(
    file: SourceFile, variants: Collection[str] = ()
) -> Generator[tuple[ParquetPlan, Any]]:
    """Open a file, and yield the plan to read it and a ``pyarrow.parquet.ParquetFile``.

    The columns `variants` are Variants even if the file does not annotate them.

    Raises `ProtocolError` if the footer is malformed, and `pyarrow.ArrowException` if pyarrow
    refuses the file.
    """
    data = _read_footer(file)
    footer = Footer.parse(data)
    for node in footer.root.children:
        if node.name in variants and node.logical is None:
            node.logical = LogicalType(Kind.VARIANT)
    elements = correct_schema(footer)
    malformed = find_malformed_statistics(data, footer.root)
    with _open(file, None if elements is None else (footer, elements)) as parquet:
        key_values = parquet.metadata.metadata or {}
        columns = plan_columns(footer.root, parquet.schema_arrow, key_values, malformed)
        yield ParquetPlan(columns, elements), parquet


@contextmanager
def open_parquet(file: SourceFile, plan: ParquetPlan) -> Generator[Any]:
    """Open a file as ``pyarrow.parquet.ParquetFile``, and map the errors while it is read.

    Its batches have the types of pyarrow; see `Columns.convert`.
    """
    with map_read_errors(file.path, _FILE_TYPE):
        corrected = None
        if plan.elements is not None:
            corrected = (Footer.parse(_read_footer(file)), plan.elements)
        with _open(file, corrected) as parquet:
            yield parquet


@contextmanager
def read_parquet(path: Path) -> Generator[tuple[pa.Schema, Iterator[pa.RecordBatch], int]]:
    """Open a local file, and yield its schema, its batches and its number of rows.

    Raises `DatasetError` if the file cannot be opened. `ProtocolError` and `pyarrow.ArrowException`
    are raised if the file is malformed; also while the batches are read.
    """
    with (
        closing(SourceFile(path, refuse_writers=False)) as file,
        inspect_parquet(file) as (plan, parquet),
    ):
        columns = plan.columns
        batches = (
            columns.convert(batch, by_name=False, options=DEFAULT_OPTIONS)
            for batch in parquet.iter_batches()
        )
        yield columns.schema, batches, parquet.metadata.num_rows


@contextmanager
def _open(file: SourceFile, corrected: tuple[Footer, tuple[Struct, ...]] | None) -> Generator[Any]:
    import pyarrow.parquet as pq  # takes a tenth of a second

    metadata = None
    if corrected is not None:
        footer, elements = corrected
        data = hide_extension(footer.with_elements(elements))
        metadata = pq.read_metadata(pa.BufferReader(wrap_footer(data)))
    # Without a buffer size, pyarrow reads a whole column of a row group before decoding it.
    # From an object store, it reads the columns of a row group in few large requests.
    is_remote = isinstance(file, ObjectFile)
    with closing(open_handle(file)) as handle:
        yield pq.ParquetFile(
            handle,
            metadata=metadata,
            pre_buffer=is_remote,
            buffer_size=0 if is_remote else _COLUMN_BUFFER,
            page_checksum_verification=True,
        )


def _read_footer(file: SourceFile) -> bytes:
    """Return the footer of a file; raise `ProtocolError` if it has none."""
    nbytes = min(file.size, _TAIL_READ)
    tail = bytes(file.read(file.size - nbytes, nbytes))
    size = read_footer_size(tail[-TAIL_BYTES:], file.size)
    end = nbytes - TAIL_BYTES
    if size <= end:
        return tail[end - size : end]
    return bytes(file.read(file.size - TAIL_BYTES - size, size))


class FieldReader:
    """Reads some columns of a file, and some fields of its structs and Variants."""

    def __init__(self, contents: FileContents, selection: Selection) -> None:
        self._columns: Columns = contents.plan.columns
        self._schema = extend_schema(contents.schema, selection.fields)
        self._selection = selection
        variants = {n: f for n, f in selection.fields.items() if isinstance(f, VariantField)}
        fitted = fit_fields(variants, self._columns.shredded)
        self._fields = {**selection.fields, **fitted}
        columns = selection.columns
        indices: Sequence[int] = range(len(self._schema)) if columns is None else columns
        self._names = [self._schema.names[index] for index in indices]
        own = [name for name in self._names if name not in self._fields]
        fields = [self._fields[name] for name in self._names if name in self._fields]
        parts = [path for each in fields if each.column not in own for path in self._list(each)]
        self.physical_names = list(dict.fromkeys([*own, *parts]))
        """The names by which pyarrow reads what is needed."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected columns of a batch that pyarrow has read.

        Raises `InvalidDataError` if a value is invalid.
        """
        arrays: list[Any] = []
        for name in self._names:
            field = self._fields.get(name)
            if field is None:
                arrays.append(self._convert(batch, name))
            elif isinstance(field, VariantField) and field.path:
                arrays.append(extract_field(batch.column(field.column), field))
            else:
                arrays.append(extract_nested_field(self._convert(batch, field.column), field))
        return pa.RecordBatch.from_arrays(arrays, schema=self._selection.schema)

    def _list(self, field: NestedField) -> list[str]:
        """Return the names by which pyarrow reads what a field needs."""
        if isinstance(field, VariantField):
            return physical_names(field)
        column = self._columns.schema.get_field_index(field.column)
        return [field.column if column in self._columns.conversions else field.path]

    def _convert(self, batch: pa.RecordBatch, name: str) -> Any:
        """Return a column of the file as readers get it."""
        column: Any = batch.column(name)
        convert = self._columns.conversions.get(self._columns.schema.get_field_index(name))
        options = self._selection.budget.parquet_options
        return column if convert is None else convert(column, options)

    def select_row_groups(self, parquet: Any) -> list[int]:
        """Return the row groups to read."""
        return select_row_groups(
            parquet, self._columns, self._selection, self._schema, self._fields
        )


class ParquetDataset(FileDataset):
    """A dataset in a Parquet file."""

    _kind = "parquet file"
    decodes_batches = True
    states_batch_rows = True
    reads_fields = True
    _variants: Collection[str] = ()

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, from its footer."""
        with (
            map_read_errors(file.path, _FILE_TYPE),
            inspect_parquet(file, self._variants) as (plan, parquet),
        ):
            rows = parquet.metadata.num_rows
            schema = plan.columns.schema
            batch_rows = _choose_batch_rows(parquet.metadata, schema)
        return FileContents(
            file.version, schema, file.size, rows=rows, batch_rows=batch_rows, plan=plan
        )

    def list_batch_rows(self, file: SourceFile, contents: FileContents) -> list[int]:
        """Return the rows of each row group."""
        with open_parquet(file, contents.plan) as parquet:
            metadata = parquet.metadata
            return [metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        most = contents.batch_rows or 1
        fitting = _fit_rows(most, selection.budget)
        rows = selection.batch_rows or fitting
        # Small batches are decoded together, and cut when they are encoded.
        rows *= max(min(most // _READS_PER_BATCH, fitting) // rows, 1)
        if selection.limit is not None:
            rows = min(rows, max(selection.limit, 1))
        derivation = Derivation.plan(contents.schema, selection.columns, selection.fields)
        if derivation is None or derivation.paths is not None:
            yield from self._read_columns(file, contents, selection, rows)
            return
        stored = replace(selection, derivation=derivation).for_storage()
        with closing(self._read_columns(file, contents, stored, rows)) as batches:
            for batch, custom_metadata in batches:
                yield derivation.apply(batch), custom_metadata

    def _read_columns(
        self, file: SourceFile, contents: FileContents, selection: Selection, rows: int
    ) -> Batches:
        """Yield batches of at most so many rows; see `read_batches`.

        pyarrow must be able to find the fields of the selection by name.
        """
        with open_parquet(file, contents.plan) as parquet:
            if Derivation.plan(contents.schema, selection.columns, selection.fields) is None:
                names = _select_names(contents.plan.columns.schema, selection)
                columns: Columns = contents.plan.columns
                groups = select_row_groups(parquet, columns, selection, columns.schema, {})
                convert = partial(_convert, contents.plan.columns, selection, names is not None)
            else:
                reader = FieldReader(contents, selection)
                names, convert = reader.physical_names, reader.convert
                groups = reader.select_row_groups(parquet)
            budget, leaves = selection.budget, _select_leaves(parquet.schema, names)
            measured: MeasuredRowGroups = contents.plan.measured
            known = measured.find(parquet.num_row_groups, leaves, rows, budget.parquet_bytes)
            unknown = [group for group in groups if not known[2 * group]]
            check_row_groups(file, parquet, unknown, names, budget.parquet_bytes)
            # pyarrow's threads cost more than small reads, but keep less memory than ours.
            is_small = selection.batch_rows is not None and 2 * rows < (contents.batch_rows or 1)
            for step in _plan_steps(file, parquet, groups, leaves, rows, budget.decoding, known):
                missing = sum(parquet.metadata.row_group(group).num_rows for group in step.groups)
                with step.hold():
                    for batch in parquet.iter_batches(
                        batch_size=_round_rows(step.rows, selection.batch_rows),
                        row_groups=step.groups,
                        columns=names,
                        use_threads=not is_small,
                    ):
                        file.check()
                        missing -= batch.num_rows
                        yield convert(batch), None
                if missing:
                    raise InvalidDataError(
                        f"a column has {abs(missing)} rows {'less' if missing > 0 else 'more'} "
                        "than the metadata states"
                    )


@dataclass(slots=True)
class _Step:
    """Row groups that are decoded one after the other while the reader holds a share of memory."""

    groups: list[int]
    rows: int
    """The largest number of rows of a batch."""
    nbytes: int
    """The size of the share in bytes."""
    shares: DecodingShares | None
    file_name: str
    error: ProtocolError | None = None
    """The reason why the size is unknown."""

    def hold(self, nbytes: int | None = None) -> AbstractContextManager[None]:
        """Hold the share, or one of another size; see `DecodingShares.hold`."""
        if self.error is not None:
            raise self.error
        if self.shares is None:
            return nullcontext()
        label = f"row group {self.groups[0]} of {self.file_name}"
        return self.shares.hold(self.nbytes if nbytes is None else nbytes, label)


def _plan_steps(
    file: SourceFile,
    parquet: Any,
    groups: list[int],
    leaves: Sequence[int],
    rows: int,
    shares: DecodingShares | None,
    known: array[int],
) -> Iterator[_Step]:
    """Yield row groups with the memory that they take; small ones together.

    `known` has the memory and the rows of those that were measured; see `MeasuredRowGroups.find`.
    Prefetching a row group from an object store takes its memory until it is decoded. Without
    shares, nothing is measured.
    """
    file_name = PurePath(file.path).name
    is_remote = isinstance(file, ObjectFile)
    if shares is None:
        for step in [[group] for group in groups] if is_remote else [groups]:
            yield _Step(step, rows, 0, None, file_name)
        return
    read_dictionary = partial(_read_dictionary, file, parquet)
    waiting: _Step | None = None
    for group in groups:
        step = _Step([group], rows, 0, shares, file_name)
        if is_remote:
            row_group = parquet.metadata.row_group(group)
            step.nbytes = sum(estimate_column(row_group.column(index)) for index in leaves)
        elif known[2 * group]:
            step.nbytes, step.rows = known[2 * group : 2 * group + 2]
        else:
            try:
                step.nbytes, step.rows = measure_row_group(
                    file, parquet, group, leaves, rows, partial(read_dictionary, group), step.hold
                )
                if step.nbytes <= shares.limit:
                    known[2 * group : 2 * group + 2] = array("q", (step.nbytes, step.rows))
            except ProtocolError as error:  # for a reader who gets to this row group
                step.nbytes, step.error = _STEP_BYTES, error
        if waiting is None:
            waiting = step
        elif is_remote or waiting.nbytes + step.nbytes > _STEP_BYTES or waiting.rows != step.rows:
            yield waiting
            waiting = step
        else:
            waiting.groups.append(group)
            waiting.nbytes += step.nbytes
    if waiting is not None:
        yield waiting


def _select_leaves(schema: Any, names: list[str] | None) -> list[int]:
    """Return the leaf columns of columns or fields; `names` is None for all columns."""
    if names is None:
        return list(range(len(schema)))
    chosen = frozenset(names)
    return [n for n in range(len(schema)) if _is_selected(schema.column(n).path, chosen)]


def _read_dictionary(file: SourceFile, parquet: Any, group: int, path: str) -> pa.RecordBatch:
    """Return a row of a leaf column, with the dictionary of its row group."""
    import pyarrow.parquet as pq  # takes a tenth of a second

    with closing(open_handle(file)) as handle:
        reader: Any = pq.ParquetFile(
            handle,
            metadata=parquet.metadata,
            read_dictionary=[path],
            pre_buffer=False,
            buffer_size=_COLUMN_BUFFER,
        )
        return next(reader.iter_batches(batch_size=1, row_groups=[group], columns=[path]))


def _choose_batch_rows(metadata: Any, schema: pa.Schema) -> int:
    """Return a number of rows whose decoded size is about BATCH_BYTES in every row group."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    encoded = [group.total_byte_size / max(group.num_rows, 1) for group in groups]
    row_bytes = max(_estimate_row_bytes(schema), *encoded, 1.0)
    return int(min(max(BATCH_BYTES / row_bytes, 1), MAX_BATCH_ROWS))


def _fit_rows(rows: int, budget: Budget) -> int:
    """Return fewer rows than those of BATCH_BYTES, if many streams share the memory."""
    return max(int(rows * min(budget.find_batch_bytes() / BATCH_BYTES, 1)), 1)


def _round_rows(rows: int, batch_rows: int | None) -> int:
    """Return at most so many rows: a multiple of those of a batch, unless a batch has more."""
    return rows if batch_rows is None or rows < batch_rows else rows - rows % batch_rows


def _estimate_row_bytes(schema: pa.Schema) -> float:
    """Return the decoded size of a row in bytes, estimated from the types of its columns."""
    total = 0.0
    for each in schema:
        try:
            total += each.type.bit_width / 8
        except ValueError:
            total += _VARIABLE_WIDTH_BYTES
    return total


def _select_names(schema: pa.Schema, selection: Selection) -> list[str] | None:
    """Return the names of the columns to read; None to read all.

    pyarrow selects columns by name only, and takes a dot in a name for a path into a nested column.
    If names are not unique or have a dot, all columns are read.
    """
    if selection.columns is None:
        return None
    if not has_plain_names(schema):
        return None
    return [schema.names[column] for column in selection.columns]


def _convert(
    columns: Columns, selection: Selection, by_name: bool, batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the selected columns of a batch that pyarrow has read, in order."""
    batch = columns.convert(batch, by_name=by_name, options=selection.budget.parquet_options)
    if selection.columns is None:
        indices = range(batch.num_columns)
    elif by_name:
        indices = [batch.schema.get_field_index(name) for name in selection.schema.names]
    else:
        indices = selection.columns
    arrays = [batch.column(index) for index in indices]
    if not arrays:
        return batch
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
