"""Bodies whose buffers lie anywhere in a region of memory: where to look, and with what metadata.

Arrow's decoder wants the buffers of a message in one stretch, at the offsets that its metadata
lists. Where they lie so within the region, the metadata is right as it came. Where they are
scattered, a copy of it is given the offsets from the first of them; the buffers are not moved.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import ProtocolError
from .message import BatchFacts, body_length_position, buffers_position, message_facts

ALIGNMENT = 8
"""What the offset of a buffer has to be a multiple of ("Recordbatch body structure")."""
_COPY_ALIGNMENT = 64
_I64 = struct.Struct("<q")


class Placement(NamedTuple):
    """A stretch of a region that holds the buffers of a message."""

    metadata: bytes
    """The metadata that fits it."""
    begin: int
    """Where it begins in the region, in bytes."""
    nbytes: int
    """How long it is."""


def check_lengths(facts: BatchFacts, spans: Sequence[tuple[int, int]]) -> None:
    """Check that the buffers have the lengths that the metadata lists.

    Raises
    ------
    ProtocolError
        If one has not; it is named by its index.
    """
    for index, (buffer, (_, length)) in enumerate(zip(facts.buffers, spans, strict=True)):
        if buffer.length != length:
            raise ProtocolError(
                f"a body of offsets gives buffer {index} {length} bytes where the metadata "
                f"lists {buffer.length}"
            )


def placement(
    metadata: bytes, facts: BatchFacts, spans: Sequence[tuple[int, int]], region_size: int
) -> Placement | None:
    """Return the stretch of a region that a message's buffers lie in.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of the message.
    facts : BatchFacts
        What it says.
    spans : sequence of (offset, length)
        Where each buffer lies in the region; checked.
    region_size : int
        The size of the region in bytes.

    Returns
    -------
    Placement or None
        None if a buffer begins where Arrow's decoder takes none: it has to be copied.

    Raises
    ------
    ProtocolError
        If the metadata is malformed.
    """
    body_length = message_facts(metadata).body_length
    filled = [
        (offset, buffer.offset)
        for (offset, length), buffer in zip(spans, facts.buffers, strict=True)
        if length
    ]
    if not filled:
        return Placement(metadata, 0, 0) if not body_length else _patched(metadata, spans, 0, 0)
    begin = filled[0][0] - filled[0][1]
    if (
        begin >= 0
        and begin % ALIGNMENT == 0
        and begin + body_length <= region_size
        and all(offset - place == begin for offset, place in filled)
    ):
        return Placement(metadata, begin, body_length)
    begin = min(offset for offset, _ in filled)
    end = max(offset + length for offset, length in spans)
    if any((offset - begin) % ALIGNMENT for offset, _ in filled):
        return None
    return _patched(metadata, spans, begin, end - begin)


def repacked(
    metadata: bytes, spans: Sequence[tuple[int, int]]
) -> tuple[Placement, list[tuple[int, int]]]:
    """Return where the buffers go when they are copied into memory of one's own.

    Returns
    -------
    Placement
        The metadata that fits, and the size of that memory.
    list of (offset, length)
        Where each buffer goes in it.

    Raises
    ------
    ProtocolError
        If the metadata is malformed.
    """
    places: list[tuple[int, int]] = []
    end = 0
    for _, length in spans:
        places.append((end if length else 0, length))
        end += -(-length // _COPY_ALIGNMENT) * _COPY_ALIGNMENT
    return _patched(metadata, places, 0, end), places


def _patched(
    metadata: bytes, spans: Sequence[tuple[int, int]], begin: int, nbytes: int
) -> Placement:
    patched = bytearray(metadata)
    _I64.pack_into(patched, body_length_position(metadata), nbytes)
    flat = [
        number for offset, length in spans for number in (offset - begin if length else 0, length)
    ]
    struct.pack_into(f"<{len(flat)}q", patched, buffers_position(metadata), *flat)
    return Placement(bytes(patched), begin, nbytes)
