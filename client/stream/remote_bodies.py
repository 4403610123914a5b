"""Bodies in a server's memory: checked, leased, and arranged for Arrow's decoder.

Finalizers collect the offsets of leases that end, and one thread returns them to the servers.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import ProtocolError, SplitArrowError
from ...formats.arrow.body_layout import (
    ALIGNMENT,
    check_buffer_lengths,
    locate_body,
    plan_packed_body,
)
from ...formats.arrow.message import (
    BatchLayout,
    BufferSpan,
    encapsulate,
    read_batch_layout,
    read_message_info,
)
from ...protocol.frames import MessageRun, TaggedFrame
from ...protocol.lease_table import FreedOffsets
from ...protocol.limits import Limits
from ...protocol.memory import DEFAULT_ALLOCATOR, SMALL_BODY_BYTES, Allocator, ReceivedBody
from ...protocol.messages import Message
from ...protocol.payloads import Span, pack_offsets, parse_spans
from ...protocol.regions import Region, RemoteBody
from ...protocol.tags import BodyType
from ...transport import blocking
from ...transport.base import Channel

COLLECT_SECONDS = 0.002
"""The time that the thread collects offsets before it sends them, in seconds."""
_MAX_OFFSETS = 1 << 14
"""The largest number of offsets in one message."""
_SEND_TIMEOUT = 5.0


class Lease:
    """Keeps offsets leased while it lives. Every Arrow buffer on them refers to it."""

    __slots__ = ("_offsets", "_returns")

    def __init__(self, returns: LeaseReturns, offsets: tuple[int, ...]) -> None:
        self._returns = returns
        self._offsets = offsets

    def __del__(self) -> None:
        self._returns.free(self._offsets)


class LeaseReturns:
    """Tracks the leases of one connection, and returns them.

    Without a tag for `free_data`, the server frees all leases when the connection ends.
    """

    def __init__(self, channel: Channel, free_data: int | None) -> None:
        self._channel = channel
        self._tag = free_data
        self._freed = FreedOffsets()
        self._granted_count = 0
        self._sent_count = 0
        self._is_queued = False
        self._closes_when_returned = False
        self._process = os.getpid()
        # Closing waits for a message that is being sent: another connection could get the same
        # descriptor right afterwards. The lock is reentrant, because a finalizer on the sending
        # thread may close the stream, for example through a generator that holds it.
        self._send_lock = threading.RLock()

    def lease(self, offsets: tuple[int, ...]) -> Lease:
        """Return a lease on offsets that were just received."""
        self._granted_count += len(offsets)
        return Lease(self, offsets)

    def free(self, offsets: tuple[int, ...]) -> None:
        """Collect offsets to return. Safe in finalizers, on any thread."""
        self._freed.add(offsets)
        if not self._is_queued:
            self._is_queued = True
            _SENDER.wake(self)

    def linger(self) -> bool:
        """Keep the connection open until all leases are returned.

        If not, the caller closes the connection.
        """
        all_returned = self._granted_count == self._sent_count
        if self._tag is None or all_returned or self._process != os.getpid():
            return False
        self._closes_when_returned = True
        _SENDER.wake(self)
        return True

    def flush(self) -> None:
        """Send the collected offsets. Only the sender thread calls this."""
        self._is_queued = False  # first, so that offsets freed from here on wake the thread again
        if self._process != os.getpid():
            return
        with self._send_lock:
            self._send()

    def _send(self) -> None:
        try:
            while offsets := self._freed.take(_MAX_OFFSETS):
                self._sent_count += len(offsets)
                if self._tag is not None:
                    payload = pack_offsets(offsets)
                    frame = TaggedFrame(self._tag, len(payload), (payload,))
                    blocking.send(self._channel, [frame], _SEND_TIMEOUT)
        except (SplitArrowError, OSError, ValueError, IndexError):
            # The connection ended, perhaps because a finalizer closed it during this call. The
            # server has freed all its leases.
            self._tag = None
        all_returned = self._sent_count == self._granted_count
        if self._closes_when_returned and (self._tag is None or all_returned):
            self._channel.close()

    def close(self, *, abort: bool) -> None:
        """Close or abort the connection, on any thread. The server frees all its leases."""
        channel = self._channel
        close = channel.abort if abort else channel.close
        if self._process != os.getpid():
            close()
            return
        if not self._send_lock.acquire(blocking=False):
            if abort:
                channel.interrupt()
            self._send_lock.acquire()
        try:
            self._tag = None
            close()
        finally:
            self._send_lock.release()


class _Sender:
    """The thread that returns the leases of all connections of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over without a thread. A forked child has only the thread that forked."""
        self._queue: queue.SimpleQueue[LeaseReturns] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    def start(self) -> None:
        """Start the thread, unless it runs. Not safe in finalizers."""
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="splitarrow-returns", daemon=True
                )
                self._thread.start()

    def wake(self, returns: LeaseReturns) -> None:
        """Make the thread flush the leases of a connection soon. Safe in finalizers."""
        self._queue.put(returns)

    def _run(self) -> None:
        pending = self._queue
        while True:
            # A separate call, so that no local variable keeps a connection alive meanwhile.
            _flush_next(pending)


def _flush_next(pending: queue.SimpleQueue[LeaseReturns]) -> None:
    """Wait for a connection with freed leases, collect for a moment, and flush."""
    woken = {pending.get(): None}
    time.sleep(COLLECT_SECONDS)
    with contextlib.suppress(queue.Empty):
        while True:
            woken[pending.get_nowait()] = None
    for returns in woken:
        returns.flush()


_SENDER = _Sender()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SENDER.reset)


def track_leases(channel: Channel, free_data: int | None) -> LeaseReturns:
    """Return the object that tracks the leases of a connection, and start the sender thread."""
    _SENDER.start()
    return LeaseReturns(channel, free_data)


_MIN_RUN = 16
"""The messages of the shortest run that is leased as a whole. A shorter one gains little by it."""


class EncapsulatedBody(ReceivedBody):
    """A body that follows its own metadata in memory, as an encapsulated Arrow message."""

    __slots__ = ()

    def __init__(self, buffer: pa.Buffer, start: int) -> None:
        super().__init__(buffer, memoryview(buffer).cast("B"), start, buffer.size - start)


class _PackedLayout:
    """The layout of packed bodies that share one metadata, at any offset of a region.

    A body of type 1 whose buffers have this layout is contiguous, so that it is decoded where it
    is. Comparing the numbers of the payload with those of the layout replaces parsing them.
    """

    def __init__(self, metadata: bytes, layout: BatchLayout) -> None:
        self.metadata = metadata
        self.head = encapsulate(metadata)
        """The metadata as the start of an encapsulated message."""
        self.body_length = read_message_info(metadata).body_length
        """The size of a packed body in bytes."""
        self.lengths = tuple(length for _, length in layout.buffers)
        """The size of each buffer in bytes."""
        self.total = sum(self.lengths)
        """The size of all buffers in bytes, without padding."""
        self.filled = tuple(
            (2 + 2 * index, offset)
            for index, (offset, length) in enumerate(layout.buffers)
            if length
        )
        """For each buffer that is not empty: the index of its offset among the numbers of the
        payload, and its offset in a packed body."""
        self._empty = tuple(
            2 + 2 * index for index, (_, length) in enumerate(layout.buffers) if not length
        )
        self._unpack = struct.Struct(f"<{2 + 2 * len(layout.buffers)}Q").unpack

    def find(self, payload: memoryview) -> int:
        """Return the offset of the packed body of a payload; negative if the layout differs."""
        try:
            numbers = self._unpack(payload)
        except struct.error:
            return -1
        if numbers[3::2] != self.lengths or numbers[:2] != (self.total, len(self.lengths)):
            return -1
        first, offset = self.filled[0]
        begin: int = numbers[first] - offset
        for index, offset in self.filled:
            if numbers[index] - offset != begin:
                return -1
        if any(numbers[index] for index in self._empty):
            return -1
        return begin

    def find_run(self, run: MessageRun, region: Region) -> range | None:
        """Return the offsets of the packed bodies that the payloads of a run describe.

        Return None if a body has another layout or is outside the region, or the bodies are not at
        equal distances, each close behind the one before.
        """
        width = 2 + 2 * len(self.lengths)
        if run.nbytes != 8 * width or not self.filled or self.body_length > region.size:
            return None
        shape, strides = (run.count, width), (run.stride, 8)
        numbers: NDArray[np.uint64] = np.ndarray(shape, "<u8", run.view, run.start, strides)
        begins = numbers[:, self.filled[0][0]] - np.uint64(self.filled[0][1])
        expected = np.zeros_like(numbers)
        expected[:, 0], expected[:, 1] = self.total, len(self.lengths)
        expected[:, 3::2] = self.lengths
        for index, offset in self.filled:
            expected[:, index] = begins + np.uint64(offset)
        if not (numbers == expected).all() or begins.max() > region.size - self.body_length:
            return None
        first, second = begins[:2].tolist()
        period, size = second - first, len(self.head) + self.body_length
        if first % ALIGNMENT or period % ALIGNMENT or not size <= period <= 2 * size:
            return None
        if not (np.diff(begins) == period).all():
            return None
        return range(first, first + run.count * period, period)


class RunBuffer(NamedTuple):
    """Encapsulated messages with equal metadata, at equal distances in memory."""

    buffer: pa.Buffer
    """All messages. Slices of it keep the memory alive, and leased if it is a server's."""
    period: int
    """The distance between the beginnings of two messages in bytes."""
    nbytes: int
    """The size of a message in bytes."""


