"""Tensors in regions that a daemon shares: where they are, and the batches that hold them.

Another process builds such a tensor from its place. The worker of a loader holds its batches while
the trainer uses their tensors.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import SplitArrowError
from ..transport.memory.mapped_region import REGIONS
from ..transport.memory.pages import view_bytes
from ..transport.memory.sealed import SealedMemoryWriter
from ..transport.shm import get_peer_credentials
from .tensors import torch

MAX_MESSAGE = 64 << 10
"""The size of the largest message, in bytes."""


class MappedPlace(NamedTuple):
    """The place of a tensor in a region. It can be pickled."""

    region: int
    """The number of the region in the process that sends the tensor."""
    size: int
    """The size of the region in bytes."""
    offset: int
    """The first byte of the tensor in the region."""
    nbytes: int
    """The number of bytes from the first to the last element."""
    dtype: Any
    """The type of the tensor."""
    shape: tuple[int, ...]
    """The shape of the tensor."""
    strides: tuple[int, ...]
    """The distance between neighbors in each dimension, in elements."""


def find_place(value: Any) -> MappedPlace | None:
    """Return the place of a tensor, or None if it is not in a region that can be passed."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not value.numel():
        return None
    shape, strides = tuple(value.shape), tuple(value.stride())
    elements = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    nbytes = elements * value.element_size()
    address = value.data_ptr()
    found = REGIONS.find(address, nbytes)
    if found is None:
        return None
    number, region = found
    offset = address - region.address
    return MappedPlace(number, region.size, offset, nbytes, value.dtype, shape, strides)


def build_tensor(buffer: pa.Buffer, place: MappedPlace) -> Any:
    """Return the tensor in a buffer of `place.nbytes` bytes, which it keeps alive."""
    memory = pa.Array.from_buffers(pa.uint8(), place.nbytes, [None, buffer])
    elements = torch.from_dlpack(memory).view(place.dtype)
    return elements.as_strided(place.shape, place.strides)


class MessageKind(bytes, Enum):
    """The first byte of a message between the process that holds a batch and the one that uses it.

    Integers of 64 bits follow.
    """

    RELEASE = b"F"
    """The tensors of these batches are gone. There is no response."""
    REGION = b"R"
    """Send the descriptors of a region. The response has them."""
    COPY = b"C"
    """Send a copy of a batch. The response has its descriptor, and the offset of each tensor."""
    LOST = b"L"
    """The response if the region cannot be passed any more."""

    def pack(self, *numbers: int) -> bytes:
        """Return a message."""
        return self.value + struct.pack(f"={len(numbers)}Q", *numbers)


def unpack_message(message: bytes) -> tuple[MessageKind, tuple[int, ...]]:
    """Return the kind of a message and its numbers."""
    numbers = struct.unpack(f"={len(message) // 8}Q", message[1:])
    return MessageKind(message[:1]), numbers


class HeldBatches:
    """The batches that other processes use, and the socket at which these release them.

    The socket exists once it is needed. Any thread may use the object.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[int, tuple[Sequence[Any], Sequence[MappedPlace]]] = {}
        self._address = ""
        self._socket: socket.socket | None = None
        self._connections: set[socket.socket] = set()

    @property
    def count(self) -> int:
        """The number of batches."""
        return len(self._batches)

    def hold(self, tensors: Sequence[Any], places: Sequence[MappedPlace]) -> tuple[str, int]:
        """Keep tensors until another process releases them.

        Return the address of the socket, which is in the abstract namespace, and their number.
        """
        with self._lock:
            if self._socket is None:
                # It has no file, which a worker that is killed would leave.
                self._address = f"\0splitarrow-batches-{os.getpid()}-{secrets.token_hex(8)}"
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._socket.bind(self._address)
                self._socket.listen()
                threading.Thread(
                    target=self._accept,
                    args=(self._socket,),
                    name="splitarrow-batches",
                    daemon=True,
                ).start()
            number = next(self._numbers)
            self._batches[number] = (tensors, places)
            return self._address, number

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if get_peer_credentials(connection)[1] not in (0, os.geteuid()):
                connection.close()
                continue
            self._connections.add(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="splitarrow-batches", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer the messages of one process until it ends."""
        with connection:
            try:
                while message := connection.recv(MAX_MESSAGE):
                    kind, numbers = unpack_message(message)
                    if kind is MessageKind.RELEASE:
                        for number in numbers:
                            self._batches.pop(number, None)
                    elif kind is MessageKind.REGION:
                        self._send_region(connection, *numbers)
                    else:
                        self._send_copy(connection, *numbers)
            except OSError:
                pass  # the process has ended
            self._connections.discard(connection)

    def _send_region(self, connection: socket.socket, number: int) -> None:
        region = REGIONS.get(number)
        if region is not None:
            try:
                with region.hold_descriptors() as descriptors:
                    socket.send_fds(connection, [MessageKind.REGION.pack()], descriptors)
                return
            except SplitArrowError:
                pass  # the file is being changed, or its server is gone
        connection.send(MessageKind.LOST.pack())

    def _send_copy(self, connection: socket.socket, number: int) -> None:
        tensors, places = self._batches[number]
        writer = SealedMemoryWriter("a batch")
        offsets: list[int] = []
        try:
            for tensor, place in zip(tensors, places, strict=True):
                memory = view_bytes(tensor.data_ptr(), place.nbytes)
                offsets.append(writer.append(b"", [memory], place.nbytes))
            copy = writer.seal()
        except SplitArrowError:  # the host has no memory left
            connection.send(MessageKind.LOST.pack())
            return
        message = MessageKind.COPY.pack(copy.size, *offsets)
        socket.send_fds(connection, [message], [copy.fileno()])

    def close(self) -> None:
        """Release all batches, and end the threads."""
        with self._lock:
            for open_socket in (self._socket, *self._connections):
                if open_socket is not None:
                    with contextlib.suppress(OSError):
                        open_socket.shutdown(socket.SHUT_RDWR)
            self.after_fork()

    def after_fork(self) -> None:
        """Start anew in a forked process, whose parent listens at the socket."""
        if self._socket is not None:
            self._socket.close()
        self._start_empty()


HELD = HeldBatches()
"""The held batches of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HELD.after_fork)
