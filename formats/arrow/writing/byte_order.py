"""Reversing the byte order of buffers. Everything between two orders is its own inverse."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate

from .layouts import BYTES, VIEWS, Units

_TYPE_CODES = {2: "H", 4: "I", 8: "Q"}
_VIEW_BYTES, _INLINE_BYTES = 16, 12
_LITTLE, _BIG = struct.Struct("<i12x"), struct.Struct(">i12x")


def swap_bytes(
    data: bytes | memoryview, units: Units, *, is_big: bool
) -> bytes | bytearray | memoryview:
    r"""Return a buffer with the bytes of each number reversed.

    Parameters
    ----------
    data : bytes-like
        The buffer. Bytes after the last complete element are copied.
    units : tuple of int
        The sizes of the numbers that the buffer repeats.
    is_big : bool
        Whether the buffer is big-endian. Only views depend on it.

    Examples
    --------
    >>> bytes(swap_bytes(b"\1\0\2\0", (2,), is_big=False)).hex()
    '00010002'
    """
    view = memoryview(data).cast("B")
    if units == BYTES or not view.nbytes:
        return view
    if units == VIEWS:
        return _swap_views(view, is_big=is_big)
    if len(units) == 1 and units[0] in _TYPE_CODES:
        (size,) = units
        whole = view.nbytes - view.nbytes % size
        numbers = array(_TYPE_CODES[size])
        numbers.frombytes(view[:whole])
        numbers.byteswap()
        swapped = memoryview(numbers).cast("B")
        return swapped if whole == view.nbytes else bytes(swapped) + bytes(view[whole:])
    return _permute(view, units)


def _permute(view: memoryview, units: Units) -> bytearray:
    """Reverse the bytes of each unit of records of any size."""
    size = sum(units)
    whole = view.nbytes - view.nbytes % size
    swapped = bytearray(view)
    source = bytes(view[:whole])
    for end, unit in zip(accumulate(units), units, strict=True):
        for place in range(unit):
            swapped[end - unit + place : whole : size] = source[end - 1 - place :: size]
    return swapped


def _swap_views(view: memoryview, *, is_big: bool) -> bytearray:
    """Reverse views: a length, and either the bytes themselves or a prefix, index and offset."""
    swapped = bytearray(view)
    whole = view.nbytes - view.nbytes % _VIEW_BYTES
    source = bytes(view[:whole])
    # The length, the index and the offset; the prefix has no order.
    for begin in (0, 8, 12):
        for place in range(4):
            swapped[begin + place : whole : _VIEW_BYTES] = source[begin + 3 - place :: _VIEW_BYTES]
    lengths = (_BIG if is_big else _LITTLE).iter_unpack(source)
    for number, (length,) in enumerate(lengths):
        if 0 <= length <= _INLINE_BYTES:
            begin = number * _VIEW_BYTES
            swapped[begin + 4 : begin + _VIEW_BYTES] = source[begin + 4 : begin + _VIEW_BYTES]
    return swapped
