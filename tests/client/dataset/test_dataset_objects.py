"""Datasets as objects, blocking and asynchronous: what they show, and how they read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.client.dataset.aio import AsyncDataset
from splitarrow.client.dataset.dataset import Dataset
from splitarrow.client.rpc.info import DatasetInfo

BATCHES = [pa.record_batch({"n": [number]}) for number in range(3)]
SCHEMA = BATCHES[0].schema


def info(rows: int | None, name: str = "d") -> DatasetInfo:
    return DatasetInfo(name, rows, None, SCHEMA, "table", "7")


@pytest.mark.parametrize("kind", [Dataset, AsyncDataset])
def test_a_dataset_shows_what_the_server_knows(kind: Any) -> None:
    dataset = kind(print, info(0, "DatasetInfo"))
    assert (dataset.name, dataset.schema, len(dataset)) == ("DatasetInfo", SCHEMA, 0)
    assert dataset  # although it has no rows
    assert repr(dataset) == repr(dataset.info).replace("DatasetInfo", kind.__name__, 1)
    assert dataset._repr_html_() == dataset.info._repr_html_()
    with pytest.raises(TypeError, match="does not know the number of rows of 'd'; read it"):
        len(kind(print, info(None)))


def test_a_dataset_has_the_facts_of_what_a_read_returns() -> None:
    first, second = pa.table({"n": [1, 2, 3]}), pa.table({"n": [1], "t": ["a"]})
    server = splitarrow.serve({"d": first}, control="grpc://127.0.0.1:0")
    with server, splitarrow.connect(str(server.control_uri)) as client:
        for dataset in (client["d"], dict(client.items())["d"]):
            for table in (second, first):
                server.remove("d")
                server.add("d", table)
                assert (len(dataset), dataset.num_rows) == (table.num_rows, table.num_rows)
                assert (dataset.shape, dataset.columns) == (table.shape, table.column_names)
                assert dataset.schema == dataset.to_arrow().schema == table.schema
    assert "3 rows" in repr(dataset)  # the last facts, although the server is gone


def test_a_dataset_passes_the_options_of_a_read_on() -> None:
    calls: list[tuple[Any, ...]] = []

    class Stream:
        def __enter__(self) -> Any:
            calls.append(("enter",))
            return self

        def __exit__(self, *error: object) -> None:
            calls.append(("exit",))

        def __iter__(self) -> Any:
            return iter(BATCHES)

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments, **options: (name, *arguments)

    def read(name: str, **options: Any) -> Any:
        calls.append((name, options))
        return Stream()

    dataset = Dataset(read, info(3))
    assert isinstance(dataset.read(columns="n"), Stream)
    assert calls.pop() == ("d", {"columns": "n"})
    results: list[Any] = [
        (dataset.head(), ("read_all",), {"limit": 5}),
        (dataset.head(2, columns="n"), ("read_all",), {"limit": 2, "columns": "n"}),
        (dataset.to_arrow(limit=1), ("read_all",), {"limit": 1}),
        (dataset.to_pandas(limit=1), ("to_pandas",), {"limit": 1}),
        (dataset.to_polars(limit=1), ("to_polars",), {"limit": 1}),
        (dataset.to_numpy(limit=1), ("to_numpy",), {"limit": 1}),
        (dataset.to_duckdb("c", limit=1), ("to_duckdb", "c"), {"limit": 1}),
        (dataset.to_duckdb(), ("to_duckdb", None), {}),
        (list(dataset), BATCHES, {}),
    ]
    for number, (result, expected, options) in enumerate(results):
        assert result == expected
        assert calls[3 * number : 3 * number + 3] == [("d", options), ("enter",), ("exit",)]
    assert dataset.__arrow_c_stream__("schema") == ("__arrow_c_stream__", "schema")


async def test_an_asynchronous_dataset_passes_the_options_of_a_read_on() -> None:
    calls: list[tuple[Any, ...]] = []

    class Stream:
        async def __aenter__(self) -> Any:
            calls.append(("enter",))
            return self

        async def __aexit__(self, *error: object) -> None:
            calls.append(("exit",))

        async def __aiter__(self) -> Any:
            for batch in BATCHES:
                yield batch

        def __getattr__(self, name: str) -> Any:
            async def convert(*arguments: Any) -> Any:
                return (name, *arguments)

            return convert

    def read(name: str, **options: Any) -> Any:
        calls.append((name, options))
        return Stream()

    dataset = AsyncDataset(read, info(3))
    assert isinstance(dataset.read(columns="n"), Stream)
    assert calls.pop() == ("d", {"columns": "n"})
    results: list[Any] = [
        (await dataset.head(), ("read_all",), {"limit": 5}),
        (await dataset.head(2, columns="n"), ("read_all",), {"limit": 2, "columns": "n"}),
        (await dataset.to_arrow(limit=1), ("read_all",), {"limit": 1}),
        (await dataset.to_pandas(limit=1), ("to_pandas",), {"limit": 1}),
        (await dataset.to_polars(limit=1), ("to_polars",), {"limit": 1}),
        (await dataset.to_numpy(limit=1), ("to_numpy",), {"limit": 1}),
        (await dataset.to_duckdb("c", limit=1), ("to_duckdb", "c"), {"limit": 1}),
        (await dataset.to_duckdb(), ("to_duckdb", None), {}),
        ([batch async for batch in dataset], BATCHES, {}),
    ]
    for number, (result, expected, options) in enumerate(results):
        assert result == expected
        assert calls[3 * number : 3 * number + 3] == [("d", options), ("enter",), ("exit",)]
