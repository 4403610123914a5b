"""Remote bodies: each stays in a region, and the reader gets the offsets of its buffers.

A reader gets access to a region by a file descriptor or by remote reads. It opens memory of a
device by a handle. The server announces a region before the first offsets that count from it.
Every offset that it delivers is a lease, which lasts until the reader frees the offset or
disconnects.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from anyio import to_thread
from anyio.lowlevel import checkpoint

from ...errors import DatasetError, ProtocolError, SplitArrowError
from ...formats.arrow.body_layout import BufferLocator
from ...memory.device_region import DeviceExport
from ...protocol.frames import OutgoingFrame, TaggedFrame
from ...protocol.memory import DeviceSpan
from ...protocol.messages import MetadataType
from ...protocol.payloads import Span, pack_spans
from ...protocol.regions import RegionAnnouncement
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.base import Channel
from ...transport.memory.files import FileSpan, SourceFile
from ...transport.memory.mapped_region import MappedRegion
from ...transport.memory.sealed import SealedMemory
from ..catalog.dataset import ServedDataset, Source
from ..catalog.device_table import DeviceTable
from ..catalog.messages.passthrough import RegionRun
from ..shm.mapped_files import FileMappings
from ..shm.regions import SharedRegions
from .connection import BodySender, Connection


class AccessMethod(ABC):
    """How the readers of one transport get access to regions."""

    announces_first: ClassVar[bool]
    """Whether the first region has to arrive before anything else of a stream."""
    flush_bytes: ClassVar[int]
    """The bytes of bodies after which frames are sent without waiting for more of a group."""
    min_body_bytes: ClassVar[int]
    """The size of the smallest body that is delivered remotely, in bytes. Others are packed."""
    shares_runs: ClassVar[bool]
    """Whether the messages of a run can be delivered at once: no body needs protection."""

    @property
    def requires_copy(self) -> bool:
        """Whether a region must be sealed memory, which needs no file guard."""
        return False

    @abstractmethod
    def announce(self, file: SourceFile) -> RegionAnnouncement:
        """Return the message that gives the reader access to a file.

        Raises `DatasetError` if the file cannot be guarded or mapped, or is about to change.
        """

    def protect(self, body: FileSpan) -> object:
        """Return an object that keeps the bytes of a body unchanged while it lives.

        None if the reader itself protects what it has mapped.
        """
        return None


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


class DescriptorAccess(AccessMethod):
    """The reader maps the file itself.

    It holds the file open by the descriptor that it gets. A second descriptor is the revocation
    socket of the file's guard.
    """

    announces_first = True
    flush_bytes = 1 << 62
    min_body_bytes = 0
    shares_runs = True

    def __init__(self, channel: Channel, regions: SharedRegions) -> None:
        self._channel: Any = channel
        self._regions = regions

    def announce(self, file: SourceFile) -> RegionAnnouncement:
        """Return the message that carries the file's descriptor; guard the file."""
        if isinstance(file, SealedMemory):
            return self._channel.announce(file.size, (file,))
        descriptors: tuple[Any, ...] = (_ReopenedFile(file),)
        if not self._regions.trust:
            descriptors += (self._regions.guards.guard(file),)
        return self._channel.announce(file.size, descriptors)


class RemoteReadAccess(AccessMethod):
    """The reader copies from this process, where the file is mapped."""

    announces_first = False
    flush_bytes = 16 << 20
    min_body_bytes = 32 << 10
    shares_runs = False

    def __init__(self, channel: Channel, mappings: FileMappings) -> None:
        self._channel: Any = channel
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


class SharedBodies:
    """The bodies of one stream of a device table."""

    def __init__(self, export: DeviceExport, announcement: RegionAnnouncement) -> None:
        self.export = export
        """The memory, which must not be freed while the reader has it open."""
        self.announcement = announcement
        """The message that lets the reader open the memory. It precedes all others."""
        self._locator = BufferLocator()

    def locate(self, message: SourceMessage) -> list[Span]:
        """Return the span of each buffer of a message in the region."""
        places: dict[int, int] = {}
        end = 0
        for part in message.body or ():
            if isinstance(part, DeviceSpan):
                places[end] = part.address
            end += part.nbytes
        buffers = self._locator.locate(message.metadata, message.body_length, 0)
        return [
            (self.export.locate(places[offset]), length) if length else (0, 0)
            for offset, length in buffers
        ]


def open_shared(
    table: DeviceTable, request: Request, connection: Connection
) -> tuple[SharedBodies, Source] | None:
    """Open a table for a reader that opens its memory.

    Return None if the memory cannot be shared, or the reader requests something else than whole
    batches of columns of fixed width.
    """
    channel: Any = connection.channel
    encoding = replace(connection.encoding, devices=frozenset({table.device_type}))
    source = table.open(request, encoding)
    if source.blocking or (export := table.export()) is None:
        source.close()
        return None
    return SharedBodies(export, channel.announce_device(export.handles)), source


class RemoteBodySender(BodySender):
    """Sends the offsets of a stream's bodies."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        channel, regions = connection.channel, connection.regions
        self._access: AccessMethod = (
            RemoteReadAccess(channel, regions.mappings)
            if channel.capabilities.remote_reads
            else DescriptorAccess(channel, regions)
        )
        self._leases = connection.leases
        self._metrics = connection.metrics
        self._carries_bodies = connection.uri.stream.carries_bodies
        self._locator = BufferLocator()
        self._is_packed = False
        self._shared: SharedBodies | None = None
        self._region: SourceFile | None = None
        self._withheld: list[OutgoingFrame] = []

    def open_at_once(self, dataset: ServedDataset, request: Request) -> Source | None:
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

    async def open(self, dataset: ServedDataset, request: Request) -> Source:
        """Open a dataset so that each body is one span of a region."""
        connection = self._connection
        if dataset.device_type in connection.channel.capabilities.devices:
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
                self._leases.exports.append(self._shared.export)
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
        """Send the messages of a run in one go, unless each needs something of its own."""
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
            frames.append(self._tag(shared.announcement))
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
        """Report a failure to the reader, behind the announcement of the first region."""
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

        Errors are those of `BodySender.send`.
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
        return self._tag(announcement)

    def _tag(self, announcement: RegionAnnouncement) -> TaggedFrame:
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
