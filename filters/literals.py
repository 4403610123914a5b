"""What literals denote beside the values of a type: numbers, times, bytes and UUIDs.

Most types have a unit: 1 for integers, the last digit of decimals, a day or a microsecond for dates
and times. A literal is an exact number of units, which need not be whole.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.types as at

from .tree import DAY, NANOSECONDS, Instant, make_decimal

_BIG: Final = 400
"""Decimal exponents beyond this one are as good as infinite."""


def kind_of(data_type: Any) -> str:
    """Return the kind of values that a type has; only values of some kinds can be compared.

    Examples
    --------
    >>> kind_of(pa.uint8()), kind_of(pa.string_view()), kind_of(pa.list_(pa.int8()))
    ('integer', 'text', 'nested')
    """
    if isinstance(data_type, pa.UuidType):
        return "UUID"
    if isinstance(data_type, pa.BaseExtensionType):
        return kind_of(data_type.storage_type)
    if isinstance(data_type, (pa.DictionaryType, pa.RunEndEncodedType)):
        return kind_of(data_type.value_type)
    for kind, tests in _KINDS.items():
        if any(test(data_type) for test in tests):
            return kind
    return "nested"


_KINDS: Final[dict[str, Any]] = {
    "boolean": (at.is_boolean,),
    "integer": (at.is_integer,),
    "decimal": (at.is_decimal,),
    "float": (at.is_floating,),
    "text": (at.is_string, at.is_large_string, at.is_string_view),
    "binary": (at.is_binary, at.is_large_binary, at.is_fixed_size_binary, at.is_binary_view),
    "date": (at.is_date,),
    "timestamp": (at.is_timestamp,),
    "time": (at.is_time,),
    "duration": (at.is_duration,),
    "interval": (at.is_interval,),
    "null": (at.is_null,),
}


def find_unit(data_type: Any) -> int:
    """Return the nanoseconds of a unit of a type."""
    if at.is_date32(data_type):
        return DAY
    return 10**6 if at.is_date64(data_type) else NANOSECONDS[data_type.unit]


def find_place(value: Any, data_type: Any) -> Fraction | None:
    """Return the number of units of a type that a literal stands for; None if it has none."""
    kind = kind_of(data_type)
    if kind in ("integer", "decimal"):
        number = make_number(value)
        if number is None:
            return None
        return number * Fraction(10) ** (data_type.scale if kind == "decimal" else 0)
    nanoseconds = _find_nanoseconds(value, kind)
    return None if nanoseconds is None else Fraction(nanoseconds, find_unit(data_type))


def make_number(value: Any) -> Fraction | None:
    """Return the exact number that a literal denotes. A float is the shortest such decimal."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            return Fraction(10) ** _BIG * (1 if value > 0 else -1)
        return None if value != value else make_number(Decimal(repr(value)))
    if isinstance(value, str):
        text = value.strip()
        return make_number(Decimal(text)) if _NUMBER.fullmatch(text) else None
    if isinstance(value, Decimal):
        if value and abs(value.adjusted()) > _BIG:
            exponent = _BIG if value.adjusted() > 0 else -_BIG
            return Fraction(10) ** exponent * (-1 if value.is_signed() else 1)
        return Fraction(value)
    return Fraction(value) if isinstance(value, int) else None


_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,6})?", re.ASCII | re.IGNORECASE)
_DATE: Final = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_CLOCK: Final = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?"
_TIMESTAMP: Final = re.compile(
    rf"{_DATE}(?:[T ]{_CLOCK}\s*(?:(Z|UTC)|([+-])(\d{{2}})(?::?(\d{{2}}))?)?)?", re.ASCII
)
_TIME: Final = re.compile(_CLOCK, re.ASCII)


