"""Buffers that are compressed with LZ4, decompressed under a bound (extra ``vortex``).

vortex-data ignores the flag of such a buffer and returns wrong values. The specification does not
say which format of LZ4 a buffer has. A buffer that begins with the magic number of the frame format
is a frame, since no block begins with these bytes. Any other is one block.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...errors import InvalidDataError, LimitError, MissingExtraError
from ..arrow.flatbuffer import Bytes
from .array_body import ArrayBody, build_array_body

_MAGIC = b"\x04\x22\x4d\x18"
_MAX_RATIO = 255
"""The largest ratio at which LZ4 compresses: each further byte extends a match by 255 bytes."""
_SMALLEST_BOUND = 64
_U32_MAX = 0xFFFFFFFF


def decode_body(body: ArrayBody, max_decoded_bytes: int) -> list[Any]:
    """Return the pieces of a body that vortex-data decodes: no LZ4, and the table last.

    Parameters
    ----------
    body : ArrayBody
        A checked body.
    max_decoded_bytes : int
        The largest size of all buffers together, in bytes.

    Returns
    -------
    list of bytes-like
        The body itself if it is as required. Buffers that are not compressed are not copied.

    Raises
    ------
    InvalidDataError
        If a buffer is not valid LZ4. The error names the buffer.
    LimitError
        If the buffers become larger than `max_decoded_bytes`.
    MissingExtraError
        If a buffer is compressed, and lz4 is not installed.
    """
    entries = body.table.buffers
    if not body.has_table_first and not any(entry.is_compressed for entry in entries):
        return [body.data]
    left = max_decoded_bytes
    buffers: list[Any] = []
    for number, entry in enumerate(entries):
        data: Any = body.find_buffer(number)
        if entry.is_compressed:
            data = _decompress(data, left, number)
        left -= len(data)
        if left < 0:
            raise LimitError(
                f"the buffers of the array have more than {max_decoded_bytes} bytes after "
                "decompression, which is the limit"
            )
        buffers.append(data)
    exponents = [entry.alignment_exponent for entry in entries]
    return build_array_body(body.table_data, body.table.entries_offset, exponents, buffers)


def _decompress(data: Bytes, max_bytes: int, number: int) -> bytes:
    """Return a decompressed buffer of at most `max_bytes`, or of one byte more."""
    try:
        frames: Any = import_module("lz4.frame")
        blocks: Any = import_module("lz4.block")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"buffer {number} is compressed with LZ4, which needs the package lz4; "
            "run pip install 'splitarrow[vortex]'"
        ) from None
    try:
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            bound = min(max_bytes, _U32_MAX, max(_SMALLEST_BOUND, len(data) * _MAX_RATIO))
            return blocks.decompress(data, uncompressed_size=bound)
        decompressor = frames.LZ4FrameDecompressor()
        found: bytes = decompressor.decompress(data, max_length=max_bytes + 1)
    except (RuntimeError, ValueError, MemoryError, blocks.LZ4BlockError) as error:
        raise InvalidDataError(
            f"buffer {number} cannot be decompressed with LZ4 to at most {max_bytes} bytes: {error}"
        ) from None
    if len(found) <= max_bytes and not decompressor.eof:
        raise InvalidDataError(f"buffer {number} is truncated LZ4")
    if decompressor.unused_data:
        raise InvalidDataError(
            f"buffer {number} has {len(decompressor.unused_data)} bytes after its LZ4 frame"
        )
    return found
