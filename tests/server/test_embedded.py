"""The names of datasets that are served from this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import splitarrow
from splitarrow.errors import UsageError

TABLE = pa.table({"n": [1, 2, 3]})


def read(server: splitarrow.Server, name: str) -> pa.Table:
    with server, splitarrow.open(server.uri(name)) as stream:
        return stream.read_all()


def test_a_path_names_its_dataset(tmp_path: Path) -> None:
    file = tmp_path / "flights.arrow"
    feather.write_feather(TABLE, file, compression="uncompressed")
    parquet.write_table(TABLE, tmp_path / "trips.parquet")
    for path in (file, str(file)):
        assert read(splitarrow.serve(path), "flights") == TABLE
    both = [file, str(tmp_path / "trips.parquet")]
    assert read(splitarrow.serve(both), "flights") == TABLE
    assert read(splitarrow.serve(both), "trips") == TABLE


@pytest.mark.parametrize("data", [TABLE, TABLE.to_batches(), TABLE.to_reader()], ids=type)
def test_other_data_is_named_table(data: Any) -> None:
    assert read(splitarrow.serve(data), "table") == TABLE


def test_two_paths_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "flights.arrow" for folder in "ab"]
    with pytest.raises(UsageError, match=r"two datasets are named 'flights': .*; pass a dict from"):
        splitarrow.serve(paths)


@pytest.mark.parametrize("data", [3, None, ["flights.arrow", TABLE]])
def test_what_is_no_dataset_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match=r"expected|serve"):
        splitarrow.serve(data)
