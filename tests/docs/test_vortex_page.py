"""The sizes that docs/guide/vortex.md states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.package import ROOT
from splitarrow.formats.arrow.encoder import MessageEncoder
from splitarrow.formats.vortex.encoder import ArrayEncoder

PAGE = (ROOT / "docs" / "guide" / "vortex.md").read_text()
ROWS = 1 << 17
RANDOM = np.random.default_rng(7)


def take(texts: list[str]) -> Any:
    places: Any = pa.array(RANDOM.integers(0, len(texts), ROWS))
    return pa.array(texts).take(places)


COLUMNS: dict[str, Callable[[], Any]] = {
    "integers from 0 to 99": lambda: pa.array(RANDOM.integers(0, 100, ROWS)),
    "timestamps, 1 s apart on average": lambda: pa.array(
        np.cumsum(RANDOM.integers(0, 2_000_000, ROWS))
    ).cast(pa.timestamp("us")),
    "floats with two decimals": lambda: pa.array(np.round(RANDOM.normal(size=ROWS) * 50, 2)),
    "random floats": lambda: pa.array(RANDOM.random(ROWS)),
    "40 different texts": lambda: take([f"category {number}" for number in range(40)]),
    "URLs, all different": lambda: pa.array(
        [f"https://example.org/{number * 7919 % ROWS}/page" for number in range(ROWS)]
    ),
}


def read_table() -> dict[str, list[float]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: [float(each) for each in row[1:]] for row in cells if row[0] in COLUMNS}


def test_every_column_has_a_row() -> None:
    assert read_table().keys() == COLUMNS.keys()


@pytest.mark.parametrize("name", COLUMNS)
def test_the_sizes_are_true(name: str) -> None:
    batch = pa.record_batch([COLUMNS[name]()], names=["column"])
    found: list[float] = []
    for codec in ("lz4", "zstd"):
        encoder = MessageEncoder(batch.schema, codec)
        found.append(batch.nbytes / encoder.encode(batch)[-1].body_length)
        encoder.close()
    found.append(batch.nbytes / ArrayEncoder(batch.schema).encode(batch).header.body_size)
    assert [round(each, 1) for each in found] == pytest.approx(read_table()[name], rel=0.15)
