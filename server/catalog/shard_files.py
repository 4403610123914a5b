"""Shards as files of this machine: writing them, and finding out what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from ...errors import DatasetError
from ...formats.manifest import ColumnRange, ShardEntry
from ...formats.ranges import RangeTracker


def write_shard_file(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: pa.ipc.IpcWriteOptions | None = None,
) -> ShardEntry:
    """Write a shard, and return what a manifest says of it; its path there is the file's name.

    Parameters
    ----------
    path : Path
        The file; there is none yet.
    schema : pyarrow.Schema
        The schema of the batches.
    batches : iterable of pyarrow.RecordBatch
        What is in it.
    options : pyarrow.ipc.IpcWriteOptions, optional
        How they are written.

    Raises
    ------
    DatasetError
        If they cannot be written.
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
        raise DatasetError(f"cannot write the shard {path}: {_line(error)}") from None
    return _entry(path, rows, tracker.ranges())


def describe_shard_file(path: Path) -> tuple[pa.Schema, ShardEntry]:
    """Return the schema of an Arrow IPC file, and what a manifest says of it; it is read whole.

    Raises
    ------
    DatasetError
        If it is no such file, or its data is not valid.
    """
    try:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
            tracker, rows = RangeTracker(reader.schema), 0
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                batch.validate(full=True)
                tracker.add(batch)
                rows += batch.num_rows
            return reader.schema, _entry(path, rows, tracker.ranges())
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path} is no shard: {_line(error)}") from None


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(path: Path, rows: int, columns: dict[str, ColumnRange]) -> ShardEntry:
    try:
        return ShardEntry(path.name, rows, path.stat().st_size, file_sha256(path), columns)
    except OSError as error:
        raise DatasetError(f"cannot read the shard {path}: {error.strerror}") from None


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
