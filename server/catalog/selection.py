"""What of a dataset one reader gets: a request, resolved against the dataset's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ...errors import InvalidRequestError, NotFoundError
from ...protocol.request import Request
from .base import Encoding
from .filters import RowFilter
from .names import nearest


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a dataset one reader gets."""

    schema: pa.Schema
    """The schema of what is sent."""
    columns: tuple[int, ...] | None = None
    """The columns to send, as indices into the dataset's schema, in order; None means all."""
    limit: int | None = None
    """The largest number of rows; None means all."""
    batch_rows: int | None = None
    """The largest number of rows in a batch; None leaves it to the dataset."""
    compression: str | None = None
    """``none``, ``lz4`` or ``zstd``; None leaves it as it lies."""
    filter: RowFilter | None = None
    """Which rows to send; None means all."""
    offset: int = 0
    """How many rows to leave out at the start, of those that the filter leaves."""
    first: int = 0
    """How many record batches or row groups are to be left out before anything else is done."""

    @classmethod
    def resolve(cls, request: Request, encoding: Encoding, schema: pa.Schema) -> Selection:
        """Resolve a request; what it leaves open is taken from the server's defaults.

        Raises
        ------
        NotFoundError
            If a column does not exist.
        InvalidRequestError
            If a column's name is ambiguous or asked for twice, the filter is malformed or does
            not fit, or another format than Arrow is asked for.
        """
        if request.format not in (None, "arrow"):
            raise InvalidRequestError(
                f"the dataset cannot be served in the format {request.format!r}",
                stream=request.dataset,
            )
        columns = None
        if request.columns is not None:
            columns = tuple(_column(schema, name, request.dataset) for name in request.columns)
            if len(set(columns)) < len(columns):
                raise InvalidRequestError("a column is asked for twice", stream=request.dataset)
            if columns == tuple(range(len(schema))):
                columns = None
        return cls(
            schema=schema if columns is None else schema_part(schema, columns),
            columns=columns,
            limit=request.limit,
            batch_rows=request.batch_rows or encoding.batch_rows,
            compression=request.compression or encoding.compression,
            filter=None
            if request.filter is None
            else RowFilter.resolve(request.filter, schema, request.dataset),
            offset=request.offset or 0,
        )

    @property
    def codec(self) -> str | None:
        """How messages that are encoded anew are compressed: ``lz4``, ``zstd``, or None."""
        return None if self.compression == "none" else self.compression

    @property
    def included(self) -> list[int] | None:
        """The columns to read, in the dataset's order; None means all."""
        return None if self.columns is None else sorted(self.columns)

    @property
    def reading(self) -> tuple[int, ...] | None:
        """The columns to read: those to send, then those that only the filter looks at."""
        if self.columns is None or self.filter is None:
            return self.columns
        return self.columns + tuple(sorted(self.filter.columns.difference(self.columns)))

    def to_read(self, schema: pa.Schema) -> Selection:
        """Return what is to be read for this from a dataset with a schema.

        Offset and filter remain to be applied; the filter is a hint there.
        """
        columns = self.reading
        part = schema if columns is None else schema_part(schema, columns)
        limit = None if self.offset or self.filter is not None else self.limit
        return replace(self, schema=part, columns=columns, limit=limit, offset=0)

    def filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the filter leaves of a batch of the columns to read, to be sent."""
        if self.filter is None:
            return batch
        columns = self.reading
        batch = self.filter.apply(batch, range(batch.num_columns) if columns is None else columns)
        if self.columns is None or batch.num_columns == len(self.columns):
            return batch
        return pa.RecordBatch.from_arrays(batch.columns[: len(self.columns)], schema=self.schema)

    def arrange(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns to send, in order, of a batch of all or of those `included`."""
        if self.columns is None:
            return batch
        included = sorted(self.columns)
        if batch.num_columns > len(included):
            included = range(batch.num_columns)
        # Taking the arrays out one by one would fail for intervals, which Python lacks.
        return batch.select([included.index(column) for column in self.columns])


def schema_part(schema: pa.Schema, columns: Sequence[int]) -> pa.Schema:
    """Return a schema of some columns, with the custom metadata of the whole."""
    metadata: Any = schema.metadata
    return pa.schema([schema.field(column) for column in columns], metadata=metadata)


def _column(schema: pa.Schema, name: str, dataset: str) -> int:
    found = schema.get_all_field_indices(name)
    if not found:
        raise NotFoundError(f"no column {name!r}{nearest(name, schema.names)}", stream=dataset)
    if len(found) > 1:
        raise InvalidRequestError(
            f"the column name {name!r} is ambiguous: {len(found)} columns have it", stream=dataset
        )
    return found[0]


def has_text_names(schema: pa.Schema) -> bool:
    """Tell whether all names in a schema are UTF-8, as they have to be; pyarrow lets others in."""
    pending: list[Any] = list(schema)
    try:
        while pending:
            field = pending.pop()
            field.name.encode()
            data_type = getattr(field.type, "storage_type", field.type)
            pending.extend(data_type.field(index) for index in range(data_type.num_fields))
    except UnicodeError:
        return False
    return True


def same_schema(one: pa.Schema, other: pa.Schema) -> bool:
    """Tell whether two schemas are equal, custom metadata included, byte order aside."""
    return difference(one, other) is None and (one.metadata or {}) == (other.metadata or {})


def difference(one: pa.Schema, other: pa.Schema) -> str | None:
    """Say how the columns of `other` differ from those of `one`; None if they do not.

    Byte order does not count, nor does the custom metadata of the schema as a whole: pandas
    notes the numbers of rows there.
    """
    if one.names != other.names:
        missing = [name for name in one.names if name not in other.names]
        added = [name for name in other.names if name not in one.names]
        if missing:
            return f"it lacks the column {missing[0]!r}"
        if added:
            return f"it has the column {added[0]!r} besides"
        return "its columns stand in another order"
    for ours, theirs in zip(one, other, strict=True):
        if not ours.type.equals(theirs.type, check_metadata=True):
            return f"its column {ours.name!r} is {theirs.type}, not {ours.type}"
        if ours.nullable != theirs.nullable:
            return f"its column {ours.name!r} is {'' if theirs.nullable else 'not '}nullable"
        if not ours.equals(theirs, check_metadata=True):
            return f"its column {ours.name!r} has other custom metadata"
    return None
