"""Filters in SQL, as tuples and as expressions of pyarrow and polars select the same rows."""

from __future__ import annotations

import operator
import sys
from datetime import UTC, date, datetime
from functools import reduce
from typing import Any
from uuid import UUID

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from splitarrow.errors import MissingExtraError, UsageError
from splitarrow.filters import encode_filter, parse_filter
from splitarrow.filters.expressions import convert_polars

TABLE = pa.table(
    {
        "id": pa.array(range(6), pa.int32()),
        "delay": pa.array([1, 70, None, 90, -5, 60], pa.int16()),
        "ratio": pa.array([0.5, None, 1.5, 2.0, -1.0, float("nan")]),
        "carrier": pa.array(["AA", "BB", "AA", None, "CC", "AAB"]),
        "code": pa.array(["x", "y", None, "x", "y", "z"]).dictionary_encode(),
        "day": pa.array([date(2026, 1, n) if n else None for n in range(6)], pa.date32()),
        "at": pa.array([datetime(2026, 1, n + 1, tzinfo=UTC) for n in range(6)]),
        "ok": pa.array([True, False, None, True, False, True]),
        "price": pa.array([100, 250, None, 300, 0, 1], pa.int64()).cast(pa.decimal128(21, 2)),
    }
)


@pytest.fixture(scope="module")
def client() -> Any:
    server = splitarrow.serve({"flights": TABLE}, control="grpc://127.0.0.1:0")
    with server, splitarrow.connect(server.control_uri or "") as client:
        yield client


@pytest.mark.parametrize(
    "condition",
    [
        "delay > 60 and carrier = 'BB'",
        "delay >= 60 OR carrier = 'CC'",
        "NOT (delay > 60)",
        "delay > 59.5",
        "delay <> 70",
        "60 < delay",
        "delay > 100000",
        "delay BETWEEN 1 AND 70",
        "delay NOT BETWEEN 1 AND 70",
        "delay + 10 > 75",
        "delay * 2 - id < 10",
        "delay IN (1, 90)",
        "delay NOT IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)",
        "carrier NOT IN ('AA', 'BB')",
        "carrier IS NULL",
        "carrier IS NOT NULL AND delay IS NULL",
        "carrier LIKE 'AA%'",
        "carrier LIKE '%B'",
        "carrier NOT LIKE '%A%'",
        "code = 'x'",
        "code IN ('y', 'z')",
        "day >= DATE '2026-01-03'",
        "day >= '2026-01-03'",
        "ok",
        "NOT ok",
        "ok IS NOT TRUE",
        "ok = false",
        "ratio < -0.5",
        "price > 250",
        '"delay" = -5',
        "starts_with(carrier, 'A')",
        "id / 2 > 1",
        "id < delay",
        "id = ratio",
        "ratio < id",
        "delay < 60",
        "delay <= 60",
        "delay = 59.5",
        "delay IN (1.5, 70)",
        "id IN (0, 2, 6, 7, 8, 9, 10, 11)",
        "id IN (0, 2, 6, 7, 8, 9, 10, 11, 12)",
        "carrier LIKE 'AA'",
        "carrier LIKE '%A%'",
        "carrier LIKE 'A_B'",
        "carrier LIKE '_%_'",
        "carrier ILIKE 'a%b'",
        "carrier IN ('AA', NULL)",
        "carrier NOT IN ('AA', NULL)",
        "delay IS DISTINCT FROM id",
        "delay IS NOT DISTINCT FROM NULL",
        "price > 2.499",
        "price * 2 > 5",
        "\"at\" >= DATE '2026-01-03'",
        'day < "at"',
        "contains(carrier, 'AB')",
        "isnan(ratio)",
        "ok IS TRUE",
        "ok IS FALSE",
        "id - delay > 0",
        "ratio * 2 = 1",
        "(id) >= (2)",
        " AND ".join(f"id <> {n}" for n in range(13) if n != 3),
        " OR ".join(f"id = {n} AND delay > {n}" for n in range(6)),
    ],
)
def test_sql_selects_what_duckdb_selects(client: Any, condition: str) -> None:
    connection = duckdb.connect()
    connection.register("flights", TABLE)
    rows = connection.execute(f"SELECT id FROM flights WHERE {condition} ORDER BY id").fetchall()
    found = client.read("flights", columns="id", filter=condition).read_all()
    assert found["id"].to_pylist() == [row[0] for row in rows]


