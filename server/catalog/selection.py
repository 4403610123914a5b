"""Selections: the part of a dataset that a request asks for, resolved against its schema.

A `Selection` has the columns, the filter, the offset, the limit, the batch size and the
compression. It is valid once resolved. The version, the shard and the rows by number are
resolved on their own.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import pyarrow as pa

from ...errors import InvalidRequestError, NotFoundError, remote_error
from ...formats.parquet.variant.arrow_fields import VariantField, choose_fields, extend_schema
from ...protocol.request import AUTO, Request
from .dataset import DEFAULT_BUDGET, Budget, Dataset, Encoding, Source
from .filters import RowFilter
from .suggestions import suggest_names

_T = TypeVar("_T")


def hash_version(*identities: Iterable[int | str]) -> str:
    """Return an opaque version text for the state of some files.

    Examples
    --------
    >>> hash_version((1, 2), (3,)) == hash_version((1, 2), (4,))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for identity in identities:
        digest.update(repr(tuple(identity)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_version(request: Request, version: str) -> None:
    """Check that a request is for a version, or for any version.

    Raises `RemoteError` with the code FAILED_PRECONDITION if it is for another version.
    """
    if request.version not in (None, version):
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the dataset {request.dataset!r} has changed, or never had the version "
            f"{request.version}: its version is {version}; request a new ticket",
            stream=request.dataset,
        )


def check_batches(request: Request, count: int) -> None:
    """Check that the data has the record batches that a request is for.

    Raises `InvalidRequestError` if it does not.
    """
    if request.batches is not None and request.batches[1] > count:
        first, end = request.batches
        raise InvalidRequestError(
            f"there are no record batches {first}:{end}; there are {count}, counted from 0",
            stream=request.dataset,
        )


def select_shards(request: Request, shards: Sequence[_T]) -> Sequence[_T]:
    """Return the shards that a request is for: one of them, or all.

    Raises `InvalidRequestError` if the shard does not exist.
    """
    if request.shard is None:
        return shards
    if request.shard >= len(shards):
        raise InvalidRequestError(
            f"there is no shard {request.shard}; the dataset has {len(shards)}",
            stream=request.dataset,
        )
    return shards[request.shard : request.shard + 1]


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a dataset that one reader gets.

    The record batches and rows are selected first, then the filter applies, then the offset, then
    the limit.
    """

    schema: pa.Schema
    """The schema of the stream."""
    columns: tuple[int, ...] | None = None
    """The columns to send, in order, as indices into the dataset's schema. None means all."""
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
    first_batch: int = 0
    """The index of the first stored record batch or row group to read, before everything else.

    The request sets it, and `FileDataset.skip_rows`, where skipping whole batches replaces a part
    of the offset."""
    end_batch: int | None = None
    """The index after the last stored record batch or row group to read. None means all."""
    rows: tuple[int, int] | None = None
    """The first row to which the filter applies, and the one after the last, counted from
    `first_batch`. None means all."""
    budget: Budget = DEFAULT_BUDGET
    """Bounds on reading the dataset."""

    @classmethod
    def resolve(cls, request: Request, encoding: Encoding, schema: pa.Schema) -> Selection:
        """Resolve a request against the schema of a dataset.

        Raises `NotFoundError` if a column does not exist. Raises `InvalidRequestError` if a column
        name is ambiguous or given twice, the filter is malformed or does not fit, or the format is
        not Arrow. Raises `ExhaustedError` if the filter exceeds ``encoding.budget`` for a single
        row.
        """
        if request.format not in (None, "arrow"):
            raise InvalidRequestError(
                f"the dataset cannot be served in the format {request.format!r}; "
                "only 'arrow' is supported",
                stream=request.dataset,
            )
        columns = _resolve_columns(request, schema)
        first_batch, end_batch = request.batches or (0, None)
        compression = request.compression or encoding.compression
        return cls(
            schema=schema if columns is None else select_fields(schema, columns),
            columns=columns,
            limit=request.limit,
            batch_rows=request.batch_rows or encoding.batch_rows,
            compression=None if compression == AUTO else compression,
            filter=None
            if request.filter is None
            else RowFilter.resolve(
                request.filter,
                schema,
                request.dataset,
                seconds=encoding.budget.filter_seconds,
            ),
            offset=request.offset or 0,
            first_batch=first_batch,
            end_batch=end_batch,
            rows=request.rows,
            budget=encoding.budget,
        )

    @classmethod
    def for_counting(cls, request: Request, encoding: Encoding, schema: pa.Schema) -> Selection:
        """Return a selection of the rows that pass a request's filter, and of the columns it needs.

        Parameters and errors are those of `resolve`. The rest of the request does not apply.
        """
        selection = cls.resolve(
            Request(request.dataset, filter=request.filter),
            Encoding(budget=encoding.budget),
            schema,
        )
        columns = tuple(sorted(selection.filter.columns)) if selection.filter is not None else ()
        if not columns:
            return selection
        return replace(selection, schema=select_fields(schema, columns), columns=columns)

    @property
    def selects_batches(self) -> bool:
        """Whether only some of the stored record batches or row groups are read."""
        return self.first_batch > 0 or self.end_batch is not None

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
        part = schema if columns is None else select_fields(schema, columns)
        limit = None if self.offset or self.filter is not None else self.limit
        # A filter that leaves out row groups would change the numbers of the rows.
        row_filter = self.filter if self.rows is None else None
        return replace(self, schema=part, columns=columns, limit=limit, offset=0, filter=row_filter)

    def apply_filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass the filter, with the columns to send."""
        if self.filter is None:
            return batch
        columns = self.read_columns
        batch = self.filter.apply(batch, range(batch.num_columns) if columns is None else columns)
        if self.columns is None or batch.num_columns == len(self.columns):
            return batch
        return pa.RecordBatch.from_arrays(batch.columns[: len(self.columns)], schema=self.schema)

    def reorder(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to send, in order."""
        if self.columns is None:
            return batch
        present: Sequence[int] = sorted(self.columns)
        if batch.num_columns > len(present):
            present = range(batch.num_columns)
        # RecordBatch.columns fails for interval types: pyarrow has no array class for them.
        return batch.select([present.index(column) for column in self.columns])


def select_fields(schema: pa.Schema, columns: Sequence[int]) -> pa.Schema:
    """Return the schema of some columns, with the custom metadata of the whole schema."""
    metadata: Any = schema.metadata
    return pa.schema([schema.field(column) for column in columns], metadata=metadata)


def _resolve_columns(request: Request, schema: pa.Schema) -> tuple[int, ...] | None:
    if request.columns is None:
        return None
    columns = tuple(_find_column(schema, name, request.dataset) for name in request.columns)
    if len(set(columns)) < len(columns):
        raise InvalidRequestError("a column is requested twice", stream=request.dataset)
    return None if columns == tuple(range(len(schema))) else columns


def _find_column(schema: pa.Schema, name: str, dataset: str) -> int:
    indices = schema.get_all_field_indices(name)
    if not indices:
        suggestion = suggest_names(name, schema.names)
        raise NotFoundError(f"no column {name!r}{suggestion}", stream=dataset)
    if len(indices) > 1:
        raise InvalidRequestError(
            f"the column name {name!r} is ambiguous: {len(indices)} columns have it",
            stream=dataset,
        )
    return indices[0]


def add_fields(
    schema: pa.Schema, request: Request
) -> tuple[pa.Schema, Mapping[str, VariantField], Request]:
    """Return a schema with the fields of Variants that a request may name, and these fields.

    They follow the columns of the schema, which describes them. The request returned names all
    columns to send. If it can name no field, nothing is added.
    """
    has_filter = request.filter is not None
    fields = choose_fields(schema, request.columns or (), has_filter=has_filter)
    if not fields:
        return schema, fields, request
    columns = tuple(schema.names) if request.columns is None else request.columns
    return extend_schema(schema, fields), fields, replace(request, columns=columns)


def resolve_schema(request: Request, encoding: Encoding, schema: pa.Schema) -> pa.Schema:
    """Return the schema of the stream for a request; errors are those of `Selection.resolve`."""
    schema, _, request = add_fields(schema, request)
    return Selection.resolve(request, encoding, schema).schema


def open_rows(dataset: Dataset, request: Request, encoding: Encoding) -> Source:
    """Open the rows of a dataset for one reader; see `Dataset.open` and `resolve_rows`."""
    return dataset.open(resolve_rows(dataset, request, encoding), encoding)


def resolve_rows(dataset: Dataset, request: Request, encoding: Encoding) -> Request:
    """Return a request for the record batches that contain the rows of a request.

    If it selects parts of them, it has an offset and a limit as well. With a filter, which precedes
    both, it has `rows` within the record batches instead. It is for the version in which the rows
    were counted. Blocking: it counts the rows of the dataset.

    `request`: Without `rows`, it is returned unchanged. Raises `InvalidRequestError` if the dataset
    does not have the rows, or the request selects record batches, too. Raises `SplitArrowError` as
    `Dataset.count_rows` does.
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
