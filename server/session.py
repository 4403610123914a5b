"""The server's side of one connection, and the tasks that look after all sessions.

`StallWatch` disconnects readers that take nothing of their stream. `yield_to_writers` ends the
streams of a file that another process waits to write to. `MemoryReturn` returns the memory of
streams that have ended.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterable
from typing import Any, NoReturn

import anyio
import pyarrow as pa
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ..errors import (
    ConnectionLostError,
    DatasetError,
    DeniedError,
    ExhaustedError,
    LimitError,
    ProtocolError,
    TransportError,
    UnavailableError,
)
from ..protocol.frames import IncomingFrame, ReceivedFrame
from ..protocol.lease_table import LeaseTable
from ..protocol.payloads import parse_interval, parse_offsets
from ..protocol.states import SERVER, Machine, ServerEvent, ServerState
from ..protocol.tags import BodyType
from ..protocol.trace_context import TraceContext, parse_payload
from ..transport import aio
from ..transport.base import Channel, Listener
from ..transport.memory.files import list_leased_files
from .auth.tickets import TicketClaims
from .bodies import Connection, ConnectionLeases, FrameWriter
from .context import ServerContext
from .data_stream import DataStream
from .logs import bind_trace, get_logger
from .prefetch import start_task
from .refusals import flatten_errors
from .report import read_resident_bytes
from .shm.exports import KEEPER
from .streams import StreamRegistry

_ACTIVE = (ServerState.STREAMING, ServerState.LEASED)
"""The states in which a silent reader keeps its connection."""
_WRITER_POLL_SECONDS = 0.1
_WRITER_GRACE_SECONDS = 2.0
"""The time in which a session takes its reader past a file that another process waits to write."""
_LOST_SECONDS = 45.0
"""The time after which a reader is lost whose host acknowledges nothing."""
_CHECKS_PER_LIMIT = 4
_MAX_CHECK_SECONDS = 10.0
_RETURN_SECONDS = 4.0
_RETURN_ATTEMPTS = 4
"""The attempts to return memory after a stream has ended: longer than a thread stays idle."""
_RETURN_BYTES = 64 << 20
"""The memory that is not worth returning."""
_MAX_EARLY_FRAMES = 4
"""The frames of a reader that has received the end of its stream, and requests another: two
intervals of keep-alives, a trace, and the request."""


class Session:
    """Serves the data streams of one connection, one after another, and closes its channel.

    If it is not admitted, every request is refused.
    """

    def __init__(
        self, channel: Channel, listener: Listener, context: ServerContext, *, admitted: bool
    ) -> None:
        self._channel = channel
        self._uri = listener.uri
        self._request_tags = listener.request_tags
        self._context = context
        self._admitted = admitted
        self._machine = Machine(SERVER, ServerState.PREFACE)
        self.lease_table = LeaseTable(bad_frees=context.limits.bad_frees)
        """The offsets that the reader holds."""
        # Nothing refers to the session, so that its memory is free once it has ended.
        self._leases = ConnectionLeases(
            self.lease_table, context.regions, lambda: context.leased_by(channel.user)
        )
        self._connection = Connection(
            channel=channel,
            writer=FrameWriter(channel),
            uri=listener.uri,
            leases=self._leases,
            regions=context.regions,
            encoding=context.encoding,
            metrics=context.metrics,
            threads=context.threads,
        )
        self._scope = anyio.CancelScope()
        self._is_reset = False
        self._idle_since = 0.0
        self._keep_alive_seconds: float | None = None
        self._trace: TraceContext | None = None
        """The context of the next request."""
        self._was_refused = False
        self._stream: DataStream | None = None
        self._early_frames: list[ReceivedFrame] = []
        self._waiting = anyio.CancelScope()
        self._progress = (0, 0)
        self._stuck_since: float | None = None
        self._log = get_logger("session").bind(peer=channel.peer)

    @property
    def bytes_sent(self) -> int:
        """The bytes that the transport has taken on this connection."""
        return self._channel.bytes_sent

    @property
    def user(self) -> int | None:
        """The user ID at the other end, or None where the transport does not know it."""
        return self._channel.user

    @property
    def delays_writer(self) -> bool:
        """Whether a process waits to write to a file that the reader may not have read yet."""
        return self._channel.delays_writer

    def reset(self) -> None:
        """Reset the connection, whatever its state."""
        self._is_reset = True
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until the reader leaves, an error ends the connection, or the daemon drains."""
        try:
            with self._scope:
                if self._context.draining.is_set() and not self._context.reads:
                    self._scope.cancel()
                async with anyio.create_task_group() as tasks:
                    frames = await self._handshake()
                    await self._receive(frames, tasks)
        except* (TransportError, ProtocolError, DatasetError, DeniedError) as errors:
            for error in flatten_errors(errors):
                self._record(error)
                _drop_frames(error)
        finally:
            self._close()

    def end_unless_streaming(self) -> None:
        """End the connection, unless it sends a stream: that may end before. The daemon drains."""
        if self._machine.state is not ServerState.STREAMING:
            self._scope.cancel()

    def check_progress(self, now: float, seconds: float) -> None:
        """Disconnect the reader if it has taken nothing of a stream for a number of seconds.

        `now` is the time of the event loop. A reader whose host is gone is disconnected earlier.
        """
        silence = self._channel.peer_silence
        if silence >= _LOST_SECONDS:
            self._log.warning("reader lost", seconds=round(silence))
            self._is_reset = True
            self._scope.cancel()
        # All of a stream may be sent, and its leases held, before the reader takes any of it.
        unread = self._measure_unread() if self._machine.state is ServerState.LEASED else 0
        progress = (self._channel.bytes_sent, unread)
        is_taken = self._connection.writer.is_complete and not unread
        if is_taken or progress != self._progress:
            self._progress, self._stuck_since = progress, None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since >= seconds:
            self._log.warning("reader stalled", seconds=seconds)
            self._scope.cancel()

    def _measure_unread(self) -> int:
        """Return how much of a stream that was sent whole the reader has not read, in any unit."""
        if self._channel.capabilities.remote_reads:  # reading a body frees its leases
            return self.lease_table.held
        return self._channel.unread_bytes

    async def _handshake(self) -> list[IncomingFrame]:
        """Wait for the reader's preface; return the frames behind it."""
        self._idle_since = anyio.current_time()
        frames = await self._next_frames()
        self._machine.on(ServerEvent.PREFACE_RECEIVED)
        return frames

    async def _receive(self, frames: list[IncomingFrame], tasks: TaskGroup) -> NoReturn:
        """Handle frames as they arrive, starting with `frames`."""
        while True:
            for frame in frames:
                self._handle(frame, tasks)
            await checkpoint()  # a stream that was requested begins first
            frames = await self._next_frames()

    async def _next_frames(self) -> list[IncomingFrame]:
        """Return what the reader sends next."""
        # The deadline moves when a stream ends.
        with anyio.CancelScope(deadline=self._idle_deadline) as self._waiting:
            return await aio.receive(self._channel)
        raise ConnectionLostError(f"{self._channel.peer} sent nothing for too long")

    @property
    def _idle_deadline(self) -> float:
        """The time at which the connection ends unless the reader sends something.

        A reader of a stream, or one that holds leases, has no deadline.
        """
        state, settings = self._machine.state, self._context.settings
        if state in _ACTIVE:
            return math.inf
        is_new = state is ServerState.PREFACE or self._was_refused
        return self._idle_since + (settings.handshake_seconds if is_new else settings.idle_seconds)

    def _set_idle(self) -> None:
        """Let the time of an idle reader begin."""
        self._idle_since = anyio.current_time()
        self._waiting.deadline = self._idle_deadline

    def _handle(self, frame: IncomingFrame, tasks: TaskGroup) -> None:
        if not isinstance(frame, ReceivedFrame):
            raise ProtocolError("a reader sent an untagged message; readers send tagged ones only")
        body_type = self._request_tags.get(frame.tag)
        if self._is_early and frame.tag != self._uri.free_data:
            self._early_frames.append(frame)
        elif body_type is not None:
            self._machine.on(ServerEvent.WANT_DATA)
            ticket, limit = bytes(frame.body), self._context.limits.ticket_bytes
            if len(ticket) > limit:
                raise LimitError(f"a ticket has {len(ticket)} bytes; the limit is {limit}")
            trace, self._trace = self._trace, None
            bind_trace(None if trace is None else trace.trace_id)
            start_task(tasks, self._serve_request, ticket, body_type, tasks, trace)
        elif frame.tag == self._uri.keep_alive:
            self._machine.on(ServerEvent.KEEP_ALIVE)
            self._keep_alive_seconds = parse_interval(bytes(frame.body))
        elif frame.tag == self._uri.trace:
            self._machine.on(ServerEvent.TRACE)
            self._trace = parse_payload(bytes(frame.body))
        elif frame.tag == self._uri.free_data:
            self._machine.on(ServerEvent.FREE_DATA)
            limit = self._context.limits.free_offsets
            self._free(parse_offsets(bytes(frame.body), limit=limit))
        else:
            raise ProtocolError(
                "a reader sent a tag that is none of want_data, free_data, keep_alive and trace",
                tag=frame.tag,
            )

    @property
    def _is_early(self) -> bool:
        """Whether the reader may have received the end of a stream that this side still sends.

        The frames of its next request then wait.
        """
        is_ending = self._stream is not None and self._stream.is_ending
        return is_ending and len(self._early_frames) < _MAX_EARLY_FRAMES

    async def _serve_request(
        self, ticket: bytes, body_type: BodyType, tasks: TaskGroup, trace: TraceContext | None
    ) -> None:
        """Send the data stream that a ticket grants, or the reason why it grants none."""
        seconds = self._keep_alive_seconds
        stream = DataStream(self._connection, body_type, self._context, tasks, seconds, trace)
        self._stream = stream
        try:
            self._was_refused = not await stream.run(ticket, self._admit)
            if self._was_refused:
                self._machine.on(ServerEvent.FAILED)
            elif self._leases.held:
                self._machine.on(ServerEvent.ENDED_LEASED)
            else:
                self._machine.on(ServerEvent.ENDED)
                self._leases.close_streams()
        finally:
            self._stream = None
            self._set_idle()
        early, self._early_frames = self._early_frames, []
        for frame in early:
            self._handle(frame, tasks)
        self._waiting.deadline = self._idle_deadline
        if self._context.draining.is_set() and self._machine.state is ServerState.IDLE:
            tasks.cancel_scope.cancel()

    def _admit(self, ticket: bytes) -> TicketClaims:
        """Return the contents of a ticket, if the server has room to serve its request.

        A ticket may be usable only once, so the check for room comes first.
        """
        draining, reads = self._context.draining.is_set(), self._context.reads
        if draining and not reads:
            raise _draining()
        if self._channel.refusal is not None:
            raise DeniedError(self._channel.refusal)
        if not self._admitted:
            raise ExhaustedError("the server has reached its limit of connections; retry later")
        claims = self._context.access.redeem_ticket(ticket, self._uri.stream)
        if draining and not reads.includes(claims.request):
            raise _draining()
        return claims

    def _free(self, offsets: list[int]) -> None:
        self._leases.free(offsets)
        if self._machine.state is ServerState.LEASED and not self._leases.held:
            self._machine.on(ServerEvent.LAST_FREED)
            self._set_idle()
            self._leases.close_streams()

    def _record(self, error: BaseException) -> None:
        """Log and count the error that ended the connection."""
        metrics, log, reason = self._context.metrics, self._log, str(error)
        match error:
            case ConnectionLostError():
                log.debug("reader left", reason=reason, state=self._machine.state.value)
            case DeniedError():
                self._context.refusals.record(error.code, "data", None, self._uri.scheme)
                log.warning("connection refused", reason=reason)
            case ProtocolError():
                metrics.protocol_errors += 1
                log.warning("reader broke the protocol", reason=reason)
            case DatasetError():
                metrics.failures += 1
                log.error("stream cut in the middle of a body", reason=reason)
            case _:
                log.info("connection failed", reason=reason)

    def _close(self) -> None:
        metrics = self._context.metrics
        metrics.bytes_sent += self._channel.bytes_sent
        metrics.bad_frees += self.lease_table.bad_frees
        self._leases.close()
        # A reference to a closed session must not keep the memory.
        exports, self._leases.exports = self._leases.exports, []
        if exports:
            channel: Any = self._channel
            KEEPER.keep(channel.duplicate(), exports, channel.peer)
        if self._machine.state is ServerState.IDLE and not self._is_reset:
            self._channel.close()
        else:
            self._channel.abort()


