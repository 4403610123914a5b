"""The messages between a process and its child that decodes for it.

Each is a header, followed by a text; memory without a name (``memfd_create(2)``) may come with it.
The child's messages are read as carefully as those of a stranger.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from ..errors import InvalidDataError

_HEADER = struct.Struct("<BI5Q")
_MAX_TEXT_BYTES = 64 << 10
RESULT_COLUMN = "array"
"""The only column of a result."""
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1, 2, 4, 8
_SEALS = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE
_MAX_IOVECS = 512


class Kind(IntEnum):
    """The type of a message."""

    READY = 0
    """The child has started."""
    DECODE = 1
    """A request to decode an array message, which the memory has."""
    DECODED = 2
    """The memory has the result as an Arrow IPC stream of one batch with one column."""
    REFUSED = 3
    """The library refused the array; the text has the reason."""
    TOO_LARGE = 4
    """The result is larger than the limit; the text has the reason."""


class Packet(NamedTuple):
    """A message between the two processes."""

    kind: Kind
    """Its type."""
    numbers: tuple[int, ...] = (0, 0, 0, 0, 0)
    """The parameters of a request: the size of the dtype message in bytes, that of the schema of
    the result after it (0 if the library chooses), the number of rows, the smallest size of the
    rows in bytes, and the largest size of the result in bytes."""
    text: str = ""
    """The reason."""
    descriptor: int = -1
    """The memory; -1 if there is none. The receiver owns it."""


def send_packet(connection: socket.socket, packet: Packet) -> None:
    """Send a message. The descriptor stays open.

    Raises
    ------
    OSError
        If the other process is gone.
    """
    text = packet.text.encode(errors="replace")[:_MAX_TEXT_BYTES]
    data = _HEADER.pack(packet.kind, len(text), *packet.numbers) + text
    sent = socket.send_fds(
        connection, [data], [packet.descriptor] if packet.descriptor >= 0 else []
    )
    connection.sendall(data[sent:])


def receive_packet(connection: socket.socket) -> Packet | None:
    """Return the next message; None if the other process is gone.

    Raises
    ------
    TimeoutError
        If no message arrives within the timeout of the socket.
    """
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(_HEADER.size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) // 4 * 4])
    descriptor = descriptors[0] if descriptors else -1
    try:
        data += _receive_rest(connection, _HEADER.size - len(data)) if data else b""
        if len(data) < _HEADER.size:
            raise EOFError
        kind, length, *numbers = _HEADER.unpack(data)
        text = _receive_rest(connection, min(length, _MAX_TEXT_BYTES))
        return Packet(Kind(kind), tuple(numbers), text.decode(errors="replace"), descriptor)
    except (EOFError, ValueError, ConnectionError):
        if descriptor >= 0:
            os.close(descriptor)
        return None


def _receive_rest(connection: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = connection.recv(nbytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def store(pieces: Iterable[Any], *, is_sealed: bool = False) -> int:
    """Write bytes into new memory, and return its descriptor.

    Parameters
    ----------
    pieces : iterable of bytes-like
        The bytes.
    is_sealed : bool
        Whether no process may change the memory afterwards.

    Raises
    ------
    OSError
        If the system is out of memory or descriptors.
    """
    descriptor = os.memfd_create("splitarrow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        views = [memoryview(piece).cast("B") for piece in pieces]
        views = [view for view in views if view.nbytes]
        while views:
            written = os.writev(descriptor, views[:_MAX_IOVECS])
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if written:
                views[0] = views[0][written:]
        if is_sealed:
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_memory(descriptor: int) -> Any:
    """Return memory of the other process as a read-only mapping.

    Raises
    ------
    OSError, ValueError
        If it cannot be mapped, for example because it is empty.
    """
    return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)


def check_sealed(descriptor: int) -> None:
    """Check that the other process cannot change or truncate memory any more.

    Raises
    ------
    InvalidDataError
        If it can.
    """
    if fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEALS != _SEALS:
        raise InvalidDataError("the decoder process returned memory that is not sealed")
