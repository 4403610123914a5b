"""Variants as JSON texts, by columns (RFC 8259).

Numbers become JSON numbers: a decimal keeps the digits of its scale, and a floating-point number
has a fraction. Dates, times and timestamps become ISO 8601 strings, with ``+00:00`` where they are
instants; UUIDs and binary values (Base64) become strings, and so do NaN and the infinities, which
JSON has no numbers for. Fields are in the order of their names.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .buffers import Index, Mask, accumulate, binary_parts, make_binary, to_arrow
from .metadata import Names
from .types import DECIMAL_BYTES, Kind
from .values import (
    Entries,
    ParsedLevel,
    Values,
    decimal_array,
    parse_levels,
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

_SHORT: Final = {0x22: b'"', 0x5C: b"\\", 8: b"b", 9: b"t", 10: b"n", 12: b"f", 13: b"r"}
_LENGTHS: Final = np.ones(256, np.int64)
"""The length of each byte once escaped."""
_LENGTHS[:32] = 6
_LENGTHS[list(_SHORT)] = 2
_LETTERS: Final = np.full(256, ord("u"), np.uint8)
"""What follows the backslash."""
for _byte, _letter in _SHORT.items():
    _LETTERS[_byte] = _letter[0]
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_IS_SPECIAL: Final = _LENGTHS > 1


def escape_json(texts: Any) -> Any:
    """Return the content of JSON strings, without their quotes."""
    data, offsets = binary_parts(texts)
    data = data[offsets[0] : offsets[-1]]
    special = np.flatnonzero(_IS_SPECIAL.take(data))
    if not len(special):
        return texts
    lengths = _LENGTHS.take(data)
    moved = accumulate(lengths)
    escaped = np.repeat(data, lengths)
    at, byte = moved[special], data[special]
    escaped[at] = ord("\\")
    escaped[at + 1] = _LETTERS[byte]
    is_long = lengths[special] == 6
    at, byte = at[is_long], byte[is_long]
    escaped[at + 2] = escaped[at + 3] = ord("0")
    escaped[at + 4] = _HEX[byte >> 4]
    escaped[at + 5] = _HEX[byte & 15]
    return make_binary(escaped, moved[offsets - offsets[0]])


_WORDS: Final = pa.array([b"null", b"true", b"false"], pa.large_binary())
_BASE64: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
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


def render_json(values: Values) -> Any:
    """Return values as JSON texts; raise `InvalidDataError` if a value is invalid."""
    if not len(values):
        return pa.array([], pa.large_string())
    levels = parse_levels(values)
    separators = _Separators(values.context.names)
    texts = ScalarTexts([], np.empty(0, np.int64), np.empty(0, np.bool_))
    for level in reversed(levels):
        texts = _render_level(level, texts, separators)
    taken = texts.take()
    if texts.quoted.any():
        quoted = pc.binary_join_element_wise(_QUOTE, taken, _QUOTE, _EMPTY)
        taken = pc.if_else(pa.array(texts.quoted), quoted, taken)
    return taken.cast(pa.large_string())


_QUOTE = pa.scalar(b'"', pa.large_binary())
_EMPTY = pa.scalar(b"", pa.large_binary())


def _render_level(level: ParsedLevel, below: ScalarTexts, separators: _Separators) -> ScalarTexts:
    texts = render_scalars(level.values, level.kind)
    fields = 0
    if level.fields is not None:
        entries = level.fields
        fields = len(entries.parent)
        text = _join(entries, below, slice(0, fields), separators, _OBJECT)
        texts.add(level.objects, text, quoted=False)
    if level.elements is not None:
        text = _join(level.elements, below, slice(fields, None), separators, _ARRAY)
        texts.add(level.arrays, text, quoted=False)
    return texts


def _join(
    entries: Entries, below: ScalarTexts, part: slice, separators: _Separators, brackets: int
) -> Any:
    """Return the texts of objects or arrays from those of their entries.

    The pieces of all texts follow one another in one array: for each entry what separates it from
    the one before, with the name of a field, and its own text; after the last entry the closing
    bracket. The quotes around a string are part of the pieces before and after it, which saves a
    third of the pieces.
    """
    counts, parent, key = entries.counts, entries.parent, entries.key
    quoted, index = below.quoted[part], below.index[part]
    ends = np.cumsum(counts)
    filled = counts > 0
    after_quote = np.empty(len(parent), np.bool_)
    is_first = np.zeros(len(parent), np.bool_)
    is_first[(ends - counts)[filled]] = True
    after_quote[1:] = quoted[:-1]
    after_quote[is_first] = False
    form = quoted * _BEFORE_STRING + is_first * _FIRST + after_quote * _AFTER_STRING
    base = separators.bases[brackets]
    pieces = np.empty(2 * len(parent) + len(counts), np.int64)
    at = np.arange(0, 2 * len(parent), 2) + parent
    pieces[at] = base + form if key is None else base + 8 * key + form
    pieces[at + 1] = index + len(separators.pieces)
    closing = 2 * ends + np.arange(len(counts))
    ending = np.zeros(len(counts), np.int64)
    ending[filled] = quoted[ends[filled] - 1]
    ending[~filled] = 2
    pieces[closing] = separators.ends[brackets] + ending
    taken = pa.concat_arrays([separators.pieces, *below.arrays]).take(to_arrow(pieces))
    data, offsets = binary_parts(taken)
    return make_binary(data, np.append(offsets[:1], offsets[closing + 1]))


_OBJECT, _ARRAY = 0, 1


class _Separators:
    """The pieces between the texts of entries.

    Each has eight forms, selected by three bits: whether a string follows (1), whether the entry is
    the first (2), and whether a string precedes (4).
    """

    def __init__(self, names: Names) -> None:
        escaped = escape_json(names.texts.cast(pa.large_binary()))
        quotes = [b'"' if form & _AFTER_STRING else b"" for form in range(8)]
        keys = pa.concat_arrays(
            [
                pc.binary_join_element_wise(
                    _binary(quotes[form] + (b'{"' if form & _FIRST else b',"')),
                    escaped,
                    _binary(b'":"' if form & _BEFORE_STRING else b'":'),
                    _EMPTY,
                )
                for form in range(8)
            ]
        )
        by_key = np.arange(8 * len(escaped)).reshape(8, len(escaped)).T.ravel()
        elements = [
            quotes[form]
            + (b"[" if form & _FIRST else b",")
            + (b'"' if form & _BEFORE_STRING else b"")
            for form in range(8)
        ]
        closing = [b"}", b'"}', b"{}", b"]", b'"]', b"[]"]
        fixed = pa.array([*elements, *closing], pa.large_binary())
        self.pieces = pa.concat_arrays([fixed, keys.take(pa.array(by_key))])
        self.bases = (len(fixed), 0)
        self.ends = (8, 11)


_BEFORE_STRING, _FIRST, _AFTER_STRING = 1, 2, 4


def _binary(text: bytes) -> Any:
    return pa.scalar(text, pa.large_binary())
