"""Bodies whose buffers are at any offsets of a region.

Arrow's decoder needs one range of memory that contains the buffers at the offsets in the metadata.
If the buffers have these offsets within the region, the metadata fits unchanged. Otherwise a copy
of the metadata gets the actual offsets, and the buffers stay in place.

A server that sends bodies of type 1 (offsets) finds the buffers with `BufferLocator`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import ProtocolError
from .message import (
    BatchLayout,
    BufferSpan,
    HeaderType,
    find_body_length,
    find_buffers,
    read_batch_layout,
    read_message_info,
)
from .tensors.layout import read_tensor_buffers

ALIGNMENT = 8
"""The alignment of buffers in a body, in bytes ("Recordbatch body structure")."""
_COPY_ALIGNMENT = 64
_I64 = struct.Struct("<q")


Span = tuple[int, int]
"""An offset and a length, in bytes."""


class BodyLocation(NamedTuple):
    """A range of a region that contains the buffers of a message."""

    metadata: bytes
    """The metadata with the offsets of the buffers in the range."""
    begin: int
    """The offset of the range in the region, in bytes."""
    nbytes: int
    """The size of the range in bytes."""


def check_buffer_lengths(buffers: Sequence[BufferSpan], spans: Sequence[Span]) -> None:
    """Check that the buffers have the lengths that the metadata lists."""
    for index, (buffer, (_, length)) in enumerate(zip(buffers, spans, strict=True)):
        if buffer.length != length:
            raise ProtocolError(
                f"buffer {index} of a body of offsets has {length} bytes; its metadata lists "
                f"{buffer.length}"
            )


def locate_body(
    metadata: bytes, layout: BatchLayout, spans: Sequence[Span], region_size: int
) -> BodyLocation | None:
    """Return the range of a region that contains the buffers of a message.

    The spans are those of the buffers, within the region. Return None if the alignment of a buffer
    requires a copy.
    """
    body_length = read_message_info(metadata).body_length
    filled = [
        (offset, buffer.offset)
        for (offset, length), buffer in zip(spans, layout.buffers, strict=True)
        if length
    ]
    if not filled:
        if not body_length:
            return BodyLocation(metadata, 0, 0)
        return _patch_metadata(metadata, spans, 0, 0)
    begin = filled[0][0] - filled[0][1]
    if (
        begin >= 0
        and begin % ALIGNMENT == 0
        and begin + body_length <= region_size
        and all(offset - expected == begin for offset, expected in filled)
    ):
        return BodyLocation(metadata, begin, body_length)
    begin = min(offset for offset, _ in filled)
    end = max(offset + length for offset, length in spans)
    if any((offset - begin) % ALIGNMENT for offset, _ in filled):
        return None
    return _patch_metadata(metadata, spans, begin, end - begin)


def plan_packed_body(metadata: bytes, spans: Sequence[Span]) -> tuple[BodyLocation, list[Span]]:
    """Return an aligned layout for a copy of the buffers of a message."""
    packed: list[Span] = []
    end = 0
    for _, length in spans:
        packed.append((end if length else 0, length))
        end += -(-length // _COPY_ALIGNMENT) * _COPY_ALIGNMENT
    if not end and not read_message_info(metadata).body_length:
        return BodyLocation(metadata, 0, 0), packed  # It may omit the fields to patch.
    return _patch_metadata(metadata, packed, 0, end), packed


def _patch_metadata(
    metadata: bytes, spans: Sequence[Span], begin: int, nbytes: int
) -> BodyLocation:
    """Return a location whose metadata lists the spans relative to `begin`."""
    patched = bytearray(metadata)
    _I64.pack_into(patched, find_body_length(metadata), nbytes)
    numbers = [
        number for offset, length in spans for number in (offset - begin if length else 0, length)
    ]
    struct.pack_into(f"<{len(numbers)}q", patched, find_buffers(metadata), *numbers)
    return BodyLocation(bytes(patched), begin, nbytes)


class BufferLocator:
    """Locates the buffers of messages whose packed bodies are in a region.

    Consecutive messages with equal metadata are parsed once.
    """

    def __init__(self) -> None:
        self._metadata = b""
        self._buffers: list[Span] = []

    def locate(self, metadata: bytes | memoryview, body_length: int, offset: int) -> list[Span]:
        """Return the span of each buffer in the region, (0, 0) for an empty buffer.

        `body_length` is the size of the packed body, and `offset` its offset in the region.
        """
        if metadata != self._metadata:
            self._buffers = _check_buffers(_read_buffers(metadata), body_length)
            self._metadata = bytes(metadata)
        return [(offset + begin, length) if length else (0, 0) for begin, length in self._buffers]


def _read_buffers(metadata: bytes | memoryview) -> list[BufferSpan]:
    if read_message_info(metadata).header_type in (HeaderType.TENSOR, HeaderType.SPARSE_TENSOR):
        return read_tensor_buffers(metadata)
    return read_batch_layout(metadata).buffers


def _check_buffers(buffers: list[BufferSpan], body_length: int) -> list[Span]:
    """Return the spans of the buffers in the body, all of which are within it."""
    for index, (offset, length) in enumerate(buffers):
        if offset < 0 or length < 0 or offset + length > body_length:
            raise ProtocolError(
                f"buffer {index} (offset {offset}, length {length}) is outside the body of "
                f"{body_length} bytes"
            )
    return [(offset, length) for offset, length in buffers]