def _drop_frames(error: BaseException) -> None:
    """Let an error forget its frames: the channel keeps the error, and they keep the last data."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__context__


def _draining() -> UnavailableError:
    return UnavailableError("the server is draining; connect to another one")


async def yield_to_writers(sessions: Iterable[Session]) -> None:
    """Let waiting processes write to served files, until cancelled."""
    log = get_logger("files")
    deadlines: dict[Session, float] = {}
    while True:
        await anyio.sleep(_WRITER_POLL_SECONDS)
        is_delayed = False
        for file in list_leased_files():
            file.yield_to_writers()
            is_delayed = is_delayed or file.delays_writer
        if not is_delayed:
            deadlines.clear()
            continue
        now = anyio.current_time()
        delaying = [session for session in list(sessions) if session.delays_writer]
        deadlines = {
            session: deadlines.get(session, now + _WRITER_GRACE_SECONDS) for session in delaying
        }
        for session, deadline in deadlines.items():
            if now >= deadline:
                log.warning("connection reset: another process waits to write to a file it reads")
                session.reset()


class MemoryReturn:
    """Returns free memory to the system after streams have ended.

    Allocators keep what streams have used. A thread's part is returned only once that thread has
    ended, so it takes a few attempts.
    """

    def __init__(self, streams: StreamRegistry) -> None:
        self._streams = streams
        self._ended = 0
        self._attempts = 0
        self._first_bytes = read_resident_bytes()

    async def run(self) -> None:
        """Return memory from time to time, until cancelled."""
        while True:
            await anyio.sleep(_RETURN_SECONDS)
            if self._streams.ended != self._ended:
                self._ended, self._attempts = self._streams.ended, _RETURN_ATTEMPTS
            if self._attempts and read_resident_bytes() > self._first_bytes + _RETURN_BYTES:
                self._attempts -= 1
                await to_thread.run_sync(return_memory)


def return_memory() -> None:
    """Return what the allocators have free to the system."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


class StallWatch:
    """Ends streams whose reader stalled for the setting ``stall_seconds``.

    One task looks at all streams now and then, so that sending data costs nothing more. A reader
    that takes data slowly makes progress, and may go on.
    """

    def __init__(self, context: ServerContext, sessions: Iterable[Session]) -> None:
        self._context = context
        self._sessions = sessions
        self._log = get_logger("daemon")

    async def run(self) -> None:
        """Check all streams from time to time, until cancelled."""
        while True:
            seconds = self._context.settings.stall_seconds
            await anyio.sleep(min(seconds / _CHECKS_PER_LIMIT, _MAX_CHECK_SECONDS))
            for session in list(self._sessions):
                session.check_progress(anyio.current_time(), seconds)
            self._check_calls(seconds)

    def _check_calls(self, seconds: float) -> None:
        """End the streams of DoGet whose client takes no message."""
        now = time.monotonic()
        for stream in self._context.streams:
            since = stream.writing_since
            if since is not None and now - since >= seconds:
                self._log.warning("reader stalled", peer=stream.peer, dataset=stream.dataset)
                stream.cancel()
