"""Selections: the part of a dataset that a request asks for, resolved against its schema.

A `Selection` has the columns, the filter, the offset, the limit, the batch size and the
compression. It is valid once resolved. Rows by number are resolved before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from ...errors import InvalidRequestError, NotFoundError
from ...formats.arrow.lengths import has_lengths
from ...formats.nested_fields import (
    NestedField,
    StructField,
    choose_fields,
    explain_missing,
    extend_schema,
    extract_field,
)
from ...formats.parquet.variant.arrow_fields import VariantField
from ...protocol.request import AUTO, Request
from .batch_ranges import ALL_BATCHES, BatchRanges
from .dataset import DEFAULT_BUDGET, Budget, Encoding, ServedDataset, Source
from .filters import RowFilter, list_filter_columns
from .suggestions import suggest_names


@dataclass(frozen=True, slots=True)
class Derivation:
    """Columns that a dataset reads, and how to make those of a selection of them.

    The selection has fields of columns as columns; see `Selection.fields`.
    """

    columns: tuple[int, ...]
    """The columns to read, as indices into the dataset's schema."""
    schema: pa.Schema
    """The schema of the columns to read."""
    paths: tuple[str, ...] | None
    """The columns and fields in them that are needed, by which other fields can be left out. None
    if a name is not unique or has a dot."""
    fields: tuple[tuple[int, NestedField], ...]
    """The fields to extract, and where their columns are in `columns`."""
    order: tuple[int, ...]
    """Where the columns to make are, in `columns` and then `fields`."""

    @classmethod
    def plan(
        cls, schema: pa.Schema, columns: Sequence[int] | None, fields: Mapping[str, NestedField]
    ) -> Derivation | None:
        """Return how to make some columns of a schema and fields; None if none is a field."""
        width = len(schema)
        if columns is None or all(column < width for column in columns):
            return None
        listed = list(fields.values())
        own = [column for column in columns if column < width]
        chosen = [listed[column - width] for column in columns if column >= width]
        parents = [schema.get_field_index(each.column) for each in chosen]
        stored = tuple(dict.fromkeys((*own, *parents)))
        structs = [each for each in chosen if isinstance(each, StructField)]
        is_plain = has_plain_names(schema) and not any("." in "".join(f.steps) for f in structs)
        names = [schema.names[column] for column in own]
        names += [f.path if isinstance(f, StructField) else f.column for f in chosen]
        places = {column: place for place, column in enumerate(stored)}
        made = iter(range(len(stored), len(stored) + len(chosen)))
        return cls(
            stored,
            select_fields(schema, stored),
            tuple(dict.fromkeys(names)) if is_plain else None,
            tuple((places[parent], f) for parent, f in zip(parents, chosen, strict=True)),
            tuple(places[column] if column < width else next(made) for column in columns),
        )

    @property
    def variants(self) -> set[int]:
        """Where the Variants are in `columns` whose fields are extracted."""
        return {column for column, each in self.fields if isinstance(each, VariantField)}

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to make of those that were read.

        Raises `InvalidDataError` if a Variant is invalid.
        """
        for position, each in self.fields:
            column = extract_field(batch.column(position), each)
            batch = batch.append_column(each.field.with_type(column.type), column)
        return batch.select(list(self.order))


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a dataset that one reader gets.

    The record batches and rows are selected first, then the filter applies, then the offset, then
    the limit.
    """

    schema: pa.Schema
    """The schema of the stream."""
    columns: tuple[int, ...] | None = None
    """The columns to send, in order, as indices into the dataset's schema and then `fields`. None
    means all of the schema."""
    limit: int | None = None
    """The largest number of rows. None means all."""
    batch_rows: int | None = None
    """The largest number of rows in a batch. None leaves the size to the dataset."""
    compression: str | None = None
    """``none``, ``lz4`` or ``zstd``. None keeps the compression of the stored messages."""
    filter: RowFilter | None = None
    """The rows to send. None means all."""
    offset: int = 0
    """The number of rows to skip, of those that pass the filter."""
    batches: BatchRanges = ALL_BATCHES
    """The stored record batches or row groups to read, before everything else.

    The request sets them, and `FileDataset.skip_rows`, where skipping whole batches replaces a part
    of the offset."""
    rows: tuple[int, int] | None = None
    """The first row to which the filter applies, and the one after the last, counted in `batches`.
    None means all."""
    budget: Budget = DEFAULT_BUDGET
    """Bounds on reading the dataset."""
    fields: Mapping[str, NestedField] = field(default_factory=dict[str, NestedField])
    """The fields of structs and Variants that count as columns after those of the dataset."""
    derivation: Derivation | None = None
    """How to make the columns to send of those that the dataset reads. None if it returns them."""
    paths: tuple[str, ...] | None = None
    """See `Derivation.paths`. None means all of the columns."""
    only_lengths: bool = False
    """Whether only the lengths of the values in the first column are needed. The dataset may return
    lists of nulls that have the same lengths."""

    @classmethod
    def resolve(
        cls, request: Request, encoding: Encoding, schema: pa.Schema, *, reads_fields: bool = False
    ) -> Selection:
        """Resolve a request against the schema of a dataset.

        `reads_fields` states that the dataset returns `fields` as columns.

        Raises `NotFoundError` if a column does not exist, and `InvalidRequestError` if a column
        name is ambiguous or given twice, or the format is not Arrow. Errors of the filter are those
        of `RowFilter.resolve`.
        """
        if request.format not in (None, "arrow"):
            raise InvalidRequestError(
                f"the dataset cannot be served in the format {request.format!r}; "
                "only 'arrow' is supported",
                stream=request.dataset,
            )
        names = list(request.columns or ())
        if request.filter is not None:
            names += list_filter_columns(request.filter, request.dataset)
        fields = choose_fields(schema, names)
        extended = extend_schema(schema, fields)
        columns = _resolve_columns(request, schema, extended)
        row_filter = None
        if request.filter is not None:
            row_filter = RowFilter.resolve(
                request.filter, extended, request.dataset, seconds=encoding.budget.filter_seconds
            )
        compression = request.compression or encoding.compression
        selection = cls(
            schema=schema if columns is None else select_fields(extended, columns),
            columns=columns,
            limit=request.limit,
            batch_rows=request.batch_rows or encoding.batch_rows,
            compression=None if compression == AUTO else compression,
            filter=row_filter,
            offset=request.offset or 0,
            batches=BatchRanges.of(request),
            rows=request.rows,
            budget=encoding.budget,
            fields=fields,
        )
        return selection if reads_fields else selection._derive_fields(schema)

    @classmethod
    def for_measuring(
        cls, request: Request, encoding: Encoding, schema: pa.Schema, *, reads_fields: bool = False
    ) -> Selection:
        """Return a selection for `ServedDataset.measure_batches`, of the columns that this needs.

        Parameters and errors are those of `resolve`. Raises `InvalidRequestError`, too, if the
        request has several columns, or one whose values have no lengths.
        """
        selection = cls.resolve(
            Request(request.dataset, columns=request.columns, filter=request.filter),
            Encoding(budget=encoding.budget),
            schema,
            reads_fields=True,
        )
        names = request.columns or ()
        if len(names) > 1:
            raise InvalidRequestError(
                f"the lengths in {len(names)} columns are requested; request those in one column",
                stream=request.dataset,
            )
        measured = (selection.columns or (0,)) if names else ()
        filtered = () if selection.filter is None else sorted(selection.filter.columns)
        columns = tuple(dict.fromkeys((*measured, *filtered)))
        if not columns:
            return selection
        part = select_fields(extend_schema(schema, selection.fields), columns)
        if names and not has_lengths(part.field(0).type):
            raise InvalidRequestError(
                f"the values in {names[0]!r} have the type {part.field(0).type}; only lists, "
                "strings and binaries have lengths",
                stream=request.dataset,
            )
        selection = replace(selection, schema=part, columns=columns, only_lengths=bool(names))
        return selection if reads_fields else selection._derive_fields(schema)

    @property
    def codec(self) -> str | None:
        """The compression of messages that are re-encoded: ``lz4``, ``zstd`` or None."""
        return None if self.compression == "none" else self.compression

    @property
    def sorted_columns(self) -> list[int] | None:
        """The columns to send, in the order of the dataset's schema. None means all."""
        return None if self.columns is None else sorted(self.columns)

    @property
    def read_columns(self) -> tuple[int, ...] | None:
        """The columns to read: those to send, then those that only the filter needs."""
        if self.columns is None or self.filter is None:
            return self.columns
        return self.columns + tuple(sorted(self.filter.columns.difference(self.columns)))

    def for_reading(self, schema: pa.Schema) -> Selection:
        """Return the selection to read the dataset with.

        It has all columns that are needed to apply this selection to the batches. Its filter and
        its limit are hints: the dataset may return more rows.
        """
        columns = self.read_columns
        extended = extend_schema(schema, self.fields)
        part = schema if columns is None else select_fields(extended, columns)
        limit = None if self.offset or self.filter is not None else self.limit
        # A filter that leaves out row groups would change the numbers of the rows.
        row_filter = self.filter if self.rows is None else None
        selection = replace(
            self, schema=part, columns=columns, limit=limit, offset=0, filter=row_filter
        )
        return selection.for_storage()

    def for_storage(self) -> Selection:
        """Return the selection of the columns that the dataset reads for `derivation`."""
        found = self.derivation
        if found is None:
            return self
        return replace(
            self,
            schema=found.schema,
            columns=found.columns,
            paths=found.paths,
            filter=None,
            fields={},
            derivation=None,
        )

    def _derive_fields(self, schema: pa.Schema) -> Selection:
        """Return the selection for a dataset with a schema that returns no fields as columns."""
        derivation = Derivation.plan(schema, self.read_columns, self.fields)
        return replace(self, derivation=derivation)

    def apply_filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass the filter, with the columns to send."""
        if self.filter is None:
            return batch
        columns = self.read_columns
        batch = self.filter.apply(batch, range(batch.num_columns) if columns is None else columns)
        if self.columns is None or batch.num_columns == len(self.columns):
            return batch
        return batch.select(list(range(len(self.columns))))

    def select_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to send of a batch with all columns."""
        return batch if self.columns is None else batch.select(list(self.columns))

    def reorder(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to send, in order, of a batch with these columns or with all."""
        if self.columns is None:
            return batch
        present: Sequence[int] = sorted(self.columns)
        if batch.num_columns > len(present):
            present = range(batch.num_columns)
        # RecordBatch.columns fails for interval types: pyarrow has no array class for them.
        return batch.select([present.index(column) for column in self.columns])


def has_plain_names(schema: pa.Schema) -> bool:
    """Return whether no two columns have one name, and no name has a dot."""
    names = schema.names
    return len(set(names)) == len(names) and not any("." in name for name in names)


def select_fields(schema: pa.Schema, columns: Sequence[int]) -> pa.Schema:
    """Return the schema of some columns, with the custom metadata of the whole schema."""
    metadata: Any = schema.metadata
    return pa.schema([schema.field(column) for column in columns], metadata=metadata)


def _resolve_columns(
    request: Request, schema: pa.Schema, extended: pa.Schema
) -> tuple[int, ...] | None:
    columns = tuple(range(len(schema)))
    if request.columns is not None:
        columns = tuple(_find_column(schema, extended, name, request) for name in request.columns)
    if len(set(columns)) < len(columns):
        raise InvalidRequestError("a column is requested twice", stream=request.dataset)
    is_whole = extended is schema and columns == tuple(range(len(schema)))
    return None if is_whole else columns


def _find_column(schema: pa.Schema, extended: pa.Schema, name: str, request: Request) -> int:
    indices = extended.get_all_field_indices(name)
    if not indices:
        reason, names = explain_missing(schema, name)
        suggestion = suggest_names(name, names)
        raise NotFoundError(f"no column {name!r}{reason}{suggestion}", stream=request.dataset)
    if len(indices) > 1:
        raise InvalidRequestError(
            f"the column name {name!r} is ambiguous: {len(indices)} columns have it",
            stream=request.dataset,
        )
    return indices[0]


def open_rows(dataset: ServedDataset, request: Request, encoding: Encoding) -> Source:
    """Open the rows of a dataset for one reader; see `ServedDataset.open` and `resolve_rows`."""
    return dataset.open(resolve_rows(dataset, request, encoding), encoding)


def resolve_rows(dataset: ServedDataset, request: Request, encoding: Encoding) -> Request:
    """Return a request for the record batches that contain the rows of a request.

    If it selects parts of them, it has an offset and a limit as well. With a filter, which precedes
    both, it has `rows` within the record batches instead. It is for the version in which the rows
    were counted. Blocking: it counts the rows of the dataset.

    A request without `rows` is returned unchanged. Raises `InvalidRequestError` if the dataset does
    not have the rows, or the request selects record batches, too. Raises `SplitArrowError` as
    `ServedDataset.count_rows` does.
    """
    if request.rows is None:
        return request
    if request.batches is not None:
        raise InvalidRequestError(
            "the ticket selects both rows and batches; select one of them", stream=request.dataset
        )
    version = request.version or dataset.version or None
    part = Request(request.dataset, shard=request.shard, version=version)
    ends = list(accumulate(dataset.count_rows(part, encoding)))
    begin, end = request.rows
    total = ends[-1] if ends else 0
    if end > total:
        raise InvalidRequestError(
            f"there are no rows {begin}:{end}; there are {total}, counted from 0",
            stream=request.dataset,
        )
    request = replace(request, rows=None, version=version)
    if begin == end:
        return replace(request, limit=0)
    first, last = bisect_right(ends, begin), bisect_left(ends, end)
    start = ends[first - 1] if first else 0
    request = replace(request, batches=(first, last + 1))
    if (begin, end) == (start, ends[last]):
        return request
    if request.filter is not None:
        return replace(request, rows=(begin - start, end - start))
    offset = request.offset or 0
    count = max(0, end - begin - offset)
    limit = count if request.limit is None else min(request.limit, count)
    return replace(request, offset=begin - start + offset, limit=limit)
