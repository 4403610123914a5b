"""Variants as JSON texts, by columns.

Numbers become JSON numbers: a decimal keeps the digits of its scale, and a floating-point number
has a fraction. Dates, times and timestamps become ISO 8601 strings, with ``+00:00`` where they are
instants; UUIDs and binary values (Base64) become strings, and so do NaN and the infinities, which
JSON has no numbers for. Fields are in the order of their names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .buffers import binary_parts, make_binary, to_arrow
from .escaping import escape_json
from .levels import Level, parse_levels
from .names import Names
from .scalar_text import ScalarTexts, render_scalars
from .values import Entries, Values


def render_json(values: Values) -> Any:
    """Return values as JSON texts.

    Returns
    -------
    pyarrow.LargeStringArray, shape (n,)
        The texts.

    Raises
    ------
    InvalidDataError
        If a value is invalid.
    """
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


def _render_level(level: Level, below: ScalarTexts, separators: _Separators) -> ScalarTexts:
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