def _find_nanoseconds(value: Any, kind: str) -> int | None:
    """Return what a literal denotes beside a column of dates, times or durations."""
    if isinstance(value, str):
        text = value.strip()
        if kind == "time":
            match = _TIME.fullmatch(text)
            return None if match is None else parse_clock(*match.groups())
        return None if kind == "duration" else parse_timestamp(text)[0]
    if not isinstance(value, Instant):
        return None
    if kind in ("time", "duration"):
        return value.nanoseconds if value.kind == kind else None
    return value.nanoseconds if value.kind in ("date", "timestamp", "timestamptz") else None


def parse_timestamp(text: str) -> tuple[int | None, bool]:
    """Return the nanoseconds since the epoch of a date or timestamp in ISO 8601, and its offset.

    The second value is whether the text has an offset from UTC. The first is None if the text is
    malformed.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None, False
    *parts, utc, sign, hours, minutes = match.groups()
    try:
        days = date(*map(int, parts[:3])).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None, False
    clock = 0 if parts[3] is None else parse_clock(*parts[3:])
    if clock is None:
        return None, False
    offset = 0 if sign is None else int(hours) * 60 + int(minutes or 0)
    moved = offset * (-1 if sign == "-" else 1) * 60 * 10**9
    return days * DAY + clock - moved, utc is not None or sign is not None


def parse_clock(hours: str, minutes: str, seconds: str | None, fraction: str | None) -> int | None:
    """Return the nanoseconds since midnight; None if there is no such time."""
    parts = int(hours), int(minutes), int(seconds or 0)
    if parts[0] > 23 or parts[1] > 59 or parts[2] > 59:
        return None
    total = (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return total * 10**9 + int((fraction or "0").ljust(9, "0"))


def parse_time(text: str) -> int | None:
    """Return the nanoseconds since midnight of a time in ISO 8601; None if it is malformed."""
    match = _TIME.fullmatch(text.strip())
    return None if match is None else parse_clock(*match.groups())


def make_float(value: Any, data_type: Any) -> Any:
    """Return a literal as a scalar of a type; of float64 if it is a float that the type lacks."""
    if isinstance(value, float):
        narrow: Any = pa.scalar(value, data_type)
        is_same = narrow.as_py() == value or value != value
        return narrow if is_same else pa.scalar(value, pa.float64())
    if isinstance(value, str):
        text = value.strip()
        if not _NUMBER.fullmatch(text):
            return None
        value = Decimal(text)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    try:
        return pa.scalar(float(value), data_type)
    except OverflowError:
        return pa.scalar(float("inf") if value > 0 else float("-inf"), data_type)


def make_bytes(value: Any) -> bytes | None:
    r"""Return the bytes of a literal; None if it has none. A text may have parts as ``\xFF``."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        return None
    escaped = re.split(r"\\x([0-9a-fA-F]{2})", value)
    return b"".join(
        bytes.fromhex(part) if number % 2 else part.encode() for number, part in enumerate(escaped)
    )


def make_uuid(value: Any) -> bytes | None:
    """Return the bytes of a UUID; None if the literal is not one."""
    if isinstance(value, bytes):
        return value if len(value) == 16 else None
    try:
        return UUID(value.strip()).bytes if isinstance(value, str) else None
    except ValueError:
        return None


def make_scalar(number: int, data_type: Any) -> Any:
    """Return the scalar of a type whose value is a number of its units."""
    if at.is_integer(data_type):
        return pa.scalar(number, data_type)
    if at.is_decimal(data_type):
        return pa.scalar(make_decimal(number, data_type.scale), data_type)
    ticks: Any = pa.array([number], _ticks_type(data_type))
    return ticks.view(data_type)[0]


def _ticks_type(data_type: Any) -> Any:
    return pa.int32() if data_type.bit_width == 32 else pa.int64()


def find_limits(data_type: Any) -> tuple[int, int]:
    """Return the smallest and the largest number of units that a type has."""
    if at.is_decimal(data_type):
        most = 10**data_type.precision - 1
        return -most, most
    if at.is_unsigned_integer(data_type):
        return 0, (1 << data_type.bit_width) - 1
    half = 1 << (data_type.bit_width - 1)
    return -half, half - 1
