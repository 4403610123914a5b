"""Statistics of columns, in bounded memory, and the stored sizes of columns of local files."""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import SplitArrowError
from ..fbs import arrow_generated as fbs
from ..formats.arrow.batch_rewriter import ColumnLayout, read_layout, walk
from ..formats.arrow.message import HeaderType, read_batch_layout, read_message_info
from ..formats.arrow.schema_rewriter import find_schema
from .local_input import open_local, open_selection

_SKETCH_SIZE = 2048
_HASH_BITS = 64
_MASK = (1 << _HASH_BITS) - 1


class DistinctSketch:
    """Estimates the number of distinct values from the smallest of their hashes.

    The estimate is exact up to 2048 values, and its standard error is 2 % beyond.
    """

    def __init__(self) -> None:
        self._hashes: set[int] = set()
        self._largest = _MASK

    def add(self, values: list[Any]) -> None:
        """Add values, which must be hashable."""
        limit, hashes = self._largest, self._hashes
        for value in values:
            number = hash((value,)) & _MASK
            if number <= limit:
                hashes.add(number)
        if len(hashes) > 2 * _SKETCH_SIZE:
            self._hashes = set(heapq.nsmallest(_SKETCH_SIZE, hashes))
            self._largest = max(self._hashes)

    def estimate(self) -> int:
        """Return the estimated number of distinct values."""
        if self._largest == _MASK and len(self._hashes) <= _SKETCH_SIZE:
            return len(self._hashes)
        largest = heapq.nsmallest(_SKETCH_SIZE, self._hashes)[-1]
        return round((_SKETCH_SIZE - 1) * (_MASK / max(largest, 1)))

    @property
    def is_exact(self) -> bool:
        """Whether the estimate is the exact number, apart from collisions of hashes."""
        return self._largest == _MASK and len(self._hashes) <= _SKETCH_SIZE


class ColumnStatistics:
    """Statistics of one column."""

    def __init__(self, name: str, type_name: str) -> None:
        self.name = name
        self.type = type_name
        self.nulls = 0
        """The number of nulls."""
        self.nbytes = 0
        """The size of the buffers in memory, in bytes."""
        self._extremes: Any = None
        self._has_extremes = True
        self._sketch: DistinctSketch | None = DistinctSketch()

    def add(self, column: Any) -> None:
        """Add the values of one batch, of a type that pyarrow supports."""
        self.nbytes += column.nbytes
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        self.nulls += _count_nulls(column)
        values = column
        if isinstance(column, pa.DictionaryArray):
            values = column.dictionary.take(pc.unique(column.indices).drop_null())
        if not _is_plain(values.type):  # pyarrow's functions crash for unions
            self._has_extremes, self._sketch = False, None
        if self._has_extremes:
            self._add_extremes(values)
        if self._sketch is not None:
            self._add_distinct(values)

    def _add_extremes(self, values: Any) -> None:
        try:
            found = pc.min_max(values)
            least, largest = found["min"], found["max"]
        except (pa.ArrowException, KeyError, NotImplementedError):
            self._has_extremes = False
            return
        if not least.is_valid:
            return
        pair = pa.array([least, largest], type=values.type)
        if self._extremes is not None:
            pair = pa.chunked_array([self._extremes, pair])
        found = pc.min_max(pair)
        self._extremes = pa.array([found["min"], found["max"]], type=values.type)

    def _add_distinct(self, values: Any) -> None:
        try:
            unique = pc.unique(values).drop_null()
            if pa.types.is_temporal(unique.type) and not pa.types.is_interval(unique.type):
                width = pa.int32() if unique.type.bit_width == 32 else pa.int64()
                unique = unique.view(width)
            if self._sketch is not None:
                self._sketch.add(unique.to_pylist())
        except (pa.ArrowException, TypeError, ValueError, KeyError, NotImplementedError):
            self._sketch = None

    @property
    def minimum(self) -> pa.Scalar[Any] | None:
        """The smallest value; None if the type has no order, or there is no value."""
        return None if self._extremes is None or not self._has_extremes else self._extremes[0]

    @property
    def maximum(self) -> pa.Scalar[Any] | None:
        """The largest value; see `minimum`."""
        return None if self._extremes is None or not self._has_extremes else self._extremes[1]

    @property
    def distinct(self) -> int | None:
        """The estimated number of distinct values; None for nested types."""
        return None if self._sketch is None else self._sketch.estimate()

    @property
    def is_distinct_exact(self) -> bool:
        """Whether `distinct` is exact."""
        return self._sketch is not None and self._sketch.is_exact


def _is_plain(data_type: Any) -> bool:
    """Return whether values have no children, and so an order and a hash."""
    types = pa.types
    return not (
        types.is_nested(data_type)
        or types.is_run_end_encoded(data_type)
        or types.is_null(data_type)
        or types.is_interval(data_type)
    )


def _count_nulls(column: Any) -> int:
    if isinstance(column, (pa.UnionArray, pa.RunEndEncodedArray)):
        missing: Any = pc.is_null(column)
        return int(pc.sum(missing).as_py() or 0)
    return column.null_count


_PARQUET = b"PAR1"


def measure_stored_sizes(location: str) -> dict[str, int]:
    """Return the stored size of each column of a file, compressed if it is, in bytes.

    Dictionaries of Arrow IPC do not count. The result is empty for anything but a file in Parquet
    or Arrow IPC, or for a file with two columns of one name.
    """
    path = Path(location)
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        is_parquet = file.read(4) == _PARQUET
    with contextlib.suppress(SplitArrowError, OSError, StopIteration):
        return _measure_parquet(path) if is_parquet else _measure_arrow(location)
    return {}


def _measure_parquet(path: Path) -> dict[str, int]:
    metadata = pq.read_metadata(path)
    sizes: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            sizes[column.path_in_schema.partition(".")[0]] += column.total_compressed_size
    return dict(sizes)


def _measure_arrow(location: str) -> dict[str, int]:
    with open_local(location) as dataset, open_selection(dataset, location) as stream:
        if not dataset.kind.startswith("arrow"):
            return {}
        names: list[str] = stream.schema.names
        if len(set(names)) < len(names):
            return {}
        layout = read_layout(find_schema(stream.schema_metadata))
        sizes = dict.fromkeys(names, 0)
        for message in stream.messages():
            if read_message_info(message.metadata).header_type is HeaderType.RECORD_BATCH:
                _add_batch(sizes, layout.columns, message.metadata)
        return sizes


def _add_batch(sizes: dict[str, int], columns: tuple[ColumnLayout, ...], metadata: Any) -> None:
    """Add the sizes of the buffers of one batch, whose unions are those of V5."""
    table: Any = fbs.Message.GetRootAs(metadata, 0).Header()
    batch = fbs.RecordBatch()
    batch.Init(table.Bytes, table.Pos)
    views = map(batch.VariadicBufferCounts, range(batch.VariadicBufferCountsLength()))
    buffers = iter(read_batch_layout(metadata).buffers)
    for name, column in zip(sizes, columns, strict=True):
        for each in walk(column):
            count = len(each.buffers) + (next(views, 0) if each.is_view else 0)
            sizes[name] += sum(next(buffers, (0, 0))[1] for _ in range(count))
