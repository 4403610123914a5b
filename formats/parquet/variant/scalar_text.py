"""The values of primitive types as JSON texts, by columns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .buffers import Index, Mask, accumulate, binary_parts, make_binary
from .escaping import escape_json
from .scalars import (
    DECIMAL_BYTES,
    decimal_array,
    read_bytes,
    read_decimals,
    read_fixed,
    read_float32,
    read_float64,
    read_int32,
    read_int64,
    read_integers,
    read_scales,
)
from .types import Kind
from .values import Values

_WORDS: Final = pa.array([b"null", b"true", b"false"], pa.large_binary())
_BASE64: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_DIGITS: Final = np.array(
    [*range(8), *range(9, 13), *range(14, 18), *range(19, 23), *range(24, 36)]
)
_DAY_YEAR_0, _DAY_YEAR_10000 = -719_528, 2_932_897
"""The days since 1970 at which four-digit years begin and end."""


class ScalarTexts:
    """Texts of values, spread over several arrays.

    Attributes
    ----------
    arrays : list of pyarrow.LargeBinaryArray
        The texts.
    index : ndarray of int64, shape (n,)
        Where the text of each value is in the concatenation of `arrays`.
    quoted : ndarray of bool, shape (n,)
        Whether the text is the content of a JSON string, which needs quotes around it.
    """

    __slots__ = ("_size", "arrays", "index", "quoted")

    def __init__(self, arrays: list[Any], index: Index, quoted: Mask) -> None:
        self.arrays = arrays
        self.index = index
        self.quoted = quoted
        self._size = sum(map(len, arrays))

    def add(self, selected: Index, texts: Any, *, quoted: bool) -> None:
        """Set the texts of some values."""
        self.index[selected] = np.arange(self._size, self._size + len(texts))
        if quoted:
            self.quoted[selected] = True
        self.arrays.append(texts)
        self._size += len(texts)

    def take(self) -> Any:
        """Return the texts in the order of the values."""
        return pa.concat_arrays(self.arrays).take(pa.array(self.index))


def render_scalars(values: Values, kind: Any) -> ScalarTexts:
    """Return the texts of values. Those of objects and arrays are to be added."""
    texts = ScalarTexts([_WORDS], kind.clip(0, 2).astype(np.int64), np.zeros(len(kind), np.bool_))
    present = np.bincount(kind.clip(0), minlength=Kind.ARRAY + 1)
    integers = (kind >= Kind.INT8) & (kind <= Kind.INT64)
    if present[Kind.INT8 : Kind.INT64 + 1].any():
        selected = np.flatnonzero(integers)
        numbers = read_integers(values.take(selected), kind[selected])
        texts.add(selected, _cast_text(pa.array(numbers)), quoted=False)
    for code in np.flatnonzero(present):
        if code == Kind.NULL or (code > Kind.INT64 and code < Kind.OBJECT):
            _render_kind(values, kind, Kind(int(code)), texts)
    return texts


def _render_kind(values: Values, kind: Any, code: Kind, texts: ScalarTexts) -> None:
    selected = np.flatnonzero(kind == code)
    part = values.take(selected)
    if code in DECIMAL_BYTES:
        _render_decimals(part, selected, code, texts)
    elif code == Kind.DOUBLE:
        texts.add(selected, render_floats(read_float64(part)), quoted=False)
    elif code == Kind.FLOAT:
        texts.add(selected, render_floats(read_float32(part)), quoted=False)
    elif code == Kind.STRING:
        texts.add(selected, escape_json(read_bytes(part)), quoted=True)
    elif code == Kind.BINARY:
        texts.add(selected, _encode_base64(part), quoted=True)
    elif code == Kind.UUID:
        texts.add(selected, _render_uuids(read_fixed(part, 16)), quoted=True)
    elif code != Kind.NULL:
        texts.add(selected, _render_times(part, code), quoted=True)


def _cast_text(array: Any) -> Any:
    return array.cast(pa.large_string()).cast(pa.large_binary())


def render_floats(numbers: Any) -> Any:
    """Return floating-point numbers as JSON, with the fewest digits that give the same number."""
    texts = pa.array(numbers).cast(pa.large_string())
    whole = pc.invert(pc.match_substring(texts, "."))
    if pc.any(whole).as_py():
        rest = pc.replace_substring_regex(texts.filter(whole), r"^(-?[0-9]+)", r"\1.0")
        for name, text in (("nan", "NaN"), ("inf", "Infinity")):
            rest = pc.replace_substring_regex(rest, f"^(-?){name}$", f'"\\1{text}"')
        texts = pc.replace_with_mask(texts, whole, rest)
    return texts.cast(pa.large_binary())


def _render_decimals(values: Values, selected: Index, code: Kind, texts: ScalarTexts) -> None:
    scales = read_scales(values)
    unscaled = read_decimals(values, code)
    for scale in np.unique(scales):
        members = np.flatnonzero(scales == scale)
        text = decimal_array(unscaled[members], int(scale)).cast(pa.large_string())
        scientific = pc.match_substring(text, "E")
        if pc.any(scientific).as_py():
            plain = [
                f"{number:.{int(scale)}f}"
                for number in decimal_array(unscaled[members], int(scale))
                .filter(scientific)
                .to_pylist()
            ]
            text = pc.replace_with_mask(text, scientific, pa.array(plain, pa.large_string()))
        texts.add(selected[members], text.cast(pa.large_binary()), quoted=False)


def _render_times(values: Values, code: Kind) -> Any:
    if code == Kind.DATE:
        return _render_dates(read_int32(values).astype(np.int64))
    count = read_int64(values)
    if code == Kind.TIME_NTZ:
        return _cast_text(pa.array(count).cast(pa.time64("us")))
    nanos = code in (Kind.TIMESTAMP_NANOS, Kind.TIMESTAMP_NTZ_NANOS)
    suffix = b"+00:00" if code in (Kind.TIMESTAMP, Kind.TIMESTAMP_NANOS) else b""
    return _render_timestamps(count, "ns" if nanos else "us", suffix)


def _render_dates(days: Index) -> Any:
    usual = (days >= _DAY_YEAR_0) & (days < _DAY_YEAR_10000)
    texts = _cast_text(pa.array(np.where(usual, days, 0).astype(np.int32)).cast(pa.date32()))
    return _replace_unusual(texts, days, usual, "D", b"")


def _render_timestamps(count: Index, unit: Any, suffix: bytes) -> Any:
    per_day = 86_400 * (10**9 if unit == "ns" else 10**6)
    days = count // per_day
    usual = (days >= _DAY_YEAR_0) & (days < _DAY_YEAR_10000)
    texts = pa.array(np.where(usual, count, 0)).cast(pa.timestamp(unit)).cast(pa.large_string())
    width = 29 if unit == "ns" else 26
    data = binary_parts(texts)[0][: width * len(count)]
    rows = np.empty((len(count), width + len(suffix)), np.uint8)
    rows[:, :width] = data.reshape(-1, width)
    rows[:, 10] = ord("T")
    rows[:, width:] = np.frombuffer(suffix, np.uint8)
    return _replace_unusual(_fixed_texts(rows), count, usual, unit, suffix)


def _replace_unusual(texts: Any, count: Index, usual: Mask, unit: str, suffix: bytes) -> Any:
    """Return texts in which those of years outside of 0 to 9999 have a sign, as ISO 8601 asks."""
    if bool(usual.all()):
        return texts
    dates: list[str] = np.datetime_as_string(count[~usual].astype(f"M8[{unit}]")).tolist()
    signed = [_sign_year(date).encode() + suffix for date in dates]
    return pc.replace_with_mask(texts, pa.array(~usual), pa.array(signed, pa.large_binary()))


def _sign_year(date: str) -> str:
    """Return a date with a sign before the year, which has at least four digits."""
    sign = "-" if date.startswith("-") else "+"
    year, rest = date.lstrip("-").split("-", 1)
    return f"{sign}{year.zfill(4)}-{rest}"


def _render_uuids(digits: NDArray[np.uint8]) -> Any:
    rows = np.full((len(digits), 36), ord("-"), np.uint8)
    nibbles = np.stack([digits >> 4, digits & 15], axis=2).reshape(len(digits), 32)
    rows[:, _UUID_DIGITS] = _HEX[nibbles]
    return _fixed_texts(rows)


def _fixed_texts(rows: NDArray[np.uint8]) -> Any:
    return make_binary(rows.ravel(), np.arange(len(rows) + 1) * rows.shape[1])


def _encode_base64(values: Values) -> Any:
    """Return binary values in Base64 (RFC 4648, section 4)."""
    head = 5
    size = values.size - head
    groups = (size + 2) // 3
    offsets = accumulate(groups)
    owner = np.repeat(np.arange(len(size)), groups)
    at = 3 * (np.arange(len(owner)) - offsets[owner])
    left = size[owner] - at
    triple = values.context.buffer.bytes[
        (values.start[owner] + head + at)[:, None] + np.arange(3)
    ].astype(np.uint32)
    triple[:, 1][left < 2] = 0
    triple[:, 2][left < 3] = 0
    bits = triple[:, 0] << 16 | triple[:, 1] << 8 | triple[:, 2]
    encoded = _BASE64[(bits[:, None] >> np.array([18, 12, 6, 0], np.uint32)) & 63]
    encoded[:, 2][left < 2] = ord("=")
    encoded[:, 3][left < 3] = ord("=")
    return make_binary(encoded.ravel(), offsets * 4)
