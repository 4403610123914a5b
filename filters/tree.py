"""The tree that every filter becomes: columns, literals, and calls of functions.

A tree knows nothing of a schema. `bind` gives its columns and comparisons their types. Requests
carry a tree as JSON: a column is ``{"column": "delay"}``, a call is a list that begins with the
name of the function, and a literal is a JSON value or an object such as ``{"decimal": "4.999"}``.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Final, NoReturn
from uuid import UUID

import pyarrow as pa

from ..errors import InvalidDataError, UsageError

MAX_DEPTH: Final = 100
"""The largest depth of a tree."""
COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
"""The functions that compare two arguments."""
MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""For each comparison, the one that is equivalent after its arguments changed places."""
NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""The length of each unit of time in Arrow, in nanoseconds."""
DAY: Final = 86_400 * 10**9
"""A day in nanoseconds."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the dataset, or a field inside of one."""

    name: str
    """The name. Dots separate the names of nested fields, if no column has the whole name."""
    position: int | None = field(default=None, compare=False)
    """The index of its first character in a filter in SQL; None for other filters."""
    quoted: bool = field(default=False, compare=False)
    """Whether a filter in SQL has the name in double quotes."""


@dataclass(frozen=True, slots=True)
class Instant:
    """A date, time, timestamp or duration."""

    kind: str
    """``date``, ``time``, ``timestamp``, ``timestamptz`` or ``duration``."""
    nanoseconds: int
    """Since the epoch, since midnight, or the length of a duration. ``timestamptz`` is in UTC."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A value."""

    value: Any
    """None, or a bool, int, `decimal.Decimal`, float, str, bytes or `Instant`."""
    position: int | None = field(default=None, compare=False)
    """See `Column.position`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments."""

    function: str
    """The name; `binding` lists the functions."""
    arguments: tuple[Any, ...]
    """Its arguments: `Column`, `Literal` and `Call`."""
    position: int | None = field(default=None, compare=False)
    """See `Column.position`."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion to another type."""

    argument: Any
    """What is converted."""
    type: Any
    """The type (``pyarrow.DataType``)."""
    safe: bool = True
    """Whether a value that does not fit ends the read."""
    position: int | None = field(default=None, compare=False)
    """See `Column.position`."""


def combine(function: str, nodes: list[Any]) -> Any:
    """Return the conjunction (``and``) or disjunction (``or``) of one or more nodes."""
    flat: list[Any] = []
    for node in nodes:
        is_same = isinstance(node, Call) and node.function == function
        flat += node.arguments if is_same else [node]
    return flat[0] if len(flat) == 1 else Call(function, tuple(flat))


def list_columns(node: Any) -> list[str]:
    """Return the names of the columns that a tree refers to, each once."""
    return list(dict.fromkeys(each.name for each in walk(node) if isinstance(each, Column)))


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and all nodes below it."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        if isinstance(each, Call):
            pending += reversed(each.arguments)
        elif isinstance(each, Cast):
            pending.append(each.argument)


def make_literal(value: Any, position: int | None = None) -> Literal:
    """Return the literal of a Python, NumPy, pandas or Arrow value.

    A float is the shortest decimal number that denotes it, as it is in SQL.

    Raises `UsageError` if filters have no such values.

    Examples
    --------
    >>> make_literal(0.1).value
    Decimal('0.1')
    """
    match value:
        case pa.Scalar():
            return Literal(_convert_scalar(value), position)
        case float() if math.isfinite(value):
            return Literal(Decimal(repr(float(value))), position)
        case None | bool() | int() | float() | str() | Decimal():
            return Literal(_check(value), position)
        case bytes() | bytearray() | memoryview():
            return Literal(bytes(value), position)
        case UUID():
            return Literal(str(value), position)
        case _:
            return Literal(_convert_instant(value), position)


def make_decimal(digits: int, scale: int) -> Decimal:
    """Return ``digits / 10**scale`` without rounding, which Python's operations do."""
    return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))


