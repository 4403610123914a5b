"""The types of the columns of CSV, inferred from their text.

A type is chosen only if it keeps all digits of all values. Integers are int64, uint64 or decimals,
and text if one has leading zeros. Other numbers are doubles, or decimals if a double does not have
the digits of one. Quoted values are text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ....formats.arrow.truncation import pc

_NULLS = [
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "1.#IND",
    "1.#QNAN",
    "N/A",
    "NA",
    "NULL",
    "n/a",
    "null",
]
"""What other programs write for a null, which it is in a column that is not text."""
_ODD_NUMBER = r"^(\+[0-9]+$|[+-]?0[0-9xX])"
_PLAIN_INTEGER = "^-?(0|[1-9][0-9]*)$"
_PLAIN_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
_EXACT_DIGITS, _MOST_DIGITS = 15, 17
"""Each number of 15 digits is a double, and no double needs more than 17."""

_SAMPLE = 100
"""The rows that show most types to be wrong."""

Read = Callable[[Any, "Column"], Any]
"""Returns the values of strings, or raises `ValueError`."""


@dataclass(slots=True)
class Column:
    """What is known of the text of a column."""

    kind: int = 0
    """The position of its type in `_KINDS`."""
    is_quoted: bool = False
    """Whether a value has quotes."""
    whole: int = 1
    """The most digits before a decimal point."""
    scale: int = 0
    """The most digits after it."""
    is_checked: bool = False
    """Whether all blocks so far fit the type."""

    @property
    def type(self) -> pa.DataType:
        """The type."""
        chosen: Any = _KINDS[self.kind][0]
        return self._decimal() if chosen is None else chosen

    def _decimal(self) -> pa.DataType:
        precision = max(self.whole + self.scale, 1)
        if precision <= 38:
            return pa.decimal128(precision, self.scale)
        return pa.decimal256(precision, self.scale)

    def observe(self, texts: Any) -> None:
        """Choose a wider type if the values of a block do not fit."""
        if self.is_quoted:
            self.kind = max(self.kind, TEXT)
        before = self.kind
        try:
            text = texts.cast(pa.string())
        except pa.ArrowInvalid:
            self.kind = _BINARY
            return
        if self.kind >= TEXT or text.null_count == len(text):
            return
        cleaned: Any = None
        while self.kind < TEXT:
            read = _KINDS[self.kind][1]
            try:
                read(text[:_SAMPLE], self)
                read(text, self)
                break
            except ValueError:
                pass
            if cleaned is None:
                cleaned = _clean(text)
                if cleaned is not text:
                    text = cleaned
                    continue
            self.kind += 1
        if 0 < before < self.kind < TEXT:  # nulls before it fit all types
            self.is_checked = False

    def convert(self, texts: Any) -> Any:
        """Return the values of a block; raise `ValueError` if the file has changed."""
        read = _KINDS[self.kind][1]
        if self.kind == _BINARY:
            return texts.cast(pa.binary())
        text = texts.cast(pa.string())
        try:
            return read(text, self)
        except ValueError:
            return read(_clean(text), self)


def _clean(texts: Any) -> Any:
    """Return texts without spaces around them, and with nulls for `_NULLS`."""
    trimmed = pc.ascii_trim(texts, " \t")
    is_null = pc.is_in(trimmed, pa.array(_NULLS))
    if pc.any(is_null).as_py():
        return pc.if_else(is_null, None, trimmed)
    return texts if trimmed.equals(texts) else trimmed


def _read_null(texts: Any, column: Column) -> Any:
    if texts.null_count < len(texts):
        raise ValueError("a value is not null")
    return pa.nulls(len(texts))


def _cast_to(data_type: pa.DataType) -> Read:
    return lambda texts, column: texts.cast(data_type)


def _read_integers(data_type: pa.DataType) -> Read:
    def read(texts: Any, column: Column) -> Any:
        values = texts.cast(data_type)
        _refuse_zeros(texts)
        return values

    return read


def _refuse_zeros(texts: Any) -> None:
    """Raise `ValueError` if a value has zeros before its digits, or a sign that numbers lack."""
    is_odd = pc.starts_with(texts, "0")
    for prefix in ("-0", "+"):
        is_odd = pc.or_(is_odd, pc.starts_with(texts, prefix))
    if pc.any(is_odd).as_py():
        odd = texts.filter(is_odd)
        _require(pc.invert(pc.match_substring_regex(odd, _ODD_NUMBER)))


def _read_large_integers(texts: Any, column: Column) -> Any:
    _require(pc.match_substring_regex(texts, _PLAIN_INTEGER))
    return _read_decimals(texts, column)


def _read_decimals(texts: Any, column: Column) -> Any:
    _require(pc.match_substring_regex(texts, _PLAIN_NUMBER))
    lengths = pc.subtract(pc.binary_length(texts), pc.starts_with(texts, "-").cast(pa.int32()))
    points = pc.find_substring(pc.utf8_ltrim(texts, "-"), ".")
    has_point = pc.greater_equal(points, 0)
    whole = pc.if_else(has_point, points, lengths)
    scale = pc.if_else(has_point, pc.subtract(pc.subtract(lengths, points), 1), 0)
    column.whole = max(column.whole, pc.max(whole).as_py() or 1)
    column.scale = max(column.scale, pc.max(scale).as_py() or 0)
    if column.whole + column.scale > 76:
        raise ValueError("a number has more than 76 digits")
    return texts.cast(column.type)


def read_doubles(texts: Any, column: Column | None = None) -> Any:
    """Return doubles; raise `ValueError` if they do not have all digits of the texts."""
    values = texts.cast(pa.float64())
    _refuse_zeros(texts)
    doubtful = pc.or_(
        pc.greater(pc.binary_length(texts), _EXACT_DIGITS),
        pc.or_(pc.is_inf(values), pc.equal(values, 0.0)),
    )
    doubtful = pc.fill_null(doubtful, False)
    if pc.any(doubtful).as_py():
        written = texts.filter(doubtful)
        differs = pc.not_equal(values.filter(doubtful).cast(pa.string()), written)
        if not all(map(has_digits_of_double, written.filter(differs).to_pylist())):
            raise ValueError("a double does not have these digits")
    return values


def has_digits_of_double(text: str) -> bool:
    """Return whether the nearest double of a number has all of its digits.

    Examples
    --------
    >>> [has_digits_of_double(text) for text in ("0.10000000000000001", "9007199254740993", "inf")]
    [True, False, True]
    """
    mantissa = text.lower().partition("e")[0].lstrip("+-")
    digits = mantissa.replace(".", "").strip("0")
    if not digits.isdecimal():
        return not digits or "n" in digits  # zero, or nan, inf
    value = float(text)
    if len(digits) > _MOST_DIGITS or value in (0.0, float("inf"), float("-inf")):
        return False
    if len(digits) <= _EXACT_DIGITS:
        return True
    return Decimal(text) == Decimal(f"{value:.{len(digits) - 1}e}")


def _read_booleans(texts: Any, column: Column) -> Any:
    _require(pc.match_substring_regex(texts, "^(?i:true|false)$"))
    return texts.cast(pa.bool_())


def _read_times(data_type: Any) -> Read:
    def read(texts: Any, column: Column) -> Any:
        _require(pc.match_substring_regex(texts, r"^[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?$"))
        moments = pc.binary_join_element_wise("1970-01-01", texts, " ")
        return moments.cast(pa.timestamp(data_type.unit)).cast(data_type)

    return read


def _require(conditions: Any) -> None:
    if pc.all(conditions).as_py() is False:
        raise ValueError("a value has another type")


_Kind = tuple[Any, Read]
_KINDS: list[_Kind] = [
    (pa.null(), _read_null),
    (pa.int64(), _read_integers(pa.int64())),
    (pa.uint64(), _read_integers(pa.uint64())),
    (None, _read_large_integers),
    (pa.float64(), read_doubles),
    (None, _read_decimals),
    (pa.bool_(), _read_booleans),
    (pa.date32(), _cast_to(pa.date32())),
    (pa.time32("s"), _read_times(pa.time32("s"))),
    (pa.time64("ns"), _read_times(pa.time64("ns"))),
    *(
        (data_type, _cast_to(data_type))
        for data_type in (
            pa.timestamp("s"),
            pa.timestamp("ns"),
            pa.timestamp("s", "UTC"),
            pa.timestamp("ns", "UTC"),
        )
    ),
    (pa.string(), _cast_to(pa.string())),
    (pa.binary(), _cast_to(pa.binary())),
]
"""The types in the order in which they are tried. None is a decimal."""
TEXT, _BINARY = len(_KINDS) - 2, len(_KINDS) - 1
