"""Remote bodies: each stays in a region, and the reader gets the offsets of its buffers.

The server announces a region before the first offsets that count from it. Every offset that it
delivers is a lease, which lasts until the reader frees the offset or disconnects.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from anyio import to_thread
from anyio.lowlevel import checkpoint

from ...errors import ProtocolError, SplitArrowError
from ...formats.arrow.buffer_spans import BufferLocator
from ...protocol.frames import OutgoingFrame, TaggedFrame
from ...protocol.messages import MetadataType
from ...protocol.payloads import Span, pack_spans
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage, Splitter
from ...transport.memory.files import SourceFile
from ..catalog.catalog import find_device_type
from ..catalog.dataset import Dataset, Source
from ..catalog.device_table import DeviceTable
from ..catalog.messages.runs import RegionRun
from .access import AccessMethod
from .connection import Connection
from .shared_bodies import SharedBodies, open_shared


class RemoteBodySender:
    """Sends the offsets of a stream's bodies; see `BodySender`.

    Parameters
    ----------
    connection : Connection
        The reader's connection.
    access : AccessMethod
        How the reader gets access to regions.
    """

    def __init__(self, connection: Connection, access: AccessMethod) -> None:
        self._connection = connection
        self._access = access
        self._leases = connection.leases
        self._metrics = connection.metrics
        self.bytes_lent = 0
        self._send = connection.writer.send
        self._carries_bodies = connection.uri.stream.carries_bodies
        self._splitter = Splitter(connection.uri.stream)
        self._locator = BufferLocator()
        self._is_packed = False
        self._shared: SharedBodies | None = None
        self._region: SourceFile | None = None
        self._withheld: list[OutgoingFrame] = []

    compression = None

    @property
    def message_count(self) -> int:
        """The number of messages sent so far."""
        return self._splitter.next_sequence

    def open_at_once(self, dataset: Dataset, request: Request) -> Source | None:
        """Open a file without a thread; see `BodySender.open_at_once`."""
        source = self._connection.regions.open_at_once(
            dataset, request, copy=self._access.requires_copy
        )
        if source is None:
            return None
        if self._carries_bodies and self._access.announces_first and source.region is not None:
            try:
                self._withheld.append(self._announce(source.region))
            except BaseException:
                source.close()
                raise
        self._leases.add_source(source)
        return source

    async def open(self, dataset: Dataset, request: Request) -> Source:
        """Open a dataset so that each body is one span of a region."""
        connection = self._connection
        if find_device_type(dataset) in connection.channel.capabilities.devices:
            # The transport sends from the device by itself; a region would be a copy on the host.
            self._is_packed = True
            return await to_thread.run_sync(
                dataset.open, request, connection.packed_encoding, limiter=connection.threads
            )
        if isinstance(dataset, DeviceTable) and getattr(connection.channel, "opens_devices", False):
            sharing = await to_thread.run_sync(
                open_shared, dataset, request, connection, limiter=connection.threads
            )
            if sharing is not None:
                self._shared, source = sharing
                return source
        open_source = partial(
            connection.regions.open, dataset, request, copy=self._access.requires_copy
        )
        source = await to_thread.run_sync(open_source, limiter=connection.threads)
        self._leases.add_source(source)
        return source

    async def send(self, messages: Sequence[SourceMessage]) -> None:
        """Send the messages of a group; wait where the reader has to free offsets first."""
        if self._shared is not None:
            await self._send_shared(messages, self._shared)
            return
        if isinstance(messages, RegionRun) and await self._send_run(messages):
            return
        access, leases = self._access, self._leases
        frames: list[OutgoingFrame] = []
        pending_bytes = lent = 0
        try:
            for message in messages:
                if pending_bytes >= access.flush_bytes or leases.would_exceed(message.body_length):
                    await self._send(frames)
                    frames, pending_bytes = [], 0
                pending_bytes += message.body_length
                is_remote = (
                    message.body is not None
                    and message.body_length >= access.min_body_bytes
                    and not self._is_packed
                )
                if not self._carries_bodies:
                    frames += self._splitter.split([message])
                elif is_remote:
                    frames += await self._remote_frames(message)
                else:
                    frames += self._inline_frames(message)
                if is_remote:
                    lent += message.body_length
        except SplitArrowError:
            await self._send(frames)  # they are complete, and their leases are granted
            raise
        finally:
            self._metrics.bytes_lent += lent
            self.bytes_lent += lent
        await self._send(frames)
        await checkpoint()  # sending offsets alone never waits

    async def _send_run(self, run: RegionRun) -> bool:
        """Send the messages of a run in one go, unless each needs something of its own.

        Returns
        -------
        bool
            Whether they were sent. If not, nothing was.
        """
        nbytes = run.body_bytes * len(run)
        if not self._access.shares_runs or self._leases.would_exceed(nbytes):
            return False
        spans = self._buffer_spans(run[0])
        lengths = [length for _, length in spans if length]
        step = run.offsets.step
        offsets = [
            range(offset, offset + len(run) * step, step) for offset, length in spans if length
        ]
        payload = np.frombuffer(pack_spans(spans), "<u8")
        payloads = np.repeat(payload[np.newaxis], len(run), axis=0)
        filled = [2 + 2 * index for index, (_, length) in enumerate(spans) if length]
        payloads[:, filled] += np.arange(len(run), dtype=np.uint64)[:, np.newaxis] * np.uint64(step)
        frames = self._splitter.split_remote_run(run.metadata, payloads.view(np.uint8))
        if frames is None:
            return False
        if run.file is not self._region:
            announcement = self._announce(run.file)
            await self._send([announcement, *self._take_withheld()])
        self._leases.grant_run(offsets, lengths, time.monotonic())
        self._metrics.bytes_lent += nbytes
        self.bytes_lent += nbytes
        await self._send(frames)
        await checkpoint()  # sending offsets alone never waits
        return True

    async def _send_shared(self, messages: Sequence[SourceMessage], shared: SharedBodies) -> None:
        """Send messages whose bodies stay in the memory of a device."""
        frames: list[OutgoingFrame] = []
        if not self._splitter.next_sequence and self._carries_bodies:
            announcement = shared.announcement
            want_data = self._connection.uri.require_want_data()
            frames.append(TaggedFrame(want_data, announcement.nbytes, (announcement,)))
        for message in messages:
            if message.body is None or not self._carries_bodies:
                frames += self._splitter.split([message])
                continue
            spans = shared.locate(message)
            self._leases.grant(spans, message.body, time.monotonic())
            self.bytes_lent += message.body_length
            self._metrics.bytes_lent += message.body_length
            frames += self._splitter.split_remote(message, spans)
        await self._send(frames)
        await checkpoint()

    async def finish(self) -> None:
        """Send the end of the stream."""
        await self._send([*self._take_withheld(), *self._splitter.end()])

    async def fail(self, code: str, message: str) -> None:
        """Report a failure to the reader."""
        announced = [] if self._region is None else self._take_withheld()
        await self._send([*announced, *self._splitter.fail(code, message)])

    def _inline_frames(self, message: SourceMessage) -> Sequence[OutgoingFrame]:
        """Return the frames of a message without a remote body, unless a region has to precede.

        A reader that reached another server than its URI names then notices at once.
        """
        frames = self._splitter.split([message])
        if self._region is None and self._access.announces_first:
            self._withheld += frames
            return []
        return [*self._take_withheld(), *frames]

    def _take_withheld(self) -> list[OutgoingFrame]:
        frames, self._withheld = self._withheld, []
        return frames

    async def _remote_frames(self, message: SourceMessage) -> list[OutgoingFrame]:
        """Lease a body to the reader; return its frames, behind the announcement of a new region.

        Raises
        ------
        DatasetError
            If the file is corrupt or cannot be shared.
        ExhaustedError
            If the reader's user holds too many leases and frees none in time.
        """
        assert message.body is not None
        (body,) = message.body
        spans = self._buffer_spans(message)
        if self._leases.limit is not None:
            await self._leases.wait_for_room(sum(length for _, length in spans))
        frames: list[OutgoingFrame] = []
        if body.file is not self._region:
            frames.append(self._announce(body.file))
        self._leases.grant(spans, self._access.protect(body), time.monotonic())
        frames += self._take_withheld()
        frames += self._splitter.split_remote(message, spans)
        return frames

    def _announce(self, region: SourceFile) -> TaggedFrame:
        """Return the message that gives the reader access to a region."""
        announcement = self._access.announce(region)
        self._region = region
        want_data = self._connection.uri.require_want_data()
        return TaggedFrame(want_data, announcement.nbytes, (announcement,))

    def _buffer_spans(self, message: SourceMessage) -> list[Span]:
        assert message.body is not None
        (body,) = message.body
        if message.message_type == MetadataType.VORTEX:
            return [(body.offset, body.nbytes) if body.nbytes else (0, 0)]
        try:
            return self._locator.locate(message.metadata, message.body_length, body.offset)
        except ProtocolError as error:
            raise body.file.corruption_error(body.offset, error.message) from None
