"""How a reader gets access to a region: by a file descriptor, or by remote reads."""

from __future__ import annotations

import os
from typing import Any, Protocol, cast

from ...errors import DatasetError
from ...protocol.regions import RegionAnnouncement
from ...transport.memory.files import FileSpan, SourceFile
from ...transport.memory.mapped_region import MappedRegion
from ...transport.memory.sealed import SealedMemory
from ..shm.file_mappings import FileMappings
from ..shm.shared_regions import SharedRegions
from .connection import Connection


class AccessMethod(Protocol):
    """How the readers of one transport get access to regions."""

    @property
    def announces_first(self) -> bool:
        """Whether the first region has to arrive before anything else of a stream."""
        ...

    @property
    def flush_bytes(self) -> int:
        """The bytes of bodies after which frames are sent without waiting for more of a group."""
        ...

    @property
    def min_body_bytes(self) -> int:
        """The size of the smallest body that is delivered remotely, in bytes.

        Smaller ones are sent packed.
        """
        ...

    @property
    def requires_copy(self) -> bool:
        """Whether a region must be sealed memory, which needs no file guard."""
        ...

    @property
    def shares_runs(self) -> bool:
        """Whether the messages of a run can be delivered at once: no body needs protection."""
        ...

    def announce(self, file: SourceFile) -> RegionAnnouncement:
        """Return the message that gives the reader access to a file.

        Raises
        ------
        DatasetError
            If the file cannot be guarded or mapped, or is about to change.
        """
        ...

    def protect(self, body: FileSpan) -> object:
        """Return an object that keeps the bytes of a body unchanged while it lives, or None."""
        ...


class DescriptorChannel(Protocol):
    """A channel that passes file descriptors to its peer."""

    def announce(self, size: int, descriptors: tuple[Any, ...]) -> RegionAnnouncement:
        """Return the message that carries the descriptors of a region of `size` bytes."""
        ...


class RemoteMemoryChannel(Protocol):
    """A channel whose peer reads memory of this process."""

    @property
    def pins_memory(self) -> bool:
        """Whether registered memory stays at its physical address, even if the file changes."""
        ...

    def announce(self, region: MappedRegion) -> RegionAnnouncement:
        """Return the message that lets the peer read a region."""
        ...


class _ReopenedFile:
    """A file that was opened again. Its descriptor shares no file lease with the first one.

    Whoever has a descriptor of the lease's owner could change the signal that the kernel sends.
    """

    def __init__(self, file: SourceFile) -> None:
        self._descriptor = -1
        self._descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor. It stays this object's to close."""
        return self._descriptor

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class DescriptorAccess:
    """The reader maps the file itself; see `AccessMethod`.

    It holds the file open by the descriptor that it gets. A second descriptor is the revocation
    socket of the file's guard.

    Parameters
    ----------
    channel : DescriptorChannel
        The reader's connection.
    regions : SharedRegions
        The file guards.
    """

    announces_first = True
    flush_bytes = 1 << 62
    min_body_bytes = 0
    requires_copy = False
    shares_runs = True

    def __init__(self, channel: DescriptorChannel, regions: SharedRegions) -> None:
        self._channel = channel
        self._regions = regions

    def announce(self, file: SourceFile) -> RegionAnnouncement:
        """Return the message that carries the file's descriptor; guard the file."""
        if isinstance(file, SealedMemory):
            return self._channel.announce(file.size, (file,))
        descriptors: tuple[Any, ...] = (_ReopenedFile(file),)
        if not self._regions.trust:
            descriptors += (self._regions.guards.guard(file),)
        return self._channel.announce(file.size, descriptors)

    def protect(self, body: FileSpan) -> object:
        """Return None: the reader protects what it has mapped."""
        return None


class RemoteReadAccess:
    """The reader copies from this process, where the file is mapped; see `AccessMethod`.

    Parameters
    ----------
    channel : RemoteMemoryChannel
        The reader's connection, which registers memory for its peer.
    mappings : FileMappings
        The files that this process has mapped.
    """

    announces_first = False
    flush_bytes = 16 << 20
    min_body_bytes = 32 << 10
    shares_runs = False

    def __init__(self, channel: RemoteMemoryChannel, mappings: FileMappings) -> None:
        self._channel = channel
        self._mappings = mappings

    @property
    def requires_copy(self) -> bool:
        """Whether the channel's lanes would still read the old pages of a file that changes."""
        return self._channel.pins_memory

    def announce(self, file: SourceFile) -> RegionAnnouncement:
        """Return the message with the region's address and key; map and register the file."""
        return self._channel.announce(self._mapped(file))

    def protect(self, body: FileSpan) -> object:
        """Return a buffer of the mapping: its pages are copied before the file changes."""
        region = self._mapped(body.file)
        buffer = region.buffer(body.offset, body.nbytes, None)
        region.populate(body.offset, body.nbytes)
        return buffer

    def _mapped(self, file: SourceFile) -> MappedRegion:
        region = self._mappings.map(file)
        if region is None:
            raise DatasetError(
                f"cannot share {file.path}: it cannot be mapped or is about to change"
            )
        return region


def access_method(connection: Connection) -> AccessMethod:
    """Return the access method that a connection's transport offers for remote bodies."""
    channel: Any = connection.channel
    if connection.channel.capabilities.remote_reads:
        return RemoteReadAccess(cast(RemoteMemoryChannel, channel), connection.regions.mappings)
    return DescriptorAccess(cast(DescriptorChannel, channel), connection.regions)
