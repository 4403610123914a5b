"""Synthetic taxi trips, the same in every run: the table of the demo and of some benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

BATCH_ROWS = 1 << 16

_FIRST_PICKUP = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECONDS_APART = 5e6
_PAYMENTS = ["card", "cash", "app", "invoice", "disputed"]
_AREAS = ["Harbour", "Market", "Station", "Garden", "River", "Mill", "Castle", "Airport", "Campus"]
_QUARTERS = ["North", "East", "South", "West", "Hill", "Square", "Bridge"]
_ZONES = [f"{area} {quarter}" for area in _AREAS for quarter in _QUARTERS]
_PLATES = [f"{chr(65 + i % 26)}{chr(65 + i // 26 % 26)}-{1000 + i * 7 % 9000}" for i in range(9000)]

_TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
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
    for first in range(0, rows, BATCH_ROWS):
        yield _batch(first, min(BATCH_ROWS, rows - first))


def write_trips(path: Path, rows: int) -> None:
    """Write the trips to an Arrow IPC file.

    Raises `OSError` if the file cannot be written.
    """
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
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
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
