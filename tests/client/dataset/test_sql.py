"""SQL over the datasets of a client, by DuckDB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from splitarrow import Client, aio
from splitarrow.client.arguments import Read
from splitarrow.client.dataset.dataset import DatasetStream
from splitarrow.client.dataset.sql import QueryStream, run_query
from splitarrow.errors import (
    ClosedError,
    ConnectionLostError,
    DeniedError,
    NotFoundError,
    UsageError,
)

FLIGHTS = pa.table({"Carrier": ["AA", "BB", "AA"], "delay": [70, 90, 5], "id": [1, 2, 3]})
NAMES = pa.table({"code": ["AA", "BB"], "name": ["Alpha", "Beta"]})
TOKENS = """
[[tokens]]
name = "anna"
token = "a-long-token-of-anna"
datasets = ["flights"]
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    datasets = {"flights": FLIGHTS, "names": NAMES, "a/b": NAMES}
    server = splitarrow.serve(datasets, control="grpc://127.0.0.1:0")
    with server, splitarrow.connect(server.control_uri or "") as client:
        yield client


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT sum(delay) AS s FROM flights", [{"s": 165}]),
        ("SELECT count(*) AS n FROM flights", [{"n": 3}]),
        ("SELECT * FROM names ORDER BY code LIMIT 1", [{"code": "AA", "name": "Alpha"}]),
        ("SELECT name FROM \"a/b\" WHERE code = 'BB'", [{"name": "Beta"}]),
        (
            "WITH late AS (SELECT * FROM flights WHERE delay > 60) "
            "SELECT name, count(*) AS n FROM late JOIN names ON carrier = code "
            "GROUP BY name ORDER BY name",
            [{"name": "Alpha", "n": 1}, {"name": "Beta", "n": 1}],
        ),
        (
            "SELECT a.id FROM flights a JOIN flights b ON a.delay < b.delay ORDER BY a.id",
            [{"id": 1}, {"id": 3}, {"id": 3}],
        ),
    ],
)
def test_queries(client: Client, query: str, expected: list[dict[str, object]]) -> None:
    assert client.sql(query).to_pylist() == expected


def test_only_the_columns_that_a_query_uses_are_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    original = Client._open

    def record(self: Client, one: Read) -> DatasetStream:
        read.append((one.request.dataset, one.request.columns))
        return original(self, one)

    monkeypatch.setattr(Client, "_open", record)
    client.sql("SELECT max(delay) FROM flights WHERE carrier = 'AA'")
    assert read == [("flights", ("Carrier", "delay"))]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT COLUMNS('^d') FROM flights", ["delay"]),
        ("SELECT max(COLUMNS(*)) FROM flights", ["Carrier", "delay", "id"]),
        ("SELECT * EXCLUDE (id) FROM flights", ["Carrier", "delay"]),
        ("SELECT * LIKE 'd%' FROM flights", ["delay"]),
        ("SELECT unnest(f) FROM flights f", ["Carrier", "delay", "id"]),
    ],
)
def test_a_query_may_select_columns_that_it_does_not_name(
    client: Client, query: str, names: list[str]
) -> None:
    assert client.sql(query).column_names == names


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", "one SELECT statement|malformed"),
        ("DROP TABLE flights", "one SELECT statement"),
        ("SELECT 1; SELECT 2", "one SELECT statement"),
        ("SELECT dealy FROM flights", "dealy"),
        ("SELECT * FROM read_csv('/etc/passwd')", "the query failed"),
    ],
)
def test_a_wrong_query_is_explained(client: Client, query: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        client.sql(query)


def test_a_query_has_the_rights_of_its_caller(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    datasets = {"flights": FLIGHTS, "names": NAMES}
    uri = "grpc://127.0.0.1:0"
    server = splitarrow.serve(datasets, control=uri, token_file=tokens)
    with server, splitarrow.connect(server.control_uri or "", "a-long-token-of-anna") as client:
        assert client.sql("SELECT count(*) AS n FROM flights").to_pylist() == [{"n": 3}]
        with pytest.raises((NotFoundError, DeniedError)):
            client.sql("SELECT * FROM flights, names")


async def test_queries_in_the_async_api() -> None:
    with splitarrow.serve({"flights": FLIGHTS}, control="grpc://127.0.0.1:0") as server:
        async with aio.connect(server.control_uri or "") as client:
            assert (await client.sql("SELECT min(delay) AS m FROM flights"))["m"][0].as_py() == 5


def test_read_returns_the_result_of_a_query_as_a_stream(client: Client) -> None:
    query = "SELECT id, delay FROM flights WHERE delay > 60 ORDER BY id"
    choices: list[dict[str, Any]] = [{}, {"transport": "tcp", "parallel": 1}]
    for options in choices:
        with client.read(sql=query, **options) as stream:
            assert stream.schema.names == ["id", "delay"]
            assert stream.transport == "sql"
            assert stream.read_all().to_pylist() == [
                {"id": 1, "delay": 70},
                {"id": 2, "delay": 90},
            ]
            assert (stream.rows_received, stream.is_exhausted) == (2, True)
    stream = client.read(sql=query)
    assert stream.head(1).num_rows == 1
    with pytest.raises(ClosedError):
        next(stream)
    assert client.read(sql="SELECT * FROM flights WHERE false").read_all().num_rows == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": "flights"}, "'flights'"),
        ({"columns": "id", "limit": 3}, "columns, limit"),
        ({"filter": "id > 1"}, "filter"),
        ({"version": "x", "shards": [0], "batches": (0, 1)}, "shards, batches, version"),
    ],
)
def test_read_refuses_a_selection_beside_a_query(
    client: Client, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=f"sql cannot be combined with {named}"):
        client.read(sql="SELECT * FROM flights", **options)
    with pytest.raises(UsageError, match="name a dataset to read, or give sql="):
        client.read()