class RemoteBodies:
    """Resolves bodies of offsets (type 1) to the memory that they refer to.

    Without `lease_returns`, the channel has read the bodies itself, and freed them. The allocator
    supplies the memory of buffers that must be copied.
    """

    def __init__(
        self,
        lease_returns: LeaseReturns | None,
        limits: Limits,
        allocator: Allocator = DEFAULT_ALLOCATOR,
    ) -> None:
        self._allocator = allocator
        self._lease_returns = lease_returns
        self._limits = limits
        self._layout: _PackedLayout | None = None
        self.leased_bytes = 0
        """The size of all buffers leased so far, without padding, in bytes."""

    def resolve(self, message: Message) -> Message:
        """Return the message with a packed body, which is the memory of the region itself.

        Nothing is copied, except buffers whose alignment Arrow's decoder does not accept. Offsets
        that do not fit the metadata or the region raise `ProtocolError` before the region is read,
        and a file that has changed `DatasetError`.
        """
        sequence, metadata, body, *_ = message
        if not isinstance(body, RemoteBody):
            raise ProtocolError("a body of offsets has no region", sequence=sequence)
        body.region.check()
        layout = self._layout
        if layout is not None and metadata == layout.metadata:
            begin = layout.find(body.view[body.start :])
            if (
                begin >= 0
                and begin % ALIGNMENT == 0
                and begin + layout.body_length <= body.region.size
            ):
                memory = self._take_packed(begin, layout, body.region)
                return Message(sequence, layout.metadata, memory, BodyType.PACKED)
        return self._resolve_spans(message, body)

    def resolve_run(self, run: MessageRun) -> RunBuffer | None:
        """Return the messages of a run where they are, in the memory of its region.

        Return None if the messages have to be resolved one by one: they are few or large, or not at
        equal distances behind their metadata.
        """
        layout, region = self._layout, run.region
        if (
            layout is None
            or region is None
            or run.metadata != layout.metadata
            or run.count < _MIN_RUN
            or layout.body_length > SMALL_BODY_BYTES
        ):
            return None
        region.check()
        begins = layout.find_run(run, region)
        if begins is None:
            return None
        first, nbytes = begins.start - len(layout.head), len(layout.head) + layout.body_length
        if not region.repeats(layout.head, first, begins.step, run.count):
            return None
        offsets = [begin + offset for _, offset in layout.filled for begin in begins]
        lease = self.lease(tuple(offsets), layout.total * run.count)
        buffer = region.buffer(first, begins[-1] - begins[0] + nbytes, lease)
        return RunBuffer(buffer, begins.step, nbytes)

    def resolve_buffers(self, message: Message, buffers: Sequence[BufferSpan]) -> list[pa.Buffer]:
        """Return the buffers of a tensor, which are memory of the region itself; see `resolve`."""
        body = message.body
        if not isinstance(body, RemoteBody):
            raise ProtocolError("a body of offsets has no region", sequence=message.sequence)
        region = body.region
        region.check()
        spans = parse_spans(
            body.view[body.start :],
            region_size=region.size,
            expected=len(buffers),
            sequence=message.sequence,
        )
        check_buffer_lengths(buffers, spans)
        offsets = tuple([offset for offset, length in spans if length])
        lease = self.lease(offsets, sum(length for _, length in spans))
        return [region.buffer(offset, length, lease) for offset, length in spans]

    def _take_packed(self, begin: int, layout: _PackedLayout, region: Region) -> ReceivedBody:
        offsets = tuple([begin + offset for _, offset in layout.filled])
        lease = self.lease(offsets, layout.total)
        message = region.prefixed_buffer(layout.head, begin, layout.body_length, lease)
        if message is not None:
            return EncapsulatedBody(message, len(layout.head))
        return ReceivedBody.wrap(region.buffer(begin, layout.body_length, lease))

    def lease(self, offsets: tuple[int, ...], nbytes: int) -> Lease | None:
        """Return a lease on offsets of `nbytes` bytes; None if the channel has freed them."""
        if self._lease_returns is None:
            return None
        self.leased_bytes += nbytes
        return self._lease_returns.lease(offsets)

    def _resolve_spans(self, message: Message, body: RemoteBody) -> Message:
        """Resolve a body of any layout."""
        sequence, metadata, *_ = message
        layout, region = read_batch_layout(metadata, max_buffers=self._limits.buffers), body.region
        spans = parse_spans(
            body.view[body.start :],
            region_size=region.size,
            expected=len(layout.buffers),
            sequence=sequence,
        )
        check_buffer_lengths(layout.buffers, spans)
        offsets = tuple([offset for offset, length in spans if length])
        lease = self.lease(offsets, sum(length for _, length in spans))
        location = locate_body(metadata, layout, spans, region.size)
        if location is None:
            metadata, memory = _copy_buffers(metadata, spans, region, self._allocator)
            del lease  # The copy does not need it.
        else:
            if location.metadata is metadata and offsets:
                self._layout = _PackedLayout(metadata, layout)
            metadata = location.metadata
            memory = region.buffer(location.begin, location.nbytes, lease)
        return Message(sequence, metadata, ReceivedBody.wrap(memory), BodyType.PACKED)


def _copy_buffers(
    metadata: bytes, spans: list[Span], region: Region, allocator: Allocator
) -> tuple[bytes, pa.Buffer]:
    """Copy buffers to aligned memory; return it with metadata that describes it."""
    location, copies = plan_packed_body(metadata, spans)
    memory = allocator.allocate(location.nbytes)
    view = memoryview(memory).cast("B")
    end = 0
    for (target, length), (source, _) in zip(copies, spans, strict=True):
        if length:
            view[end:target] = bytes(target - end)  # the padding in between
            end = target + length
            view[target:end] = memoryview(region.buffer(source, length, None)).cast("B")
    view[end:] = bytes(location.nbytes - end)
    return location.metadata, memory
