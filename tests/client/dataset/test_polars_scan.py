"""Lazy scans by polars return what polars finds in memory, and send no more than they need."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pytest
from polars import col

import splitarrow
from splitarrow import Client, Server
from splitarrow.errors import UsageError

NAN = math.nan
NOON = datetime(2026, 1, 2, 12, 0, 0, 1)
NANOSECONDS = int(NOON.replace(tzinfo=UTC).timestamp()) * 10**9 + 1000
ROME = ZoneInfo("Europe/Rome")
TABLE = pa.table(
    {
        "n": pa.array([1, 2, None, 4, 5, 2**53 + 1], pa.int64()),
        "u": pa.array([0, 1, 2, None, 2**64 - 1, 2**53 + 1], pa.uint64()),
        "x": pa.array([1.0, NAN, None, -0.0, math.inf, -NAN], pa.float64()),
        "f": pa.array([0.1, NAN, None, 0.0, 2.5, 1e9], pa.float32()),
        "s": pa.array(["", "apple", None, "banana", "Äpfel", "b%"], pa.string()),
        "b": pa.array([True, False, None, True, False, None], pa.bool_()),
        "d": pa.array([date(2026, 1, n) if n != 3 else None for n in range(1, 7)], pa.date32()),
        "ns": pa.array([NANOSECONDS + n for n in (0, 500, -1, 10**6, -(10**6), 10**9)]).cast(
            pa.timestamp("ns")
        ),
        "ms": pa.array([NOON, None, *(NOON + timedelta(days=n) for n in range(4))]).cast(
            pa.timestamp("ms"), safe=False
        ),
        "tz": pa.array([NOON.replace(tzinfo=UTC)] * 5 + [None], pa.timestamp("us", "Europe/Rome")),
        "c": pa.array(["a", "b", None, "a", "c", "b"]).dictionary_encode(),
        "st": [{"k": n} for n in range(6)],
        "bin": pa.array([b"", b"a", None, b"b", b"\xff", b"ab"], pa.binary()),
    }
)
FRAME = pl.DataFrame(TABLE)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    data = {"t": TABLE.to_batches(2), "empty": TABLE.slice(0, 0)}
    with splitarrow.serve(data, control="grpc://127.0.0.1:0") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with splitarrow.connect(server.control_uri or "") as client:
        yield client


@pytest.fixture
def scan(client: Client) -> Any:
    return client["t"].scan_polars()


PREDICATES = [
    *(col("n") > 1, col("n") <= 4, col("n") != 2, pl.lit(2) < col("n"), col("n") == 2**53),
    *(col("n") > 1.5, col("n") == float(2**53), col("n") * 2 == 4, col("n") % 2 == 0),
    *(col("u") > 2**63, col("u") == pl.lit(2**53, pl.Int64), col("u") > -1, col("n") > col("u")),
    *(col("x") > 0, col("x") >= NAN, col("x") == NAN, col("x") != NAN, col("x") < 1, col("x") != 1),
    *(~(col("x") < 1), col("x").is_nan(), col("x").is_not_nan(), col("x").is_in([NAN, None])),
    *(col("x").is_null(), col("x").is_not_null(), col("x") == 0, col("x") + 1 > 1),
    *(col("x").is_between(0, NAN), col("f") > 0.1, col("f") == 0.1, col("f") > col("x")),
    *(col("s") > "apple", col("s") == "", ~(col("s") == "apple"), col("s").is_in(["apple", None])),
    *(col("s").is_in(["apple", None], nulls_equal=True), ~col("s").is_in(["apple", None])),
    *(col("n").is_in([1, None, 5]), col("n").is_in([]), col("s").eq_missing(None)),
    *(col("n").is_in([1, None], nulls_equal=True), col("s").ne_missing("apple")),
    *(col("s").str.starts_with("b"), col("s").str.contains("b%", literal=True)),
    *(col("s").str.to_lowercase() == "äpfel", col("s").str.contains("^b"), col("s").is_null()),
    *(col("b"), ~col("b"), col("b") == False, col("b").is_null() | col("b")),  # noqa: E712
    *(col("b") ^ (col("n") > 1), (col("n") > 1) | (col("x") > 0), (col("n") > 1) & (col("x") > 0)),
    *(col("d") > date(2026, 1, 2), col("d").is_in([date(2026, 1, 1), None]), col("d") > NOON),
    *(
        col("ns") == NOON,
        col("ns") > NOON,
        col("ns") <= NOON,
        col("ns") != NOON,
        ~(col("ns") > NOON),
    ),
    *(col("ns").is_in([NOON]), col("ns") == pl.lit(NOON).dt.cast_time_unit("ms")),
    *(col("ns").is_between(NOON, NOON), col("ms") == NOON, col("ms") < NOON, col("ms") >= NOON),
    *(
        col("tz") == NOON.replace(tzinfo=UTC).astimezone(ROME),
        col("tz").is_null(),
        col("ns").dt.day() == 2,
    ),
    *(col("c") == "a", col("c") > "a", col("c").is_in(["a", None]), col("c").is_null()),
    *(col("st").struct.field("k") > 2, col("bin") > b"a", col("bin").is_null()),
    *(pl.lit(True), pl.lit(False), pl.lit(None, pl.Boolean), pl.all_horizontal(col("n", "u") > 1)),
]


@pytest.mark.parametrize("number", range(len(PREDICATES)))
def test_a_predicate_selects_the_rows_that_polars_does(scan: Any, number: int) -> None:
    predicate = PREDICATES[number]
    expected = FRAME.lazy().filter(predicate).collect()
    assert scan.filter(predicate).collect().equals(expected)
    assert (
        scan.filter(predicate, col("n") > 1)
        .select("n")
        .collect()
        .equals(expected.filter(col("n") > 1).select("n"))
    )


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_other_operations_return_what_polars_does(scan: Any, engine: Any) -> None:
    def collect_all(lazy: pl.LazyFrame) -> list[pl.DataFrame]:
        queries = [
            lazy,
            lazy.select("s", "n"),
            lazy.select(pl.len()),
            lazy.head(3).filter(col("n") > 1),
            lazy.filter(col("n") > 1).head(2),
            lazy.filter(col("n") > 1, col("x") > 0).head(1),
            lazy.slice(1, 3),
            lazy.tail(2),
            lazy.head(0),
            lazy.filter(col("n") > 10).select("s"),
            lazy.join(lazy.select("n", z="s"), on="n", maintain_order="left"),
            lazy.sort("n").filter(col("x") > 0),
        ]
        return [query.collect(engine=engine) for query in queries]

    for one, other in zip(collect_all(scan), collect_all(FRAME.lazy()), strict=True):
        assert one.equals(other)


def test_a_scan_of_no_rows_has_a_schema(client: Client) -> None:
    assert client["empty"].scan_polars().collect().equals(FRAME.clear())
    assert client["empty"].scan_polars().filter(col("n") > 1).collect().equals(FRAME.clear())


def test_categories_in_lists_and_structs_are_scanned_and_converted(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"n": [1, 2, 3], "l": [["x"], ["y", "x"], None], "s": [{"c": "a"}, None, {"c": "b"}]},
        schema={
            "n": pl.Int64,
            "l": pl.List(pl.Categorical),
            "s": pl.Struct({"c": pl.Enum(["a", "b"])}),
        },
    )
    frame.write_ipc(tmp_path / "t.arrow")
    with (
        splitarrow.serve(str(tmp_path / "t.arrow"), control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(str(server.control_uri)) as client,
    ):
        assert client["t"].scan_polars().filter(col("n") > 1).collect().equals(frame[1:])
        pandas = client["t"].to_pandas()
    assert [None if each is None else list(each) for each in pandas["l"]] == [
        ["x"],
        ["y", "x"],
        None,
    ]
    assert list(pandas["s"]) == [{"c": "a"}, None, {"c": "b"}]


@pytest.mark.parametrize(
    ("predicate", "rows"),
    [
        (col("n") > 2, 3),
        (col("s").is_in(["apple", None]) & (col("x") > 0), 1),
        ((col("d") == date(2026, 1, 2)) & (col("s").str.to_uppercase() == "APPLE"), 1),
        (col("ns") > NOON + timedelta(milliseconds=500), 1),
        (col("x") > 0, 6),
        (col("n").is_null(), 1),
    ],
)
def test_the_server_sends_only_what_may_match(
    server: Server, scan: Any, predicate: Any, rows: int
) -> None:
    before = server.stats()["rows"]
    scan.filter(predicate).collect()
    assert server.stats()["rows"] - before == rows


def test_the_server_sends_only_columns_and_rows_that_are_used(server: Server, scan: Any) -> None:
    before = server.stats()
    scan.collect()
    everything = server.stats()
    scan.select("n").head(2).collect()
    after = server.stats()
    assert after["rows"] - everything["rows"] == 2
    sent = everything["bytes_sent"] - before["bytes_sent"]
    assert after["bytes_sent"] - everything["bytes_sent"] < sent / 2


def test_a_scan_takes_the_options_of_a_read(client: Client) -> None:
    scan = client["t"].scan_polars(transport="tcp", batch_rows=1)
    assert scan.collect().equals(FRAME)
    with pytest.raises(UsageError, match="a scan takes no columns, limit; use select, filter"):
        client["t"].scan_polars(columns="n", limit=1)


def test_a_failure_of_a_read_ends_the_query(server: Server) -> None:
    with splitarrow.connect(server.control_uri or "") as client:
        server.add("gone", TABLE)
        scan = client["gone"].scan_polars()
        server.remove("gone")
        with pytest.raises(Exception, match="gone"):
            scan.collect()
