"""Dictionary encoding within a shard: one dictionary for each column that only grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from ..errors import UsageError


class GrowingDictionaries:
    """Encodes columns of the batches of one file.

    Arrow files can have a dictionary extended, and not replaced: what a batch brings that is new
    is put behind the values that are there.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the batches.
    columns : sequence of str
        The columns to encode: text or binary.

    Raises
    ------
    UsageError
        If there is no such column, or it has another type.

    Examples
    --------
    >>> batch = pa.record_batch({"carrier": ["AA", "UA", "AA"]})
    >>> dictionaries = GrowingDictionaries(batch.schema, ["carrier"])
    >>> dictionaries.encode(batch)["carrier"].indices.to_pylist()
    [0, 1, 0]
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        self._values: dict[int, Any] = {}
        for name in columns:
            places = schema.get_all_field_indices(name)
            if len(places) != 1:
                raise UsageError(
                    f"dictionary names {name!r}; the columns are {', '.join(schema.names)}"
                )
            kind = schema.field(places[0]).type
            if not (at.is_string(kind) or at.is_binary(kind)):
                raise UsageError(f"dictionary names {name!r}, which is {kind}, not text or binary")
            self._values[places[0]] = pa.array([], kind)
            encoded = schema.field(places[0]).with_type(pa.dictionary(pa.int32(), kind))
            schema = schema.set(places[0], encoded)
        self.schema: pa.Schema = schema
        """The schema of the batches once they are encoded."""

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns encoded."""
        if not self._values:
            return batch
        columns: list[Any] = list(batch.columns)
        for place, known in self._values.items():
            encoded: Any = columns[place].dictionary_encode()
            found = encoded.dictionary
            fresh = found.filter(pc.is_null(pc.index_in(found, value_set=known)))
            if len(fresh):
                known = pa.concat_arrays([known, fresh])
                self._values[place] = known
            places = pc.index_in(found, value_set=known)
            indices = places.take(encoded.indices)
            columns[place] = pa.DictionaryArray.from_arrays(indices, known)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


SAMPLE_ROWS = 20_000
"""How many rows `dictionary_columns` looks at."""
_MOST_DISTINCT = 0.1


def dictionary_columns(frame: Any) -> list[str]:
    """Return the columns of text or binary for which dictionaries pay.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        Its first rows are looked at: a column pays if at most a tenth of its values differ.
    """
    sample: pa.Table = frame.limit(SAMPLE_ROWS).toArrow()
    found: list[str] = []
    for name in dict.fromkeys(sample.column_names):
        places = sample.schema.get_all_field_indices(name)
        kind = sample.schema.field(places[0]).type
        if len(places) == 1 and (at.is_string(kind) or at.is_binary(kind)):
            column: Any = sample.column(name).drop_null()
            if len(column) and pc.count_distinct(column).as_py() <= _MOST_DISTINCT * len(column):
                found.append(name)
    return found
