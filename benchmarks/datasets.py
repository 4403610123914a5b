"""The data of benchmarks: a file of equal-sized batches, and synthetic taxi trips.

The demo serves the trips.
"""

from __future__ import annotations

import mmap
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
class BatchFile:
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


def make_dataset(path: Path, batch_bytes: int, batches: int) -> BatchFile:
    """Write a file of pseudo-random doubles. Batches that are close to each other differ.

    `batch_bytes` is a multiple of `ROW_BYTES`. Raises `DatasetError` if the disk has too little
    space, or the file cannot be written.
    """
    dataset = BatchFile(str(path), batch_bytes, batches)
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


TRIP_BATCH_ROWS = 1 << 16

_FIRST_PICKUP = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECONDS_APART = 5e6
_PAYMENTS = ["card", "cash", "app", "invoice", "disputed"]
_AREAS = ["Harbour", "Market", "Station", "Garden", "River", "Mill", "Castle", "Airport", "Campus"]
_QUARTERS = ["North", "East", "South", "West", "Hill", "Square", "Bridge"]
_ZONES = [f"{area} {quarter}" for area in _AREAS for quarter in _QUARTERS]
_PLATES = [f"{chr(65 + i % 26)}{chr(65 + i // 26 % 26)}-{1000 + i * 7 % 9000}" for i in range(9000)]

_TIMESTAMP = pa.timestamp("us", "UTC")
TRIP_SCHEMA = pa.schema(
    [
        ("trip_id", pa.int64()),
        ("pickup_at", _TIMESTAMP),
        ("dropoff_at", _TIMESTAMP),
        ("plate", pa.string()),
        ("passengers", pa.int8()),
        ("pickup_zone", pa.string()),
        ("dropoff_zone", pa.string()),
        ("pickup_longitude", pa.float64()),
        ("pickup_latitude", pa.float64()),
        ("dropoff_longitude", pa.float64()),
        ("dropoff_latitude", pa.float64()),
        ("distance_km", pa.float64()),
        ("payment", pa.dictionary(pa.int8(), pa.string())),
        ("fare", pa.float64()),
        ("tip", pa.float64()),
        ("tolls", pa.float64()),
        ("total", pa.float64()),
    ]
)
"""The schema of the table. The number of passengers and the tip may be null."""


def generate_trips(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the trips in the order of their pickup."""
    for first in range(0, rows, TRIP_BATCH_ROWS):
        yield _batch(first, min(TRIP_BATCH_ROWS, rows - first))


def write_trips(path: Path, rows: int) -> None:
    """Write the trips to an Arrow IPC file."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, TRIP_SCHEMA) as writer:
        for batch in generate_trips(rows):
            writer.write_batch(batch)


def _batch(first: int, rows: int) -> pa.RecordBatch:
    seeds = iter(range(first * 100, first * 100 + 100))

    def scaled(values: Any, factor: float, start: float = 0.0) -> Any:
        return pc.add(pc.multiply(values, factor), start)

    def uniform(low: float, high: float) -> Any:
        return scaled(pc.random(rows, initializer=next(seeds)), high - low, low)

    def index(count: int, data_type: pa.DataType | None = None) -> Any:
        return pc.cast(pc.floor(uniform(0, count)), data_type or pa.int32())

    def mask(share: float) -> Any:
        return pc.less(uniform(0, 1), pa.scalar(share))

    def with_nulls(values: Any, valid_share: float) -> Any:
        return pc.if_else(mask(valid_share), values, pa.scalar(None, values.type))

    def round_to_cents(values: Any) -> Any:
        return pc.round(values, 2)

    ids: Any = pa.arange(first, first + rows)  # pyright: ignore[reportAttributeAccessIssue]
    since = scaled(pc.add(pc.cast(ids, pa.float64()), uniform(0, 1)), _MICROSECONDS_APART)
    begin = int(_FIRST_PICKUP.timestamp()) * 1_000_000
    pickup = pc.add(pc.cast(pc.floor(since), pa.int64()), begin)
    distance = pc.add(pc.power(uniform(0.2, 4.5), 2.0), uniform(0.1, 2.0))
    duration = pc.multiply(distance, uniform(90e6, 260e6))
    dropoff = pc.add(pickup, pc.cast(pc.floor(duration), pa.int64()))
    fare = round_to_cents(scaled(distance, 2.1, 3.5))
    tip = with_nulls(round_to_cents(pc.multiply(fare, uniform(0, 0.3))), 0.7)
    tolls = pc.if_else(mask(0.06), 6.5, 0.0)
    total = round_to_cents(pc.add(pc.add(fare, pc.fill_null(tip, 0.0)), tolls))
    zones = pa.array(_ZONES)
    columns = [
        ids,
        pc.cast(pickup, _TIMESTAMP),
        pc.cast(dropoff, _TIMESTAMP),
        pa.array(_PLATES).take(index(len(_PLATES))),
        with_nulls(pc.add(index(5, pa.int8()), pa.scalar(1, pa.int8())), 0.97),
        zones.take(index(len(_ZONES))),
        zones.take(index(len(_ZONES))),
        uniform(13.1, 13.7),
        uniform(52.3, 52.7),
        uniform(13.1, 13.7),
        uniform(52.3, 52.7),
        distance,
        pa.DictionaryArray.from_arrays(index(len(_PAYMENTS), pa.int8()), pa.array(_PAYMENTS)),
        fare,
        tip,
        tolls,
        total,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TRIP_SCHEMA)
