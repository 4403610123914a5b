"""The stored sizes of the columns of a local file, from its metadata."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import SplitArrowError
from ..formats.arrow.batch_rewriter import ColumnLayout, read_layout, walk
from ..formats.arrow.message import HeaderType, read_batch_layout, read_message_info
from ..formats.arrow.schema import find_schema

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
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    sizes: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            sizes[column.path_in_schema.partition(".")[0]] += column.total_compressed_size
    return dict(sizes)


def _measure_arrow(location: str) -> dict[str, int]:
    from .local_input import open_local, open_selection

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
    from ..fbs import arrow_generated as fbs

    table: Any = fbs.Message.GetRootAs(metadata, 0).Header()
    batch = fbs.RecordBatch()
    batch.Init(table.Bytes, table.Pos)
    views = map(batch.VariadicBufferCounts, range(batch.VariadicBufferCountsLength()))
    buffers = iter(read_batch_layout(metadata).buffers)
    for name, column in zip(sizes, columns, strict=True):
        for each in walk(column):
            count = len(each.buffers) + (next(views, 0) if each.is_view else 0)
            sizes[name] += sum(next(buffers, (0, 0))[1] for _ in range(count))
