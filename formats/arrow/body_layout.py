"""Decoding of bodies whose buffers are at any offsets of a region.

Arrow's decoder needs one range of memory that contains the buffers at the offsets in the metadata.
If the buffers have these offsets within the region, the metadata fits unchanged. Otherwise a copy
of the metadata gets the actual offsets, and the buffers stay in place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import ProtocolError
from .message import BatchLayout, BufferSpan, find_body_length, find_buffers, read_message_info

ALIGNMENT = 8
"""The alignment of buffers in a body, in bytes ("Recordbatch body structure")."""
_COPY_ALIGNMENT = 64
_I64 = struct.Struct("<q")


class BodyLocation(NamedTuple):
    """A range of a region that contains the buffers of a message."""

    metadata: bytes
    """The metadata with the offsets of the buffers in the range."""
    begin: int
    """The offset of the range in the region, in bytes."""
    nbytes: int
    """The size of the range in bytes."""


def check_buffer_lengths(buffers: Sequence[BufferSpan], spans: Sequence[tuple[int, int]]) -> None:
    """Check that the buffers have the lengths that the metadata lists.

    Raises
    ------
    ProtocolError
        If the length of a buffer differs. The error gives its index.
    """
    for index, (buffer, (_, length)) in enumerate(zip(buffers, spans, strict=True)):
        if buffer.length != length:
            raise ProtocolError(
                f"buffer {index} of a body of offsets has {length} bytes; its metadata lists "
                f"{buffer.length}"
            )


def locate_body(
    metadata: bytes, layout: BatchLayout, spans: Sequence[tuple[int, int]], region_size: int
) -> BodyLocation | None:
    """Return the range of a region that contains the buffers of a message.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of the message.
    layout : BatchLayout
        The layout that the metadata describes.
    spans : sequence of (offset, length)
        The span of each buffer in the region, which must be within it.
    region_size : int
        The size of the region in bytes.

    Returns
    -------
    BodyLocation or None
        None if the alignment of a buffer requires a copy.

    Raises
    ------
    ProtocolError
        If the metadata is malformed.
    """
    body_length = read_message_info(metadata).body_length
    filled = [
        (offset, buffer.offset)
        for (offset, length), buffer in zip(spans, layout.buffers, strict=True)
        if length
    ]
    if not filled:
        return (
            BodyLocation(metadata, 0, 0)
            if not body_length
            else _patch_metadata(metadata, spans, 0, 0)
        )
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


def plan_packed_body(
    metadata: bytes, spans: Sequence[tuple[int, int]]
) -> tuple[BodyLocation, list[tuple[int, int]]]:
    """Return an aligned layout for a copy of the buffers of a message.

    Returns
    -------
    BodyLocation
        The metadata and the size of the copy.
    list of (offset, length)
        The span of each buffer in the copy.

    Raises
    ------
    ProtocolError
        If the metadata is malformed.
    """
    packed: list[tuple[int, int]] = []
    end = 0
    for _, length in spans:
        packed.append((end if length else 0, length))
        end += -(-length // _COPY_ALIGNMENT) * _COPY_ALIGNMENT
    if not end and not read_message_info(metadata).body_length:
        return BodyLocation(metadata, 0, 0), packed  # It may omit the fields to patch.
    return _patch_metadata(metadata, packed, 0, end), packed


def _patch_metadata(
    metadata: bytes, spans: Sequence[tuple[int, int]], begin: int, nbytes: int
) -> BodyLocation:
    """Return a location whose metadata lists the spans relative to `begin`."""
    patched = bytearray(metadata)
    _I64.pack_into(patched, find_body_length(metadata), nbytes)
    numbers = [
        number for offset, length in spans for number in (offset - begin if length else 0, length)
    ]
    struct.pack_into(f"<{len(numbers)}q", patched, find_buffers(metadata), *numbers)
    return BodyLocation(bytes(patched), begin, nbytes)
