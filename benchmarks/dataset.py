"""The data that every backend serves: one Arrow IPC file of batches of one size."""

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
"""The bytes of one row: 4 columns of float64 without nulls."""
SCHEMA = pa.schema([(name, pa.float64()) for name in "abcd"])

_STARTS = 1 << 16
_MAGIC_BYTES = 8
_PREFIX = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Dataset:
    """An Arrow IPC file whose batches all have the same size."""

    path: str
    """Where the file is."""
    batch_bytes: int
    """The size of each batch's body, in bytes."""
    batches: int
    """How many batches it has."""

    @property
    def batch_rows(self) -> int:
        """How many rows a batch has."""
        return self.batch_bytes // ROW_BYTES

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.batch_rows * self.batches

    @property
    def body_bytes(self) -> int:
        """How many bytes of body it has."""
        return self.batch_bytes * self.batches

    def body_offsets(self) -> list[int]:
        """Return where each body begins in the file, in bytes."""
        offsets: list[int] = []
        with (
            open(self.path, "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data,
        ):
            at = _MAGIC_BYTES
            at += _PREFIX.size + _PREFIX.unpack_from(data, at)[1]  # the schema has no body
            for _ in range(self.batches):
                at += _PREFIX.size + _PREFIX.unpack_from(data, at)[1]
                offsets.append(at)
                at += self.batch_bytes
        return offsets


def make_dataset(path: Path, batch_bytes: int, batches: int) -> Dataset:
    """Write a file of pseudo-random doubles; each batch differs from those near it.

    Parameters
    ----------
    path : Path
        Where to.
    batch_bytes : int
        The size of each batch's body, in bytes; a multiple of `ROW_BYTES`.
    batches : int
        How many batches.

    Raises
    ------
    DatasetError
        If there is no room, or the file cannot be written.
    """
    dataset = Dataset(str(path), batch_bytes, batches)
    rows = dataset.batch_rows
    pool = pc.random(rows + _STARTS, initializer=20260101)
    try:
        free = shutil.disk_usage(path.parent).free
        if free < dataset.body_bytes * 1.2:
            raise DatasetError(
                f"{path.parent} has room for {free / 1e9:.1f} GB; "
                f"a file of {dataset.body_bytes / 1e9:.1f} GB is needed"
            )
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for index in range(batches):
                starts = ((index * 7919 + column * 104729) % _STARTS for column in range(COLUMNS))
                columns = [pool.slice(start, rows) for start in starts]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    except OSError as error:
        raise DatasetError(f"cannot write {path}: {error.strerror or error}") from None
    return dataset
