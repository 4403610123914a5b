"""The objects that the body senders of one connection share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from anyio import CapacityLimiter

from ...protocol.frames import OutgoingFrame
from ...protocol.uri import DataUri
from ...transport import aio
from ...transport.base import Channel
from ..catalog.dataset import Encoding
from ..metrics import Metrics
from ..shm.shared_regions import SharedRegions
from ..streams import ReaderWaits
from .connection_leases import ConnectionLeases


class FrameWriter:
    """Sends frames over a channel and records whether it sent all of them completely.

    Parameters
    ----------
    channel : Channel
        The connection. It stays the caller's to close.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.is_complete = True
        """Whether no frame has been sent in part. Only then can another frame follow."""
        self.waits = ReaderWaits()
        """The waits for the reader."""

    async def send(self, frames: Iterable[OutgoingFrame]) -> None:
        """Send frames and wait until the transport has taken all of them.

        Raises
        ------
        ConnectionLostError
            If the reader is gone.
        DatasetError
            If a file behind a body cannot be read or has changed.
        """
        self.is_complete = False
        self._channel.queue(frames)
        if not self._channel.send_some():
            self.waits.begin()
            try:
                await aio.wait_drained(self._channel)
            finally:
                self.waits.end()
        self.is_complete = True


@dataclass(frozen=True, slots=True)
class Connection:
    """One reader's connection, as the senders of its streams see it."""

    channel: Channel
    """The server's end of the connection."""
    writer: FrameWriter
    """Sends frames over `channel`."""
    uri: DataUri
    """The listener's URI: its tags, and the streams that it carries."""
    leases: ConnectionLeases
    """The leases that the reader holds."""
    regions: SharedRegions
    """The regions of the server."""
    encoding: Encoding
    """The server's defaults for the messages of packed streams."""
    metrics: Metrics
    """The server's metrics."""
    threads: CapacityLimiter
    """The worker threads on which datasets are opened."""

    @property
    def packed_encoding(self) -> Encoding:
        """The defaults for packed bodies, which may be in memory that the channel can send from."""
        devices = self.channel.capabilities.devices
        return replace(self.encoding, devices=devices) if devices else self.encoding