def test_times_with_a_time_zone(client: Any) -> None:
    filters = ["at > TIMESTAMPTZ '2026-01-04 00:00:00Z'", "at > '2026-01-04T00:00:00Z'"]
    for condition in (*filters, ("at", ">", datetime(2026, 1, 4, tzinfo=UTC))):
        found = client.read("flights", columns="id", filter=condition).read_all()
        assert found["id"].to_pylist() == [4, 5]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (("delay", ">", 60), [1, 3]),
        ([("delay", ">", 60), ("carrier", "=", "BB")], [1]),
        ([["delay", "<", 0], ["code", "==", "z"]], [4, 5]),
        ([[("delay", "<", 0)], [("delay", ">", 60), ("ok", "=", True)]], [3, 4]),
        pytest.param(("carrier", "in", {"AA", "CC"}), [0, 2, 4], id="in a set"),
        (("carrier", "not in", ["AA", "CC"]), [1, 5]),
        pytest.param([("id", "!=", n) for n in range(13) if n != 3], [3], id="12 conditions"),
        (pc.field("delay") > 60, [1, 3]),
        (pl.col("delay") > 60, [1, 3]),
        ((pl.col("delay") > 60) & (pl.col("carrier") == "BB"), [1]),
        (pl.col("carrier").is_in(["AA", "CC"]), [0, 2, 4]),
        (pl.col("carrier").is_null(), [3]),
        (pl.col("carrier").str.starts_with("A"), [0, 2, 5]),
    ],
    ids=str,
)
def test_tuples_and_expressions(client: Any, filter: Any, expected: list[int]) -> None:
    found = client.read("flights", columns=["id"], filter=filter).read_all()
    assert found["id"].to_pylist() == expected


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ("delay >", "'delay >' is malformed near '>': a value is missing$"),
        ("delay > 1; drop table x", "expected one condition"),
        ("", "expected one condition"),
        ("dealy > 1", "no column 'dealy'; did you mean 'delay'"),
        ("delay > 'late'", "'late' cannot be compared with a column of type int16"),
        ("delay", "delay is not a condition"),
        ("carrier LIKE 'A' ESCAPE '!'", "has an ESCAPE clause"),
        ("delay LIKE 'a%'", "delay has the type int16; expected text"),
        ("delay > 1 + 2", "computes with literals alone"),
        ("delay = NULL", "use IS NULL"),
        ("upper(carrier) = 'AA'", "is not supported here"),
        ("delay IN (SELECT 1)", "not"),
        ("carrier + 1 > 2", "computes with a value of the type string"),
        ((), "empty"),
        (("delay", ">"), r"expected \('delay', '>', 60\)"),
        (("delay", "~", 1), "operators"),
        (("carrier", "in", "AA"), "operators"),
        (("carrier", "in", []), "empty"),
        (("nope", "=", 1), "no column 'nope'"),
        (3, "filter is a int; expected a SQL condition"),
        (pl.col("nope") > 1, "nope"),
        (pl.col("carrier").str.to_lowercase() == "a", "has a part that filters lack"),
        (pc.utf8_lower(pc.field("carrier")) == "a", "it calls utf8_lower, which filters lack"),
        (pc.field(0) > 1, "refer to columns by name"),
        (pc.field("nope") > 1, "there is no column 'nope'"),
    ],
    ids=str,
)
def test_a_wrong_filter_is_explained(filter: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encode_filter(filter, TABLE.schema)


def test_sql_without_its_parser_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    monkeypatch.delitem(sys.modules, "splitarrow.filters.sql", raising=False)
    with pytest.raises(MissingExtraError, match="pip install sqlglot"):
        parse_filter("delay > 1", TABLE.schema)


UUIDS = [UUID(int=number << 64) for number in range(20)]


@pytest.fixture(scope="module")
def extended() -> Any:
    """A client of a dataset with types that Substrait does not know."""
    interval = pa.month_day_nano_interval()
    columns: dict[str, Any] = {
        "n": range(20),
        "u": pa.array([each.bytes for each in UUIDS], pa.uuid()),
        "j": pa.array(['{"n": 1}', "2"] * 10, pa.json_()),
        "i": pa.nulls(20, interval),
        "l": pa.array([[UUIDS[0].bytes]] * 20, pa.list_(pa.binary(16))).cast(pa.list_(pa.uuid())),
    }
    with (
        splitarrow.serve({"data": pa.table(columns)}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(str(server.control_uri)) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        pytest.param("n > 17", [18, 19], id="another column"),
        pytest.param(f"u = '{UUIDS[7]}'", [7], id="text"),
        pytest.param(("u", "=", UUIDS[7]), [7], id="UUID"),
        pytest.param(("u", ">", str(UUIDS[17])), [18, 19], id="order"),
        pytest.param(("u", "in", [UUID(int=9), *UUIDS[3:15]]), [*range(3, 15)], id="set"),
        pytest.param("u is null", [], id="null"),
        pytest.param("j = '2' and n < 4", [1, 3], id="JSON"),
        pytest.param(pc.field("n") == 5, [5], id="expression"),
    ],
)
def test_columns_that_substrait_does_not_know(
    extended: Any, filter: Any, expected: list[int]
) -> None:
    with extended.read("data", columns=["n"], filter=filter) as stream:
        assert stream.read_all()["n"].to_pylist() == expected


@pytest.mark.parametrize("value", ["abc", 5, 1.5])
def test_a_value_that_is_no_uuid_is_named(extended: Any, value: Any) -> None:
    message = rf"{value!r} cannot be compared with a column of type extension<arrow.uuid>"
    with pytest.raises(UsageError, match=message):
        extended.read("data", filter=("u", "=", value))


def test_a_filter_without_a_control_plane() -> None:
    with splitarrow.serve({"flights": TABLE}) as server:
        uri = server.uri("flights")
        with splitarrow.open(uri, columns="id", filter="delay > 60") as stream:
            assert stream.read_all()["id"].to_pylist() == [1, 3]


async def test_a_filter_without_a_control_plane_in_the_async_api() -> None:
    with splitarrow.serve({"flights": TABLE}) as server:
        uri = server.uri("flights")
        async with splitarrow.aio.open(uri, columns="id", filter=("delay", ">", 60)) as stream:
            assert (await stream.read_all())["id"].to_pylist() == [1, 3]


@pytest.mark.parametrize("combined", [operator.and_, operator.or_])
def test_a_long_condition_of_polars_is_not_deep(combined: Any) -> None:
    chain = reduce(combined, [pl.col("n") == number for number in range(150)])
    assert len(convert_polars(chain).arguments) == 150
