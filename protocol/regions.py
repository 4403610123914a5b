"""Regions: memory of the server that a reader maps or reads remotely, and bodies within them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from .memory import ReceivedBody


class Region(Protocol):
    """Read-only memory of another process that a transport has made accessible."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        ...

    def check(self) -> None:
        """Raise `DatasetError` if the memory is not what it was when it was mapped."""
        ...

    def prefixed_buffer(
        self, prefix: bytes, offset: int, nbytes: int, owner: object
    ) -> pa.Buffer | None:
        """Return the buffer at `offset` extended to the front by `prefix`, without copying.

        Return None if the region does not hold `prefix` there and cannot be made to. The other
        parameters are those of `buffer`.
        """
        ...

    def repeats(self, data: bytes, begin: int, period: int, count: int) -> bool:
        """Return whether the region holds `data` at `count` positions, `period` bytes apart.

        All but the first are known to be within the region.
        """
        ...

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        """Return a buffer of the region, without copying. It keeps `owner` alive."""
        ...


class RemoteBody(ReceivedBody):
    """A body of type 1: the offsets and lengths of a message's buffers in a region."""

    __slots__ = ("region",)

    def __init__(self, body: ReceivedBody, region: Region) -> None:
        super().__init__(body.buffer, body.view, body.start, body.nbytes)
        self.region = region


class DeviceHandles(NamedTuple):
    """What another process on this host needs to open memory of a device."""

    type_code: int
    """The type of the memory, as in DLPack: 2 is CUDA's."""
    device: bytes
    """The 16 bytes that identify the device: its UUID."""
    allocations: tuple[tuple[bytes, int], ...]
    """The handle of each allocation, of 64 bytes, and its size in bytes."""

    @property
    def size(self) -> int:
        """The size of all allocations in bytes."""
        return sum(nbytes for _, nbytes in self.allocations)


class RegionAnnouncement(NamedTuple):
    """The buffer of an outgoing frame that gives the peer access to a region."""

    payload: bytes
    """The payload of the frame."""
    descriptors: tuple[Any, ...]
    """Objects with a file descriptor to pass along. This object keeps them open."""

    @property
    def nbytes(self) -> int:
        """The size of the payload in bytes."""
        return len(self.payload)
