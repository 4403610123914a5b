"""Datasets and streams as arguments of pandas, polars, DuckDB, NumPy and pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import UsageError

TABLE = pa.table({"n": [1, 2, 3], "text": ["a", None, "c"]})
FRAME = pl.DataFrame(TABLE)


@pytest.fixture(params=["dataset", "read", "open"])
def source(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A dataset, or a stream of it."""
    with (
        splitarrow.serve({"t": TABLE.to_batches(2)}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        if request.param == "dataset":
            yield client["t"]
        else:
            opened: Any = client.read if request.param == "read" else splitarrow.open
            with opened("t" if request.param == "read" else server.uri("t")) as stream:
                yield stream


@pytest.mark.parametrize(
    "convert",
    [pl.DataFrame, pl.from_arrow, pl.from_dataframe, lambda it: pl.LazyFrame(it).collect()],
)
def test_polars_makes_a_data_frame(source: Any, convert: Callable[[Any], Any]) -> None:
    frame = convert(source)
    assert isinstance(frame, pl.DataFrame)
    assert frame.equals(FRAME)


def test_pyarrow_makes_a_table(source: Any) -> None:
    assert pa.table(source) == TABLE


def test_duckdb_finds_a_variable(source: Any) -> None:
    relation: Any = duckdb.sql("from source")
    assert relation.fetchall() == FRAME.rows()


@pytest.mark.parametrize("convert", [pd.DataFrame, np.asarray, np.array])
def test_what_would_be_one_cell_is_refused(source: Any, convert: Callable[[Any], Any]) -> None:
    with pytest.raises(UsageError, match=r"is not one array; to_pandas\(\) returns"):
        convert(source)
    assert source.to_pandas().equals(TABLE.to_pandas())
