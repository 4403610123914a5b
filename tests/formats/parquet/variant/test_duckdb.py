"""duckdb agrees on the Variants of Parquet files, but for the list in docs/guide/variant.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helpers.variant_readers import (
    Read,
    Texts,
    compare_drawn,
    compare_golden_files,
    list_differences,
)

duckdb = pytest.importorskip("duckdb")
LISTED = list_differences(1)


@pytest.fixture
def read() -> Iterator[Read]:
    with duckdb.connect() as connection:

        def read_columns(path: Path, names: Sequence[str]) -> list[Texts]:
            columns = ", ".join(f'"{name}"::JSON::VARCHAR' for name in names)
            rows = connection.sql(f"SELECT {columns} FROM '{path}'").fetchall()
            return [list(column) for column in zip(*rows, strict=True)]

        yield read_columns


def test_duckdb_agrees_on_drawn_variants_but_for_the_list(tmp_path: Path, read: Read) -> None:
    found = compare_drawn(tmp_path, read, LISTED)
    assert found == {name: text for name, text in LISTED.items() if isinstance(name, str)}


def test_duckdb_agrees_on_golden_files_but_for_the_list(
    parquet_test_data: Path, tmp_path: Path, read: Read
) -> None:
    def read_files(paths: Sequence[Path]) -> list[Texts]:
        return [read(path, ["var"])[0] for path in paths]

    assert compare_golden_files(parquet_test_data, tmp_path, read_files, LISTED) == {}
