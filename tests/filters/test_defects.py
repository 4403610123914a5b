"""Filters that once selected wrong rows or were refused, with the rows that they select."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.files import write_file

NAN = float("nan")
DAY = date(2026, 3, 1)
MIDNIGHT = datetime(2026, 3, 1)
MIDNIGHT_NS = 1_772_323_200 * 10**9
ONE_O_CLOCK = datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=1)))  # midnight in UTC
IDS = [uuid.UUID(int=number) for number in (1, 2, 3)]


def decimals(*values: str | None) -> list[Decimal | None]:
    return [None if value is None else Decimal(value) for value in values]


def make_polars(values: list[str | None], dtype: Any) -> Any:
    """Return a column of polars, whose dictionary has string views."""
    return pl.Series(values, dtype=dtype).to_arrow(compat_level=pl.CompatLevel.newest())


# Four rows. Each is a row group of the Parquet file, so that its statistics rule out the others.
COMMON: dict[str, Any] = {
    "row": pa.array([0, 1, 2, 3], pa.int32()),
    "d": pa.array(decimals("4.99", "5.00", "5.01", None), pa.decimal128(9, 2)),
    "signed": pa.array(decimals("-1.50", "1.00", "0.00", None), pa.decimal128(9, 2)),
    "d32": pa.array(decimals("4.99", "5.00", "5.01", None), pa.decimal32(5, 2)),
    "d64": pa.array(decimals("4.99", "5.00", "5.01", None), pa.decimal64(15, 2)),
    "d256": pa.array(decimals("4.99", "5.00", "5.01", None), pa.decimal256(60, 2)),
    "u8": pa.array([0, 5, 255, None], pa.uint8()),
    "u16": pa.array([0, 5, 65535, None], pa.uint16()),
    "u32": pa.array([2, 9, 7, 1], pa.uint32()),
    "u64": pa.array([1, 9, 2**64 - 1, None], pa.uint64()),
    "i64": pa.array([1, -1, -1, 0], pa.int64()),
    "n": pa.array([1, 2, None, 3], pa.int32()),
    "f": pa.array([1.0, 2.0, NAN, None]),
    "f16": pa.array([0.1, 1.5, NAN, None], pa.float16()),
    "day": pa.array([DAY] * 4, pa.date32()),
    "ts": pa.array(
        [datetime(2026, 3, 1, 5), MIDNIGHT, datetime(2026, 2, 28, 23, 59, 59), None],
        pa.timestamp("us"),
    ),
    "ns": pa.array([MIDNIGHT_NS + 1, MIDNIGHT_NS, MIDNIGHT_NS - 1, None], pa.timestamp("ns")),
    "zoned": pa.array(
        [MIDNIGHT_NS + 1, MIDNIGHT_NS, MIDNIGHT_NS - 1, None], pa.timestamp("ns", "Europe/Zurich")
    ),
    "t32": pa.array([time(1), time(2), time(3), None], pa.time32("ms")),
    "t64": pa.array([10**9, 2 * 10**9, 2 * 10**9 + 1, None], pa.time64("ns")),
    "duration": pa.array([-1, 86_400 * 10**6, 86_400 * 10**6 + 1, None], pa.duration("us")),
    "view": pa.array(["ab", "aab", "a much longer text b", None], pa.string_view()),
    "word": pa.array(["x", "y", "x", None]).dictionary_encode(),
    "fixed list": pa.array([[1, 2], [3, 4], None, [None, 5]], pa.list_(pa.int32(), 2)),
    "large list": pa.array([[1, 2], [], None, [None]], pa.large_list(pa.int32())),
    "list view": pa.array([[1, 2], [], None, [None]], pa.list_view(pa.int32())),
    "map": pa.array([[("k", 1)], [], None, [("k", None)]], pa.map_(pa.string(), pa.int32())),
    "id": pa.array([*(one.bytes for one in IDS), None], pa.uuid()),
    "st": pa.array(
        [
            {"x": 1, "inner": {"y": "a"}},
            {"x": 2, "inner": None},
            None,
            {"x": None, "inner": {"y": "b"}},
        ],
        pa.struct([("x", pa.int32()), ("inner", pa.struct([("y", pa.string())]))]),
    ),
}
ARROW_ONLY: dict[str, Any] = {
    "category": make_polars(["b", "a", "b", None], pl.Categorical),
    "enum": make_polars(["b", "a", "b", None], pl.Enum(["b", "a"])),
    "runs": pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 3, 4], pa.int32()), pa.array([7, 8, None], pa.int64())
    ),
    "interval": pa.array([(1, 2, 3), (0, 0, 0), None, (1, 0, 0)], pa.month_day_nano_interval()),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1], pa.int8()),
        [pa.array([1, 2, None, 4], pa.int64()), pa.array(["a", "b", "c", "d"])],
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1], pa.int8()),
        pa.array([0, 0, 1, 1], pa.int32()),
        [pa.array([1, None], pa.int64()), pa.array(["a", "b"])],
    ),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[splitarrow.Client]:
    """A client of a server with an Arrow file and a Parquet file."""
    folder = tmp_path_factory.mktemp("defects")
    batch = pa.record_batch({**COMMON, **ARROW_ONLY})
    write_file(folder / "rows.arrow", [batch])
    pq.write_table(pa.table(COMMON), folder / "rows.parquet", row_group_size=1)
    served = {name: folder / f"rows.{name}" for name in ("arrow", "parquet")}
    with (
        splitarrow.serve(served, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        yield client


class Case(NamedTuple):
    """A filter, and the rows that it selects."""

    filter: Any
    rows: list[int]
    is_arrow_only: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        return ("arrow",) if self.is_arrow_only else ("arrow", "parquet")

    def __str__(self) -> str:
        style = type(self.filter).__module__.partition(".")[0]
        return f"{style} {self.filter}"[:90].replace("\n", " ")


def both_ways(name: str, symbol: str, value: Any, rows: list[int]) -> list[Case]:
    """Return a comparison as a tuple, and as expressions of pyarrow and polars."""
    function = {"=": "__eq__", "<>": "__ne__", "<": "__lt__", "<=": "__le__"}
    function |= {">": "__gt__", ">=": "__ge__"}
    fields: list[Any] = [pc.field(name), pl.col(name)]
    compared = [getattr(field, function[symbol])(value) for field in fields]
    return [Case(filter, rows) for filter in ((name, symbol, value), *compared)]


d, f, n = pc.field("d"), pc.field("f"), pc.field("n")

DECIMALS = [
    Case("d <= 4.999", [0]),
    Case("d = 4.999", []),
    Case("d > 4.999", [1, 2]),
    Case("d >= 4.999", [1, 2]),
    Case("d < 4.999", [0]),
    Case("d <> 4.999", [0, 1, 2]),
    Case("4.999 < d", [1, 2]),
    Case("d IN (4.999, 5.01)", [2]),
    Case("d IN (4.999, 5.001)", []),
    Case("d NOT IN (4.999, 5.01)", [0, 1]),
    Case("d BETWEEN 4.999 AND 5.001", [1]),
    Case("d NOT BETWEEN 4.999 AND 5.001", [0, 2]),
    Case("d = 5.000", [1]),
    Case("d < 12345678901234567890123456789012345678.9", [0, 1, 2]),
    Case(("d", "in", [Decimal("4.999"), Decimal("5.01")]), [2]),
    Case(("d", "not in", [Decimal("4.999"), Decimal("5.01")]), [0, 1]),
    Case((d >= Decimal("4.999")) & (d <= Decimal("5.001")), [1]),
    *both_ways("d", "<=", Decimal("4.999"), [0]),
    *both_ways("d", "=", Decimal("4.999"), []),
    *both_ways("d", ">", Decimal("4.999"), [1, 2]),
    *both_ways("d", "<>", Decimal("4.999"), [0, 1, 2]),
    *both_ways("d", ">", 4.99, [1, 2]),
    *both_ways("d", "=", 4.99, [0]),
    *both_ways("d", "<=", 4.999, [0]),
]

UNSIGNED = [
    Case("u64 > -1", [0, 1, 2]),
    Case("u64 = -1", []),
    Case("u64 <> -1", [0, 1, 2]),
    Case("u64 < -1", []),
    Case("-1 < u64", [0, 1, 2]),
    Case("u32 > u64", [0]),
    Case("u64 = i64", [0]),
    Case("i64 = u64", [0]),
    Case("u64 > i64", [1, 2]),
    Case("u64 > u32", [2]),
    Case("u64 BETWEEN -5 AND 5", [0]),
    Case("u64 IN (-1, 9)", [1]),
    Case("u64 NOT IN (-1, 9)", [0, 2]),
    Case(pc.field("u32") > pc.field("u64"), [0]),
    Case(pc.field("u64") == pc.field("i64"), [0]),
    Case(pl.col("u64") > pl.col("u32"), [2]),
    Case(("u64", "in", [-1, 9]), [1]),
    *both_ways("u64", ">", -1, [0, 1, 2]),
    *both_ways("u64", "=", -1, []),
]

DATES = [
    Case("day = ts", [1]),
    Case("ts = day", [1]),
    Case("day <> ts", [0, 2]),
    Case("day < ts", [0]),
    Case("ts > day", [0]),
    Case("day > ts", [2]),
    Case("ts < day", [2]),
    Case("day >= ts", [1, 2]),
    Case("ts >= day", [0, 1]),
    Case("day < ns", [0]),
    Case("ns < day", [2]),
    Case("day = zoned", [1]),
    Case("zoned > day", [0]),
    Case(pc.field("day") == pc.field("ts"), [1]),
    Case(pc.field("day") < pc.field("ts"), [0]),
    Case(pc.field("ts") < pc.field("day"), [2]),
    Case(pl.col("day") < pl.col("ts"), [0]),
    Case(pl.col("ts") < pl.col("day"), [2]),
    Case("ns = ts", [1]),
    Case("ns > ts", [2]),
    Case("day = '2026-03-01 05:00:00'", []),
    Case("day < '2026-03-01 05:00:00'", [0, 1, 2, 3]),
    Case("day = TIMESTAMP '2026-03-01 00:00:00'", [0, 1, 2, 3]),
    Case(("day", "<", datetime(2026, 3, 1, 5)), [0, 1, 2, 3]),
    Case(("day", "=", datetime(2026, 3, 1, 5)), []),
]

ISIN = [
    Case(f.isin([1.0]), [0]),
    Case(~f.isin([1.0]), [1, 2, 3]),
    Case(f.isin([NAN]), [2]),
    Case(f.isin(pa.array([None], pa.float64())), [3]),
    Case(f.isin(pa.array([1.0, None])), [0, 3]),
    Case(~f.isin(pa.array([1.0, None])), [1, 2]),
    Case(~n.isin(pa.array([1], pa.int32())), [1, 2, 3]),
    Case(n.isin(pa.array([None], pa.int32())), [2]),
    Case(~n.isin(pa.array([1, None], pa.int32())), [1, 3]),
    Case(~n.isin([1, None]), [1, 3]),
]

TIMESTAMPS = [
    *[
        Case(f"{name} {symbol} {literal}", rows)
        for name in ("ns", "zoned")
        for literal in (
            "'2026-03-01'",
            "'2026-03-01 00:00:00'",
            "'2026-03-01T00:00:00'",
            "'2026-03-01 01:00:00+01:00'",
            "'2026-03-01T00:00:00Z'",
            "DATE '2026-03-01'",
            "TIMESTAMP '2026-03-01 00:00:00'",
            "timestamp '2026-03-01 00:00:00'",
            "TIMESTAMPTZ '2026-03-01 01:00:00+01'",
        )
        for symbol, rows in (("=", [1]), (">", [0]), ("<=", [1, 2]))
    ],
    *[
        case
        for value in (DAY, MIDNIGHT, ONE_O_CLOCK)
        for case in (Case(("ns", ">", value), [0]), Case(("zoned", "<=", value), [1, 2]))
    ],
    Case(("ns", "=", "2026-03-01"), [1]),
    Case(("ns", "in", [DAY, MIDNIGHT]), [1]),
    *[
        Case(pc.field("ns") > pa.scalar(MIDNIGHT, pa.timestamp(unit)), [0])
        for unit in ("s", "ms", "us", "ns")
    ],
    *[
        Case(pc.field("zoned") <= pa.scalar(ONE_O_CLOCK, pa.timestamp(unit, "UTC")), [1, 2])
        for unit in ("s", "ms", "us", "ns")
    ],
    Case(pc.field("ns") > DAY, [0]),
    Case(pc.field("ns") == MIDNIGHT, [1]),
    Case(pc.field("ns") == pa.scalar(MIDNIGHT_NS + 1, pa.timestamp("ns")), [0]),
    Case(pc.field("ts") < pa.scalar(MIDNIGHT_NS, pa.timestamp("ns")), [2]),
    Case(pc.field("ts") == pa.scalar(MIDNIGHT_NS + 1, pa.timestamp("ns")), []),
    Case(pc.field("ts") < pa.scalar(MIDNIGHT_NS + 1, pa.timestamp("ns")), [1, 2]),
    Case(pl.col("ns") > MIDNIGHT, [0]),
    Case(pl.col("ns") > DAY, [0]),
    Case(pl.col("zoned") <= MIDNIGHT.replace(tzinfo=UTC), [1, 2]),
    Case("ts >= timestamp '2026-03-01'", [0, 1]),
]

NUMBERS = [
    *both_ways("u8", ">", 4, [1, 2]),
    *both_ways("u8", "<", 256, [0, 1, 2]),
    *both_ways("u16", "=", 65535, [2]),
    *both_ways("u16", ">", -1, [0, 1, 2]),
    *both_ways("u32", ">", 5, [1, 2]),
    *both_ways("u32", "<", 2.5, [0, 3]),
    *both_ways("u64", ">", 5, [1, 2]),
    Case(("u64", "=", 2**64 - 1), [2]),
    Case(pc.field("u64") == pa.scalar(2**64 - 1, pa.uint64()), [2]),
    Case(pl.col("u64") == 2**64 - 1, [2]),
    Case("u64 = 18446744073709551615", [2]),
    Case("u64 >= 18446744073709551615", [2]),
    Case("u64 < 18446744073709551616", [0, 1, 2]),
    *both_ways("i64", ">", 0.5, [0]),
    *both_ways("i64", "<", -0.5, [1, 2]),
    *both_ways("n", ">", 1.5, [1, 3]),
    Case("i64 > 0.5", [0]),
    Case("n = 1.0", [0]),
    Case("n IN (1.5, 2)", [1]),
    *both_ways("signed", "<", 0, [0]),
    *both_ways("signed", "=", 1, [1]),
    Case("signed < 0", [0]),
    Case("signed = 1", [1]),
    Case("signed >= 0", [1, 2]),
    Case("signed IN (0, 1)", [1, 2]),
    Case("signed = i64", []),
    Case("i64 > signed", [0]),
]

TEXTS = [
    Case("category = 'b'", [0, 2], True),
    Case("category < 'b'", [1], True),
    Case("category LIKE 'b%'", [0, 2], True),
    Case(("category", "in", ["a", "c"]), [1], True),
    Case(pc.field("category") == "b", [0, 2], True),
    Case(pl.col("category") == "b", [0, 2], True),
    Case("enum = 'b'", [0, 2], True),
    Case("enum < 'b'", [1], True),
    Case(("enum", "<>", "b"), [1], True),
    Case(pc.field("enum") == "b", [0, 2], True),
    Case(pl.col("enum") == "b", [0, 2], True),
    Case("view LIKE 'a%'", [0, 1, 2]),
    Case("view LIKE '%b'", [0, 1, 2]),
    Case("view LIKE '%longer%'", [2]),
    Case("view LIKE 'a_b'", [1]),
    Case("view LIKE 'a%t_b'", [2]),
    Case("view LIKE 'a%t b'", [2]),
    Case("view NOT LIKE 'a_b'", [0, 2]),
    Case("view ILIKE 'A_B'", [1]),
    Case("view = 'aab'", [1]),
    Case("view < 'aac'", [1, 2]),
    Case("starts_with(view, 'aa')", [1]),
    Case(pc.starts_with(pc.field("view"), "aa"), [1]),
    Case("word LIKE 'x%'", [0, 2]),
    Case(("id", "=", IDS[1]), [1]),
    Case(f"id > '{IDS[0]}'", [1, 2]),
]

NULLS = [
    *[
        case
        for name in ("fixed list", "large list", "list view", "map", "st")
        for case in (
            Case(f'"{name}" IS NULL', [2]),
            Case(f'"{name}" IS NOT NULL', [0, 1, 3]),
            Case(pc.field(name).is_null(), [2]),
            Case(pc.field(name).is_valid(), [0, 1, 3]),
            Case(pl.col(name).is_null(), [2]),
        )
    ],
    *[
        case
        for name in ("d256", "duration", "ns", "id")
        for case in (
            Case(f"{name} IS NULL", [3]),
            Case(f"{name} is not null", [0, 1, 2]),
            Case(pc.field(name).is_null(), [3]),
        )
    ],
    *[
        case
        for name in ("interval", "sparse union", "dense union")
        for case in (
            Case(f'"{name}" IS NULL', [2], True),
            Case(f'"{name}" IS NOT NULL', [0, 1, 3], True),
            Case(pc.field(name).is_null(), [2], True),
        )
    ],
]

TYPES = [
    Case("t32 > '01:30:00'", [1, 2]),
    Case("t32 = TIME '02:00:00'", [1]),
    Case("t32 < TIME '02:00:00.0005'", [0, 1]),
    *both_ways("t32", "<=", time(2), [0, 1]),
    Case("t64 = TIME '00:00:02'", [1]),
    Case("t64 > '00:00:02'", [2]),
    Case("t64 BETWEEN TIME '00:00:01' AND TIME '00:00:02'", [0, 1]),
    *both_ways("t64", "<=", time(0, 0, 2), [0, 1]),
    Case(pc.field("t64") > pa.scalar(2, pa.time32("s")), [2]),
    Case("f16 = 0.1", [0]),
    Case("f16 > 1", [1]),
    Case("f16 < 1.6", [0, 1]),
    Case("f16 <> 1.5", [0, 2]),
    Case(("f16", "=", 0.1), [0]),
    Case(pc.field("f16") == 0.1, []),
    Case(pc.field("f16") > 1.0, [1]),
    *[
        case
        for name in ("d32", "d64", "d256")
        for case in (
            Case(f"{name} <= 4.999", [0]),
            Case(f"{name} > 4.999", [1, 2]),
            Case(f"{name} = 5", [1]),
            Case(f"{name} IN (5, 5.01)", [1, 2]),
            Case((name, ">", Decimal("4.999")), [1, 2]),
            Case(pc.field(name) > Decimal("4.999"), [1, 2]),
            Case(f"{name} = d", [0, 1, 2]),
        )
    ],
    Case("runs = 7", [0, 1], True),
    Case("runs > 7", [2], True),
    Case("runs IS NULL", [3], True),
    Case("runs <> n", [0, 1], True),
    Case(("runs", "in", [8, 9]), [2], True),
    Case(pc.field("runs") > 7, [2], True),
    Case("duration < INTERVAL '0 seconds'", [0]),
    Case("duration = INTERVAL '1 day'", [1]),
    Case("duration > INTERVAL '24 hours'", [2]),
    *both_ways("duration", "<=", timedelta(days=1), [0, 1]),
    Case(pc.field("duration") == pa.scalar(86_400, pa.duration("s")), [1]),
]

NESTED = [
    Case("st.x > 1", [1]),
    Case("st.x = 1", [0]),
    Case("st.x IS NULL", [2, 3]),
    Case("st.inner.y = 'a'", [0]),
    Case("st.inner.y IS NULL", [1, 2]),
    Case("st.inner IS NULL", [1, 2]),
    Case("st.x = n", [0, 1]),
    Case(("st.x", ">", 1), [1]),
    Case(("st.inner.y", "in", ["a", "c"]), [0]),
    Case(pc.field(("st", "x")) > 1, [1]),
    Case(pc.field(("st", "inner", "y")) == "b", [3]),
    Case(pl.col("st").struct.field("x") > 1, [1]),
    Case(pl.col("st").struct.field("inner").struct.field("y") == "a", [0]),
]

GROUPS = {
    "decimals": DECIMALS,
    "unsigned": UNSIGNED,
    "dates": DATES,
    "isin": ISIN,
    "timestamps": TIMESTAMPS,
    "numbers": NUMBERS,
    "texts": TEXTS,
    "nulls": NULLS,
    "types": TYPES,
    "nested": NESTED,
}


@pytest.mark.parametrize(
    ("source", "case"),
    [
        pytest.param(source, case, id=f"{group}-{source}-{case}")
        for group, cases in GROUPS.items()
        for case in cases
        for source in case.sources
    ],
)
def test_a_filter_selects_these_rows(client: splitarrow.Client, source: str, case: Case) -> None:
    with client.read(source, filter=case.filter, columns="row") as stream:
        assert stream.read_all()["row"].to_pylist() == case.rows


@pytest.mark.parametrize("source", ["arrow", "parquet"])
@pytest.mark.parametrize(
    ("columns", "filter", "expected"),
    [
        ("st.x", None, {"st.x": [1, 2, None, None]}),
        (["st.inner.y", "row"], "st.x = 1", {"st.inner.y": ["a"], "row": [0]}),
        (["st.x", "st.inner"], "row > 2", {"st.x": [None], "st.inner": [{"y": "b"}]}),
        (["row", "st.x"], "u32 > 2", {"row": [1, 2], "st.x": [2, None]}),
    ],
)
def test_fields_of_structs_are_columns(
    client: splitarrow.Client, source: str, columns: Any, filter: Any, expected: dict[str, Any]
) -> None:
    with client.read(source, columns=columns, filter=filter) as stream:
        assert stream.read_all().to_pydict() == expected
