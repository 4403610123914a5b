"""Shards as local files: writing, checking and describing them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from ..errors import DatasetError
from ..formats.arrow.decoding import validate_memory
from .column_ranges import RangeTracker
from .manifest import ColumnRange, ShardEntry


def write_shard_file(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: pa.ipc.IpcWriteOptions | None = None,
) -> ShardEntry:
    """Write a shard, and return its entry. The entry's path is the name of the file.

    Raises `DatasetError` if the file cannot be written.
    """
    tracker, rows = RangeTracker(schema), 0
    try:
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, schema, options=options) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
                tracker.add(batch)
                rows += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"cannot write the shard {path}: {_take_first_line(error)}") from None
    return _make_entry(path, rows, tracker.ranges())


def inspect_shard_file(path: Path) -> tuple[pa.Schema, ShardEntry]:
    """Read an Arrow IPC file to its end, and return its schema and its entry.

    Raises `DatasetError` if it is not an Arrow IPC file, or its data is not valid.
    """
    try:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
            tracker, rows = RangeTracker(reader.schema), 0
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                validate_memory(batch)
                tracker.add(batch)
                rows += batch.num_rows
            return reader.schema, _make_entry(path, rows, tracker.ranges())
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{path} is not a valid Arrow IPC file, as a shard must be: {_take_first_line(error)}"
        ) from None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_shard_length(shard: ShardEntry, nbytes: int, location: str) -> None:
    """Check the length of a shard's file in bytes.

    Raises `DatasetError` if the manifest gives another length.
    """
    if nbytes != shard.nbytes:
        raise DatasetError(
            f"{location}/{shard.path} has {nbytes} bytes, but its manifest lists {shard.nbytes}"
        )


def _make_entry(path: Path, rows: int, columns: dict[str, ColumnRange]) -> ShardEntry:
    try:
        return ShardEntry(path.name, rows, path.stat().st_size, hash_file(path), columns)
    except OSError as error:
        raise DatasetError(f"cannot read the shard {path}: {error.strerror}") from None


def _take_first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