def _convert_instant(value: Any) -> Any:
    match value:
        case datetime():
            exact: int = getattr(value, "nanosecond", 0)
            offset = value.utcoffset()
            kind = "timestamp" if offset is None else "timestamptz"
            wall = value.replace(tzinfo=None) - datetime(1970, 1, 1) - (offset or timedelta())
            return Instant(kind, wall // _MICROSECOND * 1000 + exact)
        case date():
            return Instant("date", (value.toordinal() - _EPOCH) * DAY)
        case time() if value.tzinfo is None:
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return Instant("time", seconds * 10**9 + value.microsecond * 1000)
        case timedelta():
            exact = getattr(value, "nanoseconds", 0)
            return Instant("duration", value // _MICROSECOND * 1000 + exact)
        case _:
            if hasattr(value, "item"):  # a scalar of NumPy
                return make_literal(pa.scalar(value)).value
            raise UsageError(
                f"the filter is invalid: {value!r} is a {type(value).__name__}; expected a number, "
                "a text, bytes, a boolean, a date, a time or a UUID"
            )


def _convert_scalar(scalar: Any) -> Any:
    """Return the value of a scalar of Arrow, exactly. Floats stay binary."""
    data_type, types = scalar.type, pa.types
    if not scalar.is_valid:
        return None
    if isinstance(data_type, pa.UuidType):
        return str(scalar.as_py())
    if isinstance(data_type, pa.BaseExtensionType):
        return _convert_scalar(scalar.value)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return _convert_scalar(scalar.value if hasattr(scalar, "value") else scalar)
    if types.is_date(data_type):
        return Instant("date", scalar.value * (DAY if types.is_date32(data_type) else 10**6))
    if types.is_time(data_type) or types.is_timestamp(data_type) or types.is_duration(data_type):
        kind = "time" if types.is_time(data_type) else "timestamp"
        if types.is_duration(data_type):
            kind = "duration"
        elif kind == "timestamp" and data_type.tz is not None:
            kind = "timestamptz"
        return Instant(kind, scalar.value * NANOSECONDS[data_type.unit])
    value = scalar.as_py()
    if isinstance(value, (bool, int, float, str, bytes, Decimal)):
        return value
    raise UsageError(f"the filter is invalid: it has a literal of the type {data_type}")


def _check(value: Any) -> Any:
    if isinstance(value, Decimal) and not value.is_finite():
        return float(value)
    return str(value) if isinstance(value, str) else value


# --- JSON ----------------------------------------------------------------------------------------

_INSTANTS: Final = ("date", "time", "timestamp", "timestamptz", "duration")
_TIMES: Final = re.compile(r"(timestamp|time32|time64|duration)\[(s|ms|us|ns)(?:, tz=([^\]]+))?\]")
_DECIMALS: Final = re.compile(r"(decimal(?:32|64|128|256))\((\d{1,2}), (-?\d{1,2})\)")
_BINARIES: Final = re.compile(r"fixed_size_binary\[(\d{1,10})\]")


def encode_tree(node: Any) -> str:
    """Return a tree as JSON."""
    return json.dumps(_encode(node), ensure_ascii=False, separators=(",", ":"))


def _encode(node: Any) -> Any:
    match node:
        case Column():
            return {"column": node.name}
        case Call():
            return [node.function, *map(_encode, node.arguments)]
        case Cast():
            return ["cast", _encode(node.argument), str(node.type), node.safe]
        case _:
            value: Any = node.value
    match value:
        case None | bool() | int() | str():
            return value
        case Decimal():
            return {"decimal": str(value)}
        case float():
            return {"double": repr(value)}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case _:
            return {value.kind: value.nanoseconds}


@cache
def decode_type(text: str) -> Any:
    """Return the type of Arrow with a name; raise `ValueError` if there is none."""
    if match := _TIMES.fullmatch(text):
        name, unit, zone = match.groups()
        make: Any = getattr(pa, name)
        return make(unit) if zone is None else make(unit, zone)
    if match := _DECIMALS.fullmatch(text):
        make = getattr(pa, match[1])
        return make(int(match[2]), int(match[3]))
    if match := _BINARIES.fullmatch(text):
        return pa.binary(int(match[1]))
    by_alias: Any = pa.type_for_alias
    return by_alias(text.removesuffix("[day]"))


def decode_tree(value: Any, depth: int = 0) -> Any:
    """Return the tree of a JSON value.

    Raises `InvalidDataError` if it is malformed, or deeper than `MAX_DEPTH`.

    Examples
    --------
    >>> describe(decode_tree(["<", {"column": "delay"}, {"decimal": "4.5"}]))
    'delay < 4.5'
    """
    if depth > MAX_DEPTH:
        raise InvalidDataError(f"the filter is nested deeper than {MAX_DEPTH}")
    try:
        match value:
            case ["cast", argument, str() as name, bool() as safe]:
                return Cast(decode_tree(argument, depth + 1), decode_type(name), safe)
            case [str() as function, *arguments]:
                return Call(function, tuple(decode_tree(each, depth + 1) for each in arguments))
            case {"column": str() as name} if len(value) == 1:
                return Column(name)
            case None | bool() | int() | str():
                return Literal(value)
            case {"decimal": str() as text} if len(value) == 1:
                return Literal(_check(Decimal(text)))
            case {"double": str() as text} if len(value) == 1:
                return Literal(float(text))
            case {"bytes": str() as text} if len(value) == 1:
                return Literal(base64.b64decode(text, validate=True))
            case dict() if len(value) == 1:
                ((kind, nanoseconds),) = value.items()
                if kind in _INSTANTS and type(nanoseconds) is int:
                    return Literal(Instant(kind, nanoseconds))
            case _:
                pass
    except (ValueError, InvalidOperation, pa.ArrowException):
        pass
    raise InvalidDataError(f"the filter has the invalid part {json.dumps(value)[:100]}")


def describe(node: Any) -> str:
    """Return a node as text, for errors."""
    match node:
        case Column():
            return node.name
        case Cast():
            return f"cast({describe(node.argument)} as {node.type})"
        case Call(function=name, arguments=(left, right)) if name in (*COMPARISONS, *"+-*/"):
            return f"{describe(left)} {name} {describe(right)}"
        case Call():
            return f"{node.function}({', '.join(map(describe, node.arguments))})"
        case _:
            return describe_value(node.value)


def describe_value(value: Any) -> str:
    """Return the value of a literal as text, for errors."""
    match value:
        case None:
            return "NULL"
        case str() | bytes():
            return repr(value) if len(value) <= 40 else f"{value[:40]!r}…"
        case Instant(kind="date"):
            try:
                return f"DATE '{date.fromordinal(value.nanoseconds // DAY + _EPOCH)}'"
            except (ValueError, OverflowError):
                return f"the day {value.nanoseconds // DAY}"
        case Instant():
            return f"the {value.kind} of {value.nanoseconds} ns"
        case _:
            text = str(value)
            return text if len(text) <= 40 else f"{text[:40]}…"


def refuse(problem: str, node: Any = None) -> NoReturn:
    """Raise a `UsageError` that gives the position of a node."""
    position: int | None = getattr(node, "position", None)
    place = "" if position is None else f" at character {position + 1}"
    raise UsageError(f"the filter is invalid{place}: {problem}")
