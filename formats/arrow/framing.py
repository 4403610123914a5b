"""Encapsulation of Arrow IPC messages ("Encapsulated message format")."""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import ProtocolError

CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + bytes(4)

_I32 = struct.Struct("<i")
_PREFIX = struct.Struct("<4sI")


def align(length: int) -> int:
    """Return `length` rounded up to a multiple of 8 bytes, the alignment of Arrow IPC."""
    return (length + 7) & ~7


def encapsulate(metadata: bytes | memoryview) -> bytes:
    """Return the continuation marker, the length and the padded metadata of a message.

    The body may follow directly.
    """
    size = align(len(metadata))
    return b"".join((_PREFIX.pack(CONTINUATION, size), metadata, bytes(size - len(metadata))))


class Prefix(NamedTuple):
    """The first bytes of an encapsulated message."""

    nbytes: int
    """The size of the prefix: 8 bytes, or 4 bytes in the format before Arrow 0.15."""
    metadata_length: int
    """The size of the padded metadata in bytes. 0 marks the end of the stream."""


def parse_prefix(data: bytes | memoryview) -> Prefix:
    """Parse the prefix of an encapsulated message.

    Parameters
    ----------
    data : bytes-like
        The first 8 bytes of the message. 4 bytes are enough for the format before Arrow 0.15.

    Raises
    ------
    ProtocolError
        If `data` is too short or declares a negative length.
    """
    if len(data) >= 8 and bytes(data[:4]) == CONTINUATION:
        prefix = Prefix(8, _I32.unpack_from(data, 4)[0])
    elif len(data) >= 4 and bytes(data[:4]) != CONTINUATION:
        prefix = Prefix(4, _I32.unpack_from(data, 0)[0])
    else:
        raise ProtocolError(f"the prefix of an Arrow IPC message has only {len(data)} bytes")
    if prefix.metadata_length < 0:
        raise ProtocolError(
            f"an Arrow IPC message declares {prefix.metadata_length} bytes of metadata"
        )
    return prefix
