"""Deciding whether a stream that could not be opened is opened once more, over new connections."""

from __future__ import annotations

from ...protocol.devices import StagingAllocator
from .reader import Reader


def allows_second_attempt(reader: Reader) -> bool:
    """Return whether new connections may succeed where those of a reader were lost.

    They may if a connection had carried a stream before, so that its server may have left since
    then, or if the reader had requested memory of a device. It does not request that again. The
    stream has to be read from its beginning, by another reader.
    """
    allocator = reader.options.allocator
    if isinstance(allocator, StagingAllocator) and allocator.device.stop_sharing():
        return True
    return any(channel.capabilities.is_reused for channel in reader.channels.values())
