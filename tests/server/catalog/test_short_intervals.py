"""Selections of data with intervals of months, or of days and milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_short_intervals
from helpers.catalog import read_dataset
from helpers.files import write_file, write_stream
from splitarrow.filters import encode_filter
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.tables import TableDataset

BATCH = make_short_intervals()
EXPECTED = pa.Table.from_batches([BATCH])


def serve_folder(folder: Path) -> Any:
    (folder / "d" / "k=1").mkdir(parents=True)
    write_file(folder / "d" / "k=1" / "t.arrow", [BATCH])
    return open_dataset(str(folder / "d"))


DATASETS: dict[str, Callable[[Path], Any]] = {
    "file": lambda folder: open_dataset(str(write_file(folder / "t.arrow", [BATCH]))),
    "stream": lambda folder: open_dataset(str(write_stream(folder / "t.arrows", [BATCH]))),
    "table": lambda _: TableDataset(EXPECTED),
    "folder": serve_folder,
}


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize(
    ("condition", "rows"),
    [("n >= 3", [3, 4]), ("n <> 2", [0, 1, 3, 4]), ("months is null", [1]), ("n < 0", [])],
)
def test_a_filter_returns_its_rows(
    tmp_path: Path, kind: str, condition: str, rows: list[int]
) -> None:
    table = read_dataset(
        DATASETS[kind](tmp_path), filter=encode_filter(condition, EXPECTED.schema)
    ).table
    expected = [EXPECTED.slice(row, 1) for row in rows]
    own = table.select(EXPECTED.schema.names)
    assert own.schema.equals(EXPECTED.schema)
    assert own.equals(pa.concat_tables([EXPECTED.slice(0, 0), *expected]))


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize(
    ("arguments", "first", "end"),
    [({"limit": 2}, 0, 2), ({"offset": 1, "limit": 3}, 1, 4)],
)
def test_rows_are_selected(
    tmp_path: Path, kind: str, arguments: dict[str, Any], first: int, end: int
) -> None:
    table = read_dataset(DATASETS[kind](tmp_path), **arguments).table
    assert table.select(EXPECTED.schema.names).equals(EXPECTED.slice(first, end - first))


@pytest.mark.parametrize("kind", DATASETS)
def test_columns_and_fields_are_selected(tmp_path: Path, kind: str) -> None:
    columns = ("struct.m", "days", "n")
    table = read_dataset(
        DATASETS[kind](tmp_path), columns=columns, filter=encode_filter("n = 4", EXPECTED.schema)
    ).table
    fields = [EXPECTED["struct"].type.field("m").type, EXPECTED["days"].type, pa.int64()]
    assert table.schema.types == fields
    assert table.num_rows == 1
