"""Strings escaped for JSON, by columns (RFC 8259, section 7)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .buffers import accumulate, binary_parts, make_binary

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
    """Return the content of JSON strings, without their quotes.

    Parameters
    ----------
    texts : pyarrow.LargeBinaryArray
        UTF-8 texts.

    Returns
    -------
    pyarrow.LargeBinaryArray
        The escaped texts; the same array if there is nothing to escape.
    """
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
