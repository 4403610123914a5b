"""A dataset as an object, and clients as collections that can be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import splitarrow
from splitarrow import Limits, Server, aio
from splitarrow.errors import NotFoundError

TABLE = pa.table({"n": range(10), "name": [f"<b>{n}" for n in range(10)]})
TOKENS = '[[tokens]]\nname = "anna"\ntoken = "a-long-token-of-anna"\ndatasets = ["*"]\n'


@pytest.fixture
def server() -> Iterator[Server]:
    with splitarrow.serve({"numbers": TABLE}, control="grpc://127.0.0.1:0") as server:
        yield server


def test_a_dataset_reads_many_times(server: Server) -> None:
    with splitarrow.connect(server.control_uri or "") as client:
        numbers = client["numbers"]
        assert (numbers.name, numbers.schema, len(numbers)) == ("numbers", TABLE.schema, 10)
        assert (numbers.columns, numbers.num_columns) == (["n", "name"], 2)
        assert (numbers.num_rows, numbers.shape) == (10, (10, 2))
        for _ in range(2):
            assert numbers.to_arrow() == TABLE
        assert numbers.to_table(columns="n") == TABLE.select(["n"])
        assert numbers.head() == TABLE.slice(0, 5)
        assert numbers.head(2, columns="n", filter="n > 3")["n"].to_pylist() == [4, 5]
        assert numbers.to_pandas(limit=3).equals(TABLE.slice(0, 3).to_pandas())
        assert numbers.to_polars()["n"].to_list() == list(range(10))
        assert numbers.to_numpy(columns="n")["n"].tolist() == list(range(10))
        assert pl.DataFrame(numbers)["n"].to_list() == list(range(10))
        assert pa.table(numbers) == TABLE
        assert numbers.to_duckdb(columns="n").fetchall() == [(n,) for n in range(10)]
        assert sum(batch.num_rows for batch in numbers) == 10


async def test_a_dataset_in_the_async_api(server: Server) -> None:
    async with aio.connect(server.control_uri or "") as client:
        assert [name async for name in client] == ["numbers"]
        numbers = await client.dataset("numbers")
        assert len(numbers) == 10
        assert numbers.shape == (10, 2)
        assert await numbers.to_table() == await numbers.to_arrow() == TABLE
        assert await numbers.head(2) == TABLE.slice(0, 2)
        assert (await numbers.to_pandas()).equals(TABLE.to_pandas())
        assert (await numbers.to_polars())["n"].to_list() == list(range(10))
        assert (await numbers.to_numpy(columns="n"))["n"].tolist() == list(range(10))
        assert (await numbers.to_duckdb()).fetchall()[0] == (0, "<b>0")
        assert sum([batch.num_rows async for batch in numbers]) == 10


def test_a_client_is_a_collection(server: Server) -> None:
    with splitarrow.connect(server.control_uri or "") as client:
        assert list(client) == ["numbers"]
        assert "numbers" in client
        assert "letters" not in client
        assert 3 not in client
        with pytest.raises(NotFoundError):
            client["letters"]
        assert isinstance(client, Mapping)
        assert len(client) == 1
        assert list(client.keys()) == ["numbers"]
        assert [dataset.num_rows for dataset in client.values()] == [10]
        assert {name: dataset.to_table() for name, dataset in client.items()} == {"numbers": TABLE}
        assert client.get("numbers").to_arrow() == TABLE
        assert client.get("letters") is None
        server.remove("numbers")
        assert client  # although it has no datasets
        assert len(client) == 0


def test_clients_of_equal_datasets_differ(server: Server) -> None:
    uri = server.control_uri or ""
    with splitarrow.connect(uri) as one, splitarrow.connect(uri) as other:
        assert one != other
        assert len({one, other, one}) == 2


async def test_clients_can_be_pickled(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    servers = [
        splitarrow.serve({name: TABLE}, control="grpc://127.0.0.1:0", token_file=tokens)
        for name in ("numbers", "others")
    ]
    uris = [server.control_uri or "" for server in servers]
    with servers[0], servers[1]:
        for uri in (uris[0], uris):
            with splitarrow.connect(uri, "a-long-token-of-anna") as client:
                copy = pickle.loads(pickle.dumps(client))
            with copy:
                assert copy["numbers"].to_arrow() == TABLE
            async with aio.connect(uri, "a-long-token-of-anna") as client:
                copy = pickle.loads(pickle.dumps(client))
            async with copy:
                assert (await copy.info("numbers")).rows == 10


def test_representations_have_two_lines(server: Server) -> None:
    with splitarrow.connect(server.control_uri or "") as client:
        dataset = client["numbers"]
        facts = f"10 rows, {dataset.info.bytes} B, table"
        columns = "  n: int64, name: string"
        assert repr(dataset) == f"<splitarrow.Dataset 'numbers': {facts}>\n{columns}"
        assert repr(dataset.info) == repr(dataset).replace("Dataset", "DatasetInfo")
        assert "<b>" not in dataset._repr_html_()
        with dataset.read() as one, splitarrow.open(server.uri("numbers")) as other:
            assert repr(one).startswith("<splitarrow.DatasetStream 'numbers': open, ")
            assert repr(other).splitlines()[1] == columns
            for shown in (client, server, dataset, one, other):
                assert len(repr(shown).splitlines()) == 2
                html = shown._repr_html_()
                assert html.count("<div>") == html.count("</div>") == 1
    assert "1 dataset (" in repr(server)


def test_limits_show_what_differs_from_the_defaults() -> None:
    assert repr(Limits()) == "Limits()"
    assert repr(Limits(nesting=3)) == "Limits(nesting=3)"
