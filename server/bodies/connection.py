"""The interface of a body sender, and what the senders of one connection share.

The leases of a connection keep regions alive on the server until the reader returns them or
disconnects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import anyio
from anyio import CapacityLimiter

from ...errors import ExhaustedError
from ...protocol.frames import OutgoingFrame
from ...protocol.lease_table import LeaseTable
from ...protocol.payloads import Span
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage, Splitter
from ...protocol.uri import DataUri
from ...transport import aio
from ...transport.base import Channel
from ..catalog.dataset import Encoding, ServedDataset, Source
from ..metrics import Metrics
from ..shm.regions import RegionSource, SharedRegions
from ..streams import ReaderWaits


class ConnectionLeases:
    """Grants offsets of regions to one reader, within the limit of its user.

    A stream's source stays open until the reader holds none of its offsets, even if that is long
    after the end of the stream.
    """

    def __init__(
        self, table: LeaseTable, regions: SharedRegions, leased_by_user: Callable[[], int]
    ) -> None:
        self._table = table
        self._regions = regions
        self._leased_by_user = leased_by_user
        self._protections: dict[int, object] = {}
        self._sources: list[RegionSource] = []
        self.exports: list[object] = []
        """The memory of devices that the reader may have open until it closes the connection."""
        self.limit = regions.max_leased
        """The bytes that a user may lease at a time; None disables the limit."""

    @property
    def held(self) -> int:
        """The number of leases that the reader holds."""
        return self._table.held

    def add_source(self, source: RegionSource) -> None:
        """Keep a source open until `close_streams`."""
        self._sources.append(source)

    def would_exceed(self, nbytes: int) -> bool:
        """Return whether `nbytes` more bytes are beyond the user's limit now."""
        return self.limit is not None and self._leased_by_user() + nbytes > self.limit

    async def wait_for_room(self, nbytes: int) -> None:
        """Wait until the reader's user may lease `nbytes` more bytes.

        Raises `ExhaustedError` if they exceed the limit, or the reader frees nothing in time.
        """
        limit, seconds = self.limit, self._regions.lease_seconds
        if limit is None:
            return
        if nbytes > limit:
            raise ExhaustedError(
                f"a message has {nbytes} bytes, but a reader may lease {limit} bytes at a time: "
                "raise --max-leased, or read over tcp"
            )
        deadline = anyio.current_time() + seconds
        while self._leased_by_user() + nbytes > limit:
            if anyio.current_time() >= deadline:
                raise ExhaustedError(
                    f"the reader's user holds {self._leased_by_user()} of {limit} bytes "
                    f"(--max-leased) and freed none for {seconds:g} s: drop batches while reading"
                )
            held = self._table.held
            with anyio.CancelScope(deadline=deadline):
                await self._regions.freed.wait()
            if self._table.held != held:
                deadline = anyio.current_time() + seconds

    def grant(self, spans: Iterable[Span], protection: object, now: float) -> None:
        """Lease the buffers of a body to the reader, except empty ones.

        `protection` lives as long as they do; None if they need none.
        """
        if protection is not None:
            self._protections.update((offset, protection) for offset, length in spans if length)
        self._table.grant(spans, now)

    def grant_run(
        self, offsets: Sequence[Sequence[int]], lengths: Sequence[int], now: float
    ) -> None:
        """Lease the buffers of a run to the reader; see `LeaseTable.grant_run`."""
        self._table.grant_run(offsets, lengths, now)

    def free(self, offsets: list[int]) -> None:
        """End leases; raise `LimitError` if too many of the offsets were not held."""
        released = self._table.free(offsets)
        if self._protections:
            for offset in released:
                self._protections.pop(offset, None)
        self._regions.report_freed()

    def close_streams(self) -> None:
        """Release the sources of streams whose offsets the reader has all freed."""
        self._protections.clear()
        while self._sources:
            self._sources.pop().release()

    def close(self) -> None:
        """End all leases: the reader is gone."""
        self._table.free_all()
        self.close_streams()
        self._regions.report_freed()


class FrameWriter:
    """Sends frames over a channel and records whether it sent all of them completely."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.is_complete = True
        """Whether no frame has been sent in part. Only then can another frame follow."""
        self.waits = ReaderWaits()
        """The waits for the reader."""

    async def send(self, frames: Iterable[OutgoingFrame]) -> None:
        """Send frames and wait until the transport has taken all of them.

        Raises `ConnectionLostError` if the reader is gone, and `DatasetError` if a file behind a
        body cannot be read or has changed.
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


class BodySender(ABC):
    """Sends one data stream, its bodies in the form that the reader requested.

    A session calls `open` or `open_at_once`, then `send` for each group of messages, then `finish`.
    It calls `fail` instead when the stream cannot go on.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send = connection.writer.send
        self._splitter = Splitter(connection.uri.stream)
        self.bytes_lent = 0
        """The bytes of remote bodies delivered so far."""

    @property
    def message_count(self) -> int:
        """The number of messages sent so far."""
        return self._splitter.next_sequence

    @property
    def compression(self) -> str | None:
        """What the compression ``auto`` has chosen; None if it was not requested."""
        return None

    @abstractmethod
    def open_at_once(self, dataset: ServedDataset, request: Request) -> Source | None:
        """Open a dataset as `open` does, if that takes no time; otherwise return None."""

    @abstractmethod
    async def open(self, dataset: ServedDataset, request: Request) -> Source:
        """Open a dataset so that its messages suit this sender; see `ServedDataset.open`."""

    @abstractmethod
    async def send(self, messages: Sequence[SourceMessage]) -> None:
        """Send the next group of messages.

        Raises `ConnectionLostError` if the reader is gone, `DatasetError` if a body cannot be read
        or shared, and `ExhaustedError` if the reader's user holds too many leases and frees none in
        time.
        """

    async def finish(self) -> None:
        """Send the end of the stream."""
        await self._send(self._splitter.end())

    async def fail(self, code: str, message: str) -> None:
        """Report a failure to the reader; nothing may follow it."""
        await self._send(self._splitter.fail(code, message))