def test_the_options_of_a_query_apply_to_its_datasets(client: Client) -> None:
    with pytest.raises(UsageError, match="'flights' is not available over 'ucx'"):
        client.read(sql="SELECT * FROM flights", transport="ucx")


async def test_the_asynchronous_read_takes_a_query(client: Client) -> None:
    async with (
        aio.connect(client.uri) as asynchronous,
        asynchronous.read(sql="SELECT max(delay) AS m FROM flights") as stream,
    ):
        assert (await stream.read_all()).to_pylist() == [{"m": 90}]


class Failing(DatasetStream):
    """A dataset whose connection breaks after its first batch."""

    def __init__(self) -> None:
        super().__init__("flights", FLIGHTS.schema, (), 1, 0)
        self._batches = FLIGHTS.to_batches()

    def __next__(self) -> pa.RecordBatch:
        if self._batches:
            return self._batches.pop()
        self._error = ConnectionLostError("lost", stream="flights")
        raise self._error


def test_the_error_of_a_dataset_is_that_of_the_query() -> None:
    """DuckDB reports it as text only."""
    opened: list[Failing] = []

    def read(name: str, columns: list[str] | None) -> DatasetStream:
        opened.append(Failing())
        return opened[-1]

    with pytest.raises(ConnectionLostError) as caught:
        run_query("SELECT sum(delay) FROM flights", lambda name: FLIGHTS.schema, read)
    (stream,) = opened
    assert caught.value is stream.error
    assert stream._closed


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT count(*) FROM flights", [("flights", ["Carrier"])]),
        ("SELECT * FROM flights", [("flights", ["Carrier", "delay", "id"])]),
        (
            "SELECT f.id FROM flights f JOIN names ON f.CARRIER = code",
            [("flights", ["Carrier", "id"]), ("names", ["code"])],
        ),
        ("SELECT nothing FROM flights", [("flights", None)]),
        ("SELECT 1 AS n", []),
    ],
)
def test_each_dataset_is_read_once_with_the_columns_in_use(
    query: str, columns: list[tuple[str, list[str] | None]]
) -> None:
    tables = {"flights": FLIGHTS, "names": NAMES}
    asked: list[tuple[str, list[str] | None]] = []

    def read(name: str, columns: list[str] | None) -> DatasetStream:
        asked.append((name, columns))
        return QueryStream(tables[name] if columns is None else tables[name].select(columns))

    with contextlib.suppress(UsageError):
        run_query(query, lambda name: tables[name].schema, read)
    assert asked == columns


def test_a_query_sees_no_variables_of_this_process() -> None:
    hidden = NAMES
    assert hidden.num_rows
    query = "SELECT * FROM query('SELECT * FROM hidden')"
    with pytest.raises(UsageError, match=r"the query failed: .*hidden"):
        run_query(query, lambda name: NAMES.schema, lambda name, columns: QueryStream(NAMES))


def test_the_text_of_a_failure_is_one_short_line() -> None:
    text = "a " * 400
    with pytest.raises(UsageError) as caught:
        run_query(f"SELECT error('{text}\n')", lambda name: NAMES.schema, print)  # pyright: ignore[reportArgumentType]
    assert "\n" not in caught.value.message
    assert len(caught.value.message) == len("the query failed: ") + 500
