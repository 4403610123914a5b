"""Compressed messages whose buffers do not all shrink ("BodyCompression").

Arrow's writer compresses every buffer, even one that becomes larger. A reader need not decompress a
buffer that is stored as it is, after the length -1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from .message import find_buffers, read_batch_layout

_LENGTH = struct.Struct("<q")
_NOT_COMPRESSED = _LENGTH.pack(-1)
_SPAN_BYTES = 16


def store_incompressible(
    metadata: bytes, parts: Sequence[Any], codec: Any
) -> tuple[bytes, list[Any]]:
    """Return a message whose buffers are compressed only if that makes them smaller.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of a compressed record batch or dictionary batch, as Arrow's writer wrote it.
    parts : sequence of bytes-like
        The parts of its body, each buffer in a part of its own.
    codec : pyarrow.Codec
        The codec of the message.

    Returns
    -------
    tuple of bytes and list
        The metadata and the parts. The body keeps its size and the offsets of its buffers.
    """
    sizes = [memoryview(part).nbytes for part in parts]
    numbers = dict(zip(accumulate(sizes, initial=0), range(len(parts)), strict=False))
    changed: dict[int, Any] = {}
    patched = bytearray(metadata)
    for index, (offset, length) in enumerate(read_batch_layout(metadata).buffers):
        number = numbers.get(offset)
        if number is None or sizes[number] != length or length < _LENGTH.size:
            continue
        part = memoryview(parts[number])
        (size,) = _LENGTH.unpack_from(part)
        if 0 < size <= length - _LENGTH.size:
            stored = codec.decompress(part[_LENGTH.size :], size, asbytes=True)
            padding = bytes(length - _LENGTH.size - size)
            changed[number] = _NOT_COMPRESSED + stored + padding
            place = find_buffers(metadata) + index * _SPAN_BYTES + _LENGTH.size
            _LENGTH.pack_into(patched, place, _LENGTH.size + size)
    if not changed:
        return metadata, list(parts)
    return bytes(patched), [changed.get(number, part) for number, part in enumerate(parts)]
