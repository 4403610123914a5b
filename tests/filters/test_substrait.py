"""Substrait expressions of other clients select the rows that pyarrow selects with them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from splitarrow.errors import InvalidDataError, UsageError
from splitarrow.filters.binding import bind
from splitarrow.filters.evaluation import evaluate
from splitarrow.filters.substrait import decode_substrait
from splitarrow.filters.tree import Call, Cast, Column, Instant, Literal
from splitarrow.proto.SubstraitFilter_pb2 import ExtendedExpression

F: Any = pc.field
functions: Any = pc
TABLE = pa.table(
    {
        "n": pa.array([1, None, 3, -4], pa.int32()),
        "st": pa.array(
            [{"x": 1, "y": {"z": "a"}}, None, {"x": 3, "y": None}, {"x": None, "y": {"z": "d"}}]
        ),
        "t": ["ab", None, "b", "abc"],
        "u": pa.array([1, 2, None, 2**32 - 1], pa.uint32()),
        "d": pa.array(
            [Decimal("1.50"), None, Decimal("-3.25"), Decimal("0.00")], pa.decimal128(9, 2)
        ),
        "day": pa.array([date(2026, 1, n + 1) for n in range(4)]),
        "at": pa.array([datetime(2026, 1, n + 1) for n in range(4)], pa.timestamp("us")),
        "tz": pa.array([datetime(2026, 1, n + 1, tzinfo=UTC) for n in range(4)]),
        "clock": pa.array([time(n) for n in range(4)], pa.time64("us")),
        "f": pa.array([0.5, float("nan"), None, 2.0]),
        "b": pa.array([b"a", b"b", None, b"\xff"]),
        "ok": pa.array([True, None, False, True]),
    }
)


@pytest.mark.parametrize(
    "expression",
    [
        F("n") > 1,
        ~(F("n") >= 3),
        F("n").isin([1, 3]),
        F(("st", "x")) > 1,
        F(("st", "y", "z")) == "a",
        functions.starts_with(F("t"), "ab"),
        functions.ends_with(F("t"), "b"),
        functions.match_substring(F("t"), "b") & F("ok"),
        F("u") == pa.scalar(2**32 - 1, pa.uint32()),
        F("d") < pa.scalar(Decimal("1.00"), pa.decimal128(9, 2)),
        F("day") >= date(2026, 1, 3),
        F("at") >= datetime(2026, 1, 3),
        F("tz") < datetime(2026, 1, 3, tzinfo=UTC),
        F("clock") > pa.scalar(time(1), pa.time64("us")),
        F("n") + 1 > 2,
        F("n") * 2 - 1 < 0,
        F("n") / 2 == 1,
        F("n").is_null() | (F("f") > 1),
        functions.is_nan(F("f")),
        F("t").is_valid() & (F("n") != 3),
        functions.if_else(F("n") > 1, "x", F("t")) == "x",
        functions.coalesce(F("t"), pc.scalar("none")) == "none",
        F("n").cast(pa.int64(), safe=False) == 3,
        F("b") == pa.scalar(b"\xff"),
        F("n") == pa.scalar(None, pa.int32()),
        functions.sqrt(F("f")) < 1,
        functions.abs(F("n")) == 4,
    ],
    ids=str,
)
def test_the_same_rows_as_pyarrow(expression: Any) -> None:
    data = bytes(expression.to_substrait(TABLE.schema))
    batch = TABLE.combine_chunks().to_batches()[0]
    bound = bind(decode_substrait(data), flatten(TABLE).schema)
    flat = flatten(pa.Table.from_batches([batch]))
    columns = {index: column.combine_chunks() for index, column in enumerate(flat.columns)}
    mask = evaluate(bound, columns, 4)
    expected = TABLE.append_column("row", pa.array(range(4))).filter(expression)["row"]
    assert TABLE.append_column("row", pa.array(range(4))).filter(mask)["row"].equals(expected)


def decode(expression: Any, data_type: Any) -> Any:
    return decode_substrait(bytes(expression.to_substrait(pa.schema([("x", data_type)]))))


@pytest.mark.parametrize(
    "data_type",
    [
        *(pa.int8(), pa.uint16(), pa.uint64(), pa.float32(), pa.bool_(), pa.string()),
        *(pa.decimal128(9, 2), pa.decimal128(38, 0), pa.binary(), pa.binary(3), pa.date32()),
        *(pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_a_cast_keeps_its_type(data_type: Any) -> None:
    decoded = decode(F("x").cast(data_type, safe=False).is_null(), pa.large_string())
    assert decoded == Call("is null", (Cast(Column("x"), data_type, safe=False),))


@pytest.mark.parametrize(
    ("value", "expected", "is_number"),
    [
        (pa.scalar(-7, pa.int8()), -7, True),
        (pa.scalar(2**64 - 1, pa.uint64()), 2**64 - 1, True),
        (pa.scalar(1.5, pa.float32()), 1.5, True),
        (pa.scalar(True), True, False),
        (pa.scalar(None, pa.string()), None, False),
        (pa.scalar(b"abc", pa.binary(3)), b"abc", False),
        (pa.scalar(Decimal("-1.25"), pa.decimal128(9, 2)), Decimal("-1.25"), False),
        (pa.scalar(1, pa.date32()), Instant("date", 86_400 * 10**9), False),
        (pa.scalar(5, pa.time64("us")), Instant("time", 5000), False),
        (pa.scalar(5, pa.timestamp("ms")), Instant("timestamp", 5_000_000), False),
        (pa.scalar(5, pa.timestamp("us", "UTC")), Instant("timestamptz", 5000), False),
    ],
    ids=str,
)
def test_a_literal_keeps_its_value(value: Any, expected: Any, is_number: bool) -> None:
    """A number in a column is of the type that the client knows, whatever the server has."""
    column = Cast(Column("x"), value.type) if is_number else Column("x")
    assert decode(F("x") == pc.scalar(value), value.type) == Call("=", (column, Literal(expected)))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("precision_timestamp", {"precision": 0, "value": 7}, Instant("timestamp", 7 * 10**9)),
        ("precision_timestamp_tz", {"precision": 9, "value": 7}, Instant("timestamptz", 7)),
        ("precision_time", {"precision": 10, "value": 7}, "has the precision 10"),
        ("precision_time", {"precision": -1, "value": 7}, "has the precision -1"),
        ("uuid", bytes(15) + b"\x01", "00000000-0000-0000-0000-000000000001"),
        ("uuid", bytes(17), "literal of the type uuid"),
        ("var_char", {"value": "ab"}, "ab"),
    ],
)
def test_literals_of_other_clients_are_read(name: str, value: Any, expected: Any) -> None:
    message = ExtendedExpression.FromString(bytes((F("n") > 1).to_substrait(TABLE.schema)))
    function = message.referred_expr[0].expression.scalar_function
    literal: Any = type(function.arguments[1].value.literal)(**{name: value})
    function.arguments[1].value.literal.CopyFrom(literal)
    if isinstance(expected, str) and " " in expected:
        with pytest.raises(InvalidDataError, match=expected):
            decode_substrait(message.SerializeToString())
    else:
        decoded = decode_substrait(message.SerializeToString())
        assert decoded == Call(">", (Cast(Column("n"), pa.int32()), Literal(expected)))


def flatten(table: pa.Table) -> pa.Table:
    """Add the fields of structs as columns, as a server does that is asked for them."""
    added = {
        "st.x": functions.struct_field(table["st"], "x"),
        "st.y.z": functions.struct_field(table["st"], ["y", "z"]),
    }
    for name, column in added.items():
        table = table.append_column(name, column)
    return table


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (functions.bit_wise_and(F("n"), 1) == 1, "calls 'bitwise_and', which is not a standard"),
        (functions.starts_with(F("t"), "A", ignore_case=True), "without regard to case"),
    ],
    ids=str,
)
def test_other_functions_are_refused(expression: Any, problem: str) -> None:
    data = bytes(expression.to_substrait(TABLE.schema))
    with pytest.raises(InvalidDataError, match=problem):
        decode_substrait(data)


@pytest.mark.parametrize("size", [0, 1, 20, 60])
def test_damaged_messages_are_refused(size: int) -> None:
    data = bytes((F("n") > 1).to_substrait(TABLE.schema))[:size]
    with pytest.raises((InvalidDataError, UsageError)):
        bind(decode_substrait(data), TABLE.schema)


def test_a_field_number_out_of_range_is_refused() -> None:
    message = ExtendedExpression.FromString(bytes((F("n") > 1).to_substrait(TABLE.schema)))
    function = message.referred_expr[0].expression.scalar_function
    reference = function.arguments[0].value.selection.direct_reference
    for number in (99, -1):
        reference.struct_field.field = number
        with pytest.raises(InvalidDataError, match=f"refers to the field {number}"):
            decode_substrait(message.SerializeToString())


def nest(field: int, data: bytes) -> bytes:
    """Return a field of a message that has another message."""
    size = len(data)
    length = b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + data


@pytest.mark.parametrize("depth", [40, 5000])
def test_deep_messages_are_refused(depth: int) -> None:
    message = ExtendedExpression.FromString(bytes((~F("ok")).to_substrait(TABLE.schema)))
    inner = message.referred_expr[0].expression.SerializeToString()
    for _ in range(depth):
        inner = nest(3, nest(4, nest(3, inner)))
    with pytest.raises(InvalidDataError, match="is not a Substrait extended expression"):
        decode_substrait(nest(3, nest(1, inner)))
