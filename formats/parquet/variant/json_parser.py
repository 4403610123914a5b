"""JSON texts as Variants, by columns: all characters of many texts at a time.

It takes texts without escapes and with short numbers, which most are, and leaves the others to a
parser of single texts. What it takes is valid by the grammar of RFC 8259.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .buffers import MAX_DEPTH, Bytes, Index, Mask, binary_parts, make_binary, to_arrow, to_buffer
from .encoder import EncodedLevel, build_strings, encode_integers, encode_levels
from .types import Kind

_MAX_NUMBER = 18
"""The length of the longest number that fits 64 bits without a look at its digits."""
_NUMBER: Final = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
_OBJECT, _ARRAY, _CLOSE_OBJECT, _CLOSE_ARRAY, _COLON, _COMMA, _TEXT, _SCALAR = range(1, 9)
_MARKS: Final = np.zeros(256, np.uint8)
for _mark, _code in zip(b"{[}]:,", range(1, 7), strict=True):
    _MARKS[_mark] = _code
_IS_PLAIN: Final = _MARKS == 0
_IS_PLAIN[list(b' \t\n\r"')] = False
_OPENS: Final = np.isin(np.arange(9), (_OBJECT, _ARRAY))
_CLOSES: Final = np.isin(np.arange(9), (_CLOSE_OBJECT, _CLOSE_ARRAY))
_SEPARATES: Final = np.isin(np.arange(9), (_COLON, _COMMA))
_IS_VALUE: Final = np.isin(np.arange(9), (_OBJECT, _ARRAY, _TEXT, _SCALAR))


@dataclass(slots=True)
class _Tokens:
    """The brackets, texts and scalars of some JSON texts, in order."""

    code: Any
    start: Index
    end: Index
    row: Index
    separator: Any
    """The colon or comma after each token; 0 if there is none."""

    def select(self, kept: Any) -> _Tokens:
        return _Tokens(
            self.code[kept],
            self.start[kept],
            self.end[kept],
            self.row[kept],
            self.separator[kept],
        )


def parse_plain(texts: Any) -> tuple[Mask, Any, Any]:
    """Return which texts are taken, and the metadata and values of those as Variants.

    A null is taken like the text ``null``.
    """
    rows = len(texts)
    filled = texts.fill_null("null") if texts.null_count else texts
    data, offsets = binary_parts(filled.cast(pa.large_binary()))
    data, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    taken = np.ones(rows, np.bool_)
    tokens = _find_tokens(data, offsets, taken)
    depth = _check_brackets(tokens, taken)
    if not taken.all():
        kept = taken[tokens.row]
        tokens, depth = tokens.select(kept), depth[kept]
    if not taken.any():
        return taken, pa.array([], pa.binary()), pa.array([], pa.large_binary())
    container, parsed = _check_grammar(tokens, _match_brackets(tokens, depth, taken), taken)
    scalars = _read_scalars(data, tokens, taken)
    _check_names(data, tokens, parsed, container, taken)
    kept = taken[tokens.row]
    levels = _make_levels(data, tokens, depth, container, parsed, kept, scalars, taken)
    metadata, value = encode_levels(levels, int(taken.sum()))
    return taken, metadata, value


def _find_tokens(data: Bytes, offsets: Index, taken: Mask) -> _Tokens:
    """Return the tokens, and leave out texts with escapes, control characters and open quotes."""
    sizes = offsets[1:] - offsets[:-1]
    quotes = np.flatnonzero(data == ord('"'))
    first = np.searchsorted(quotes, offsets)
    counts = first[1:] - first[:-1]
    taken &= counts % 2 == 0
    if not taken.all():  # a text with an open quote must not change what the next one means
        quotes = quotes[np.repeat(taken, counts)]
    begins, ends = quotes[::2], quotes[1::2]
    change = np.zeros(len(data) + 1, np.int8)
    change[begins] = 1
    change[ends] = -1
    inside = np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)  # without the last quote
    refused = np.flatnonzero((data == ord("\\")) | (inside & (data < 32)))
    taken[np.searchsorted(offsets, refused, side="right") - 1] = False
    taken &= sizes > 0
    outside = ~inside
    codes = _MARKS[data]
    codes *= outside
    plain = _IS_PLAIN[data]
    plain &= outside
    # A scalar does not go on in the next text.
    limits = offsets[1:-1]
    limits = limits[limits < len(data)]
    starts = plain.copy()
    starts[1:] &= ~plain[:-1]
    starts[limits] = plain[limits]
    finishes = plain.copy()
    finishes[:-1] &= ~plain[1:]
    inner = limits[limits > 0]
    finishes[inner - 1] = plain[inner - 1]
    codes += starts.view(np.uint8) * np.uint8(_SCALAR)
    codes[begins] = _TEXT
    start = np.flatnonzero(codes)
    code = codes[start]
    first = np.searchsorted(start, offsets)
    row = np.repeat(np.arange(len(sizes)), first[1:] - first[:-1])
    separates = _SEPARATES[code]
    separators, separator_rows = code[separates], row[separates]
    before = np.cumsum(~separates)[separates] - 1
    start, code, row = start[~separates], code[~separates], row[~separates]
    single = np.append(True, before[1:] != before[:-1]) & (before >= 0)
    single[single] = row[before[single]] == separator_rows[single]
    taken[separator_rows[~single]] = False
    separator = np.zeros(len(start), np.uint8)
    separator[before[single]] = separators[single]
    end = start + 1
    end[code == _TEXT] = ends
    end[code == _SCALAR] = np.flatnonzero(finishes) + 1
    return _Tokens(code, start, end, row, separator)


def _check_brackets(tokens: _Tokens, taken: Mask) -> Index:
    """Return the depth of each token; that of a bracket is the depth of its contents."""
    step = _OPENS[tokens.code].astype(np.int64) - _CLOSES[tokens.code]
    total = np.cumsum(step)
    rows = len(taken)
    last = np.searchsorted(tokens.row, np.arange(rows), side="right")
    sums = np.append(0, total)
    first = np.append(0, last[:-1])
    taken &= (sums[last] == sums[first]) & (last > first)
    depth = total - sums[first][tokens.row]
    taken[tokens.row[(depth < 0) | (depth > MAX_DEPTH)]] = False
    return depth + _CLOSES[tokens.code]


def _match_brackets(tokens: _Tokens, depth: Index, taken: Mask) -> Index:
    """Return the opening bracket of the container of what follows each token, or -1.

    Brackets that do not match are found, too.
    """
    code = tokens.code
    brackets = np.flatnonzero(code <= _CLOSE_ARRAY)
    after = np.empty(len(brackets) + 1, np.int64)
    after[0] = -1
    levels = depth[brackets]
    opens = _OPENS[code[brackets]]
    outer = brackets[:0]
    for level in range(1, int(levels.max(initial=0)) + 1):
        here = levels == level
        begins, ends = np.flatnonzero(here & opens), np.flatnonzero(here & ~opens)
        begin = brackets[begins]
        wrong = code[brackets[ends]] != code[begin] + 2
        taken[tokens.row[begin[wrong]]] = False
        after[begins + 1] = begin
        parents = outer[np.searchsorted(outer, begin) - 1] if len(outer) else -1
        after[ends + 1] = parents
        outer = begin
    return after[np.cumsum(code <= _CLOSE_ARRAY)]


def _check_grammar(tokens: _Tokens, following: Index, taken: Mask) -> tuple[Index, Mask]:
    """Return the bracket that each token is in, or -1, and which texts are names of fields.

    Texts that are not JSON are no longer taken.
    """
    code, row, separator = tokens.code, tokens.row, tokens.separator
    container = np.append(-1, following[:-1])
    opens, closes, is_value = _OPENS[code], _CLOSES[code], _IS_VALUE[code]
    is_text = code == _TEXT
    in_object = (container >= 0) & (code[container] == _OBJECT)
    is_first = np.append(True, row[1:] != row[:-1])
    is_last = np.append(is_first[1:], True)
    opened = np.append(False, opens[:-1])
    separated = np.append(np.uint8(0), separator[:-1])
    comma, colon = separated == _COMMA, separated == _COLON
    is_name = is_text & in_object & np.where(opened, separated == 0, comma)
    named = np.append(False, is_name[:-1])
    item = np.where(in_object, is_text, is_value)
    fits = np.where(
        named,
        colon & is_value,
        np.where(
            opened,
            (separated == 0) & (closes | item),
            (container >= 0) & np.where(separated == 0, closes, comma & item),
        ),
    )
    fits = np.where(is_first, is_value & ~is_name, fits)
    fits &= ~is_last | ((separator == 0) & ~is_name)
    taken[row[~fits]] = False
    return container, is_name


def _slices(data: Bytes, start: Index, end: Index) -> Any:
    """Return parts of UTF-8 that do not overlap, in order, as a LargeStringArray."""
    offsets = np.empty(2 * len(start), np.int64)
    offsets[::2], offsets[1::2] = start, end
    if not len(start):
        return pa.array([], pa.large_string())
    pieces: Any = pa.LargeStringArray.from_buffers(
        len(offsets) - 1, to_buffer(offsets), to_buffer(data)
    )
    return pieces.take(pa.array(np.arange(0, len(offsets), 2)))


def _read_scalars(data: Bytes, tokens: _Tokens, taken: Mask) -> tuple[Index, Any, Any]:
    """Return the scalars, their texts, and their kinds: a literal, an integer or a decimal."""
    index = np.flatnonzero(tokens.code == _SCALAR)
    short = tokens.end[index] - tokens.start[index] <= _MAX_NUMBER
    taken[tokens.row[index[~short]]] = False
    index = index[short]
    texts = _slices(data, tokens.start[index], tokens.end[index])
    kind = np.zeros(len(index), np.int8)
    for code, text in enumerate(("null", "true", "false"), 1):
        kind[pc.equal(texts, pa.scalar(text, pa.large_string())).to_numpy(zero_copy_only=False)] = (
            code
        )
    numbers = np.flatnonzero(kind == 0)
    found = texts.take(to_arrow(numbers))
    valid = pc.match_substring_regex(found, _NUMBER).to_numpy(zero_copy_only=False)
    point = pc.find_substring(found, ".").to_numpy()
    kind[numbers] = np.where(valid, np.where(point < 0, 4, 5), 0)
    taken[tokens.row[index[kind == 0]]] = False
    return index, texts, kind


def _check_names(
    data: Bytes, tokens: _Tokens, is_name: Mask, container: Index, taken: Mask
) -> None:
    """Leave out texts with an object that has two fields of one name."""
    names = np.flatnonzero(is_name)
    if not len(names):
        return
    texts = _slices(data, tokens.start[names] + 1, tokens.end[names])
    codes = texts.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = container[names] * (int(codes.max()) + 1) + codes
    order = np.argsort(pairs, kind="stable")
    repeated = order[1:][pairs[order][1:] == pairs[order][:-1]]
    taken[tokens.row[names[repeated]]] = False


def _make_levels(
    data: Bytes,
    tokens: _Tokens,
    depth: Index,
    container: Index,
    is_name: Mask,
    kept: Mask,
    scalars: tuple[Index, Any, Any],
    taken: Mask,
) -> list[EncodedLevel]:
    """Return the values by depth, for `encoder.encode_levels`."""
    code = tokens.code
    new_row = np.cumsum(taken) - 1
    is_value = _IS_VALUE[code] & ~is_name & kept
    value_depth = depth - _OPENS[code]
    scalar_at = np.full(len(code), -1, np.int64)
    scalar_at[scalars[0]] = np.arange(len(scalars[0]))
    values = np.flatnonzero(is_value)
    by_depth = values[np.argsort(value_depth[values].astype(np.int16), kind="stable")]
    bounds = np.searchsorted(
        value_depth[by_depth], np.arange(int(value_depth[values].max(initial=0)) + 2)
    )
    # The bracket of an inner bracket is not known as that of its contents.
    parent = container.copy()
    place = np.empty(len(code), np.int64)
    current = by_depth[bounds[0] : bounds[1]]
    levels: list[EncodedLevel] = []
    for level in range(len(bounds) - 1):
        place[current] = np.arange(len(current))
        kind = code[current]
        objects, arrays = np.flatnonzero(kind == _OBJECT), np.flatnonzero(kind == _ARRAY)
        last = level + 2 == len(bounds)
        below = by_depth[:0] if last else by_depth[bounds[level + 1] : bounds[level + 2]]
        owner = parent[below]
        in_array = code[owner] == _ARRAY
        order = np.argsort(in_array * np.int64(len(current)) + place[owner], kind="stable")
        below = below[order]
        owner = place[parent[below]]
        counts = np.bincount(owner, minlength=len(current))
        names = below[~in_array[order]] - 1  # the name of each value is before it
        levels.append(
            EncodedLevel(
                len(current),
                _encode_leaves(data, tokens, current, kind, scalar_at, scalars),
                objects,
                counts[objects],
                _take_slices(data, tokens, names),
                new_row[tokens.row[names]],
                arrays,
                counts[arrays],
            )
        )
        current = below
    return levels


def _take_slices(data: Bytes, tokens: _Tokens, index: Index) -> Any:
    """Return the texts of some tokens, in any order."""
    order = np.argsort(index, kind="stable")
    rank = np.empty(len(index), np.int64)
    rank[order] = np.arange(len(index))
    ordered = index[order]
    texts = _slices(data, tokens.start[ordered] + 1, tokens.end[ordered])
    return texts.take(to_arrow(rank))


def _encode_leaves(
    data: Bytes,
    tokens: _Tokens,
    current: Index,
    kind: Any,
    scalar_at: Index,
    scalars: tuple[Index, Any, Any],
) -> list[tuple[Index, Any]]:
    leaves: list[tuple[Index, Any]] = []
    texts = np.flatnonzero(kind == _TEXT)
    if len(texts):
        leaves.append((texts, build_strings(_take_slices(data, tokens, current[texts]))))
    places = np.flatnonzero(kind == _SCALAR)
    at = scalar_at[current[places]]
    kinds = scalars[2][at]
    literals = kinds <= 3
    if literals.any():
        heads = np.array([0, 0, Kind.TRUE << 2, Kind.FALSE << 2], np.uint8)[kinds[literals]]
        leaves.append((places[literals], make_binary(heads, np.arange(len(heads) + 1))))
    for code, encode in ((4, _encode_integers), (5, _encode_decimals)):
        selected = np.flatnonzero(kinds == code)
        if len(selected):
            numbers = scalars[1].take(to_arrow(at[selected]))
            leaves.extend((places[selected][part], array) for part, array in encode(numbers))
    return leaves


def _encode_integers(texts: Any) -> list[tuple[Any, Any]]:
    return [(slice(None), encode_integers(texts.cast(pa.int64()).to_numpy()))]


def _encode_decimals(texts: Any) -> list[tuple[Any, Any]]:
    unscaled = pc.replace_substring(texts, ".", "").cast(pa.int64()).to_numpy()
    scales = pc.binary_length(texts).to_numpy() - pc.find_substring(texts, ".").to_numpy() - 1
    found: list[tuple[Any, Any]] = []
    is_small = np.abs(unscaled) < 10**9
    for kind, selected, width in ((Kind.DECIMAL4, is_small, 4), (Kind.DECIMAL8, ~is_small, 8)):
        count = int(selected.sum())
        if count:
            encoded = np.empty((count, width + 2), np.uint8)
            encoded[:, 0] = kind << 2
            encoded[:, 1] = scales[selected]
            encoded[:, 2:] = (
                unscaled[selected].astype(f"<i{width}").view(np.uint8).reshape(-1, width)
            )
            offsets = np.arange(count + 1) * (width + 2)
            found.append((np.flatnonzero(selected), make_binary(encoded.reshape(-1), offsets)))
    return found
