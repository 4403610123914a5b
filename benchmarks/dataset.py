"""The data that every backend serves: one Arrow IPC file of equal-sized batches."""

from __future__ import annotations

import mmap
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DatasetError

COLUMNS = 4
ROW_BYTES = 8 * COLUMNS
"""The size of a row in bytes: 4 columns of float64 without nulls."""
SCHEMA = pa.schema([(name, pa.float64()) for name in "abcd"])

_SEED = 20260101
_START_POSITIONS = 1 << 16
"""The number of positions of the pool of values at which a column can begin."""
_SPACE_FACTOR = 1.2
_MAGIC_BYTES = 8
_PREFIX = struct.Struct("<II")
"""The continuation marker and the metadata length that precede each message of the file."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """An Arrow IPC file whose batches all have the same size."""

    path: str
    """The path of the file."""
    batch_bytes: int
    """The size of each batch body, in bytes."""
    batches: int
    """The number of batches."""

    @property
    def batch_rows(self) -> int:
        """The number of rows of a batch."""
        return self.batch_bytes // ROW_BYTES

    @property
    def rows(self) -> int:
        """The number of rows of the file."""
        return self.batch_rows * self.batches

    @property
    def body_bytes(self) -> int:
        """The size of all bodies together, in bytes."""
        return self.batch_bytes * self.batches

    def body_offsets(self) -> list[int]:
        """Return the offset of each body in the file, in bytes."""
        offsets: list[int] = []
        with (
            open(self.path, "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data,
        ):
            position = _MAGIC_BYTES
            position += _PREFIX.size + _PREFIX.unpack_from(data, position)[1]  # the schema
            for _ in range(self.batches):
                position += _PREFIX.size + _PREFIX.unpack_from(data, position)[1]
                offsets.append(position)
                position += self.batch_bytes
        return offsets


def make_dataset(path: Path, batch_bytes: int, batches: int) -> Dataset:
    """Write a file of pseudo-random doubles. Batches that are close to each other differ.

    `batch_bytes` is the size of each batch body, in bytes; a multiple of `ROW_BYTES`. Raises
    `DatasetError` if the disk has too little space, or the file cannot be written.
    """
    dataset = Dataset(str(path), batch_bytes, batches)
    rows = dataset.batch_rows
    pool = pc.random(rows + _START_POSITIONS, initializer=_SEED)
    try:
        free = shutil.disk_usage(path.parent).free
        if free < dataset.body_bytes * _SPACE_FACTOR:
            raise DatasetError(
                f"{path.parent} has {free / 1e9:.1f} GB of free space, too little for a file of "
                f"{dataset.body_bytes / 1e9:.1f} GB; reduce the total or use another folder"
            )
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for index in range(batches):
                columns = [
                    pool.slice((index * 7919 + column * 104729) % _START_POSITIONS, rows)
                    for column in range(COLUMNS)
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    except OSError as error:
        raise DatasetError(f"cannot write {path}: {error.strerror or error}") from None
    return dataset
