"""Dictionary encoding of the batches of a shard, and the choice of columns to encode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from ..errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_ROWS = 20_000
"""The number of rows that `dictionary_columns` samples."""
_MAX_DISTINCT_SHARE = 0.1


class DictionaryEncoder:
    """Encodes columns of consecutive batches with one growing dictionary per column.

    An Arrow file can extend a dictionary with delta dictionary batches, but not replace it. So
    each batch appends its new values after the known ones.

    Raises `UsageError` if the schema does not have exactly one column of a name, or its type is
    neither string nor binary.

    Examples
    --------
    >>> batch = pa.record_batch({"carrier": ["AA", "UA", "AA"]})
    >>> encoder = DictionaryEncoder(batch.schema, ["carrier"])
    >>> encoder.encode(batch)["carrier"].indices.to_pylist()
    [0, 1, 0]
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        self._dictionaries: dict[int, Any] = {}
        for name in columns:
            indices = schema.get_all_field_indices(name)
            if len(indices) != 1:
                raise UsageError(
                    f"no unique column {name!r} to dictionary-encode; "
                    f"the columns are {', '.join(schema.names)}"
                )
            index = indices[0]
            value_type = schema.field(index).type
            if not _is_encodable(value_type):
                raise UsageError(
                    f"cannot dictionary-encode column {name!r} of type {value_type}; "
                    "its type must be string or binary"
                )
            self._dictionaries[index] = pa.array([], value_type)
            encoded = schema.field(index).with_type(pa.dictionary(pa.int32(), value_type))
            schema = schema.set(index, encoded)
        self.schema: pa.Schema = schema
        """The schema of the encoded batches."""

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the columns encoded."""
        if not self._dictionaries:
            return batch
        columns: list[Any] = list(batch.columns)
        for index, dictionary in self._dictionaries.items():
            encoded: Any = columns[index].dictionary_encode()
            values = encoded.dictionary
            new = values.filter(pc.is_null(pc.index_in(values, value_set=dictionary)))
            if len(new):
                dictionary = pa.concat_arrays([dictionary, new])
                self._dictionaries[index] = dictionary
            remapped = pc.index_in(values, value_set=dictionary).take(encoded.indices)
            columns[index] = pa.DictionaryArray.from_arrays(remapped, dictionary)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _is_encodable(value_type: Any) -> bool:
    return at.is_string(value_type) or at.is_binary(value_type)


def dictionary_columns(frame: DataFrame) -> list[str]:
    """Return the string and binary columns for which dictionary encoding saves space.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        The rows. A column qualifies if at most a tenth of the non-null values among its first
        20,000 rows are distinct.
    """
    from pyspark.sql import types as st

    from .spark_versions import collect_batches

    all_names = frame.schema.names
    encodable = [
        field.name
        for field in frame.schema
        if isinstance(field.dataType, st.StringType | st.BinaryType)
        and all_names.count(field.name) == 1
    ]
    if not encodable:
        return []
    # Spark cannot export some other columns in this way: VARIANT with nulls, for one.
    quoted = [f"`{name.replace('`', '``')}`" for name in encodable]
    batches = collect_batches(frame.select(quoted).limit(SAMPLE_ROWS))
    if not batches:
        return []
    sample = pa.Table.from_batches(batches)
    names: list[str] = []
    for name, column in zip(encodable, sample.columns, strict=True):
        values: Any = column.drop_null()
        if len(values) and _distinct_share(values) <= _MAX_DISTINCT_SHARE:
            names.append(name)
    return names


def _distinct_share(values: Any) -> float:
    return pc.count_distinct(values).as_py() / len(values)
