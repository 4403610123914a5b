"""The memory of received bodies: where it comes from and how it is laid out.

A body begins at a 64-byte aligned address. In host memory, the decoder can use the *headroom* in
front of it to write the metadata of the message there, because pyarrow decodes a message without
copying only if metadata and body are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import pyarrow as pa

from ..errors import LimitError, UsageError

ALIGNMENT = 64
"""The alignment of bodies in bytes."""
ARENA_BYTES = 128 << 10
"""The size of an allocation that small bodies share, in bytes."""
SMALL_BODY_BYTES = 16 << 10
"""The largest body that shares an allocation, in bytes, including its headroom."""
_MAX_HEADROOM = 64 << 10
"""The largest headroom that is reserved for a body smaller than itself, in bytes."""


class Allocator(Protocol):
    """Supplies the memory that a reader receives message bodies into.

    Bodies that a transport maps or passes by reference (`shm`, `inproc`) need no allocation.
    """

    @property
    def is_host(self) -> bool:
        """Whether the memory is host memory, which this process can read and write directly."""
        ...

    def allocate(self, nbytes: int) -> pa.Buffer:
        """Return a mutable buffer of exactly `nbytes` bytes at a 64-byte aligned address.

        The received record batches keep the buffer alive. The allocator may reuse the memory
        once the buffer has been collected.

        Raises
        ------
        MemoryError
            If there is not enough memory. The stream then fails with a `LimitError`.
        """
        ...


class HostAllocator:
    """Allocates pageable host memory from pyarrow's default memory pool."""

    is_host = True

    def allocate(self, nbytes: int) -> pa.Buffer:
        """Return a buffer; see `Allocator.allocate`."""
        return pa.allocate_buffer(nbytes)


DEFAULT_ALLOCATOR: Allocator = HostAllocator()


class DeviceSpan:
    """A part of an outgoing body that is in the memory of a device."""

    __slots__ = ("address", "nbytes", "owner", "type_code")

    def __init__(self, address: int, nbytes: int, type_code: int, owner: object) -> None:
        self.address = address
        self.nbytes = nbytes
        self.type_code = type_code
        self.owner = owner

    def slice(self, nbytes: int) -> DeviceSpan:
        """Return the first `nbytes` bytes."""
        return DeviceSpan(self.address, nbytes, self.type_code, self.owner)


class ReceivedBody:
    """The payload of a received tagged message: `nbytes` bytes at the offset `start` of `buffer`.

    Any slice of `buffer` keeps the memory alive. `view` is the same memory; empty on a device.
    """

    __slots__ = ("buffer", "nbytes", "start", "view")

    def __init__(self, buffer: pa.Buffer, view: memoryview, start: int, nbytes: int) -> None:
        self.buffer = buffer
        self.view = view
        self.start = start
        self.nbytes = nbytes

    @classmethod
    def wrap(cls, buffer: pa.Buffer) -> ReceivedBody:
        """Return a body that consists of `buffer`, without headroom."""
        return cls(buffer, memoryview(buffer).cast("B"), 0, buffer.size)

    @classmethod
    def copy(
        cls,
        payload: bytes | memoryview,
        headroom: int = 0,
        allocator: Allocator = DEFAULT_ALLOCATOR,
    ) -> ReceivedBody:
        """Return a body with a copy of `payload`, in host memory that the allocator supplies."""
        data = memoryview(payload).cast("B")
        body = BodyPool(allocator).allocate(data.nbytes, headroom)
        body.view[body.start :] = data
        return body

    def payload(self) -> pa.Buffer:
        """Return the payload without its headroom. The memory is shared."""
        return self.buffer.slice(self.start, self.nbytes)

    def __bytes__(self) -> bytes:
        return bytes(self.view[self.start :])


class BodyPool:
    """Allocates the memory of the bodies that one connection receives.

    Small bodies share an allocation. Each then costs a slice instead of an allocation, but keeps
    up to `ARENA_BYTES` alive. Bodies outside host memory get no headroom and share nothing, nor do
    those of a pool that is not `shared`, which needs no memory between two bodies.
    """

    __slots__ = ("_allocate", "_arena", "_arena_view", "_end", "_is_host", "_small_bytes")

    def __init__(self, allocator: Allocator = DEFAULT_ALLOCATOR, *, shared: bool = True) -> None:
        self._allocate: Callable[[int], pa.Buffer] = pa.allocate_buffer
        if not isinstance(allocator, HostAllocator):
            self._allocate = partial(_allocate_checked, allocator)
        self._is_host = allocator.is_host
        self._small_bytes = SMALL_BODY_BYTES if shared and allocator.is_host else -1
        self._arena: pa.Buffer | None = None
        self._arena_view = memoryview(b"")
        self._end = ARENA_BYTES

    def allocate(self, nbytes: int, headroom: int, tag: int | None = None) -> ReceivedBody:
        """Return memory for a body, with about as much headroom as requested, or none at all.

        Raises `LimitError` if there is not enough memory, and `UsageError` if the allocator returns
        an unsuitable buffer.
        """
        start = (headroom + 63) & ~63
        if headroom + nbytes > self._small_bytes:
            if not self._is_host or (headroom > _MAX_HEADROOM and headroom > nbytes):
                start = 0
            try:
                buffer = self._allocate(start + nbytes)
            except MemoryError as error:
                raise describe_exhaustion(nbytes, tag, error) from None
            view = memoryview(buffer).cast("B") if self._is_host else memoryview(b"")
            return ReceivedBody(buffer, view, start, nbytes)
        begin = self._end
        end = begin + start + nbytes
        arena = self._arena
        if end > ARENA_BYTES or arena is None:
            arena = self._arena = self.allocate_buffer(ARENA_BYTES, tag)
            self._arena_view = memoryview(arena).cast("B")
            begin, end = 0, start + nbytes
        self._end = (end + 63) & ~63
        buffer = arena.slice(begin, end - begin)
        return ReceivedBody(buffer, self._arena_view[begin:end], start, nbytes)

    def allocate_buffer(self, nbytes: int, tag: int | None = None) -> pa.Buffer:
        """Return a buffer of `nbytes` bytes; the errors are those of `allocate`."""
        try:
            return self._allocate(nbytes)
        except MemoryError as error:
            raise describe_exhaustion(nbytes, tag, error) from None


def _allocate_checked(allocator: Allocator, nbytes: int) -> pa.Buffer:
    buffer = allocator.allocate(nbytes)
    if buffer.size != nbytes or buffer.address % ALIGNMENT or not buffer.is_mutable:
        raise UsageError(
            f"the allocator returned {buffer.size} bytes at address {buffer.address:#x}; a body "
            f"needs a mutable buffer of {nbytes} bytes, aligned to {ALIGNMENT} bytes"
        )
    return buffer


def describe_exhaustion(nbytes: int, tag: int | None, error: MemoryError) -> LimitError:
    """Return the error for a body of `nbytes` bytes that there is no memory for."""
    reason = f": {error}" if str(error) else ""
    return LimitError(f"cannot allocate {nbytes} bytes for a body{reason}", tag=tag)
