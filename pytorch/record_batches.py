"""Record batches whose rows are taken and put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UsageError

_compute: Any = pc  # its stubs lack functions


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of one or more record batches as one."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(list(batches)).unify_dictionaries().combine_chunks()
    return table.to_batches()[0]


def take_rows(batch: pa.RecordBatch, indices: Any) -> pa.RecordBatch:
    """Return some rows of a record batch, in the order of the indices."""
    return with_plain_types(batch).take(indices)


def transform_batch(
    transform: Callable[[pa.RecordBatch], pa.RecordBatch], batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the record batch that a function makes of one."""
    result: Any = transform(batch)
    if not isinstance(result, pa.RecordBatch):
        raise UsageError(
            f"transform returned an object of type {type(result).__name__}; expected a "
            "pyarrow.RecordBatch; use collate to change tensors"
        )
    return result


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of what `with_plain_types` returns."""
    arrays = [pa.nulls(0, field.type) for field in schema]
    return with_plain_types(pa.RecordBatch.from_arrays(arrays, schema=schema)).schema


def with_plain_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a record batch of types whose rows pyarrow can take: no views, no runs."""
    for index, field in enumerate(batch.schema):
        array: Any = batch.column(index)
        if pa.types.is_run_end_encoded(array.type):
            array = decode_runs(array)
        array = with_plain_type(array)
        if array.type != field.type:
            batch = batch.set_column(index, field.with_type(array.type), array)
    return batch


def with_plain_type(array: Any) -> Any:
    """Return an array or a chunked array without views of texts and binary values."""
    kind = find_plain_type(array.type)
    return array if kind == array.type else array.cast(kind)


def decode_runs(array: Any) -> Any:
    """Return a run-end encoded array as an array of its values."""
    values = with_plain_type(array.values)
    runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, values)
    return _compute.run_end_decode(runs.slice(array.offset, len(array)))


def find_plain_type(kind: Any) -> Any:
    """Return the type that holds the same values without views of texts and binary values."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, find_plain_type(kind.value_type), kind.ordered)
    if types.is_list(kind) or types.is_large_list(kind):
        make: Any = pa.list_ if types.is_list(kind) else pa.large_list
        return make(_find_plain_field(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([_find_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    return kind


def _find_plain_field(field: Any) -> Any:
    return field.with_type(find_plain_type(field.type))
