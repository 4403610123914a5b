"""The scheme ``inproc``: both ends in one process, on any threads or event loops.

``inproc://name`` is the address of the listener of that name. A body that is a single buffer is
passed on without a copy. Other bodies are copied once, into memory of the reader.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable

import pyarrow as pa

from ..errors import ConfigError, ConnectError, ConnectionLostError, UriError, UsageError
from ..protocol.frames import (
    IncomingFrame,
    MessageRun,
    OutgoingFrame,
    ReceivedFrame,
    TaggedFrame,
    UntaggedFrame,
)
from ..protocol.limits import Limits
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator, BodyPool, ReceivedBody
from ..protocol.uri import DataUri
from .base import Capabilities, ConnectOptions, Diagnosis, ListenOptions, Traits, list_request_tags
from .framing import check_body_size, check_metadata_size
from .memory.files import FileSpan

_CAPACITY = 4 << 20
_listeners: dict[str, InprocListener] = {}
_lock = threading.Lock()
_numbers = itertools.count()


class _Flag:
    """A flag with a descriptor that is readable while the flag is set."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        """Close the descriptor, at the latest when the flag is collected. Idempotent."""

    def fileno(self) -> int:
        return self._descriptor if self.close.alive else -1

    def set(self) -> None:
        if self.close.alive:
            os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        if self.close.alive:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)


class _Pipe:
    """One direction of a connection: a queue of frames with a limit in bytes."""

    def __init__(self, allocator: Allocator = DEFAULT_ALLOCATOR) -> None:
        self.pool = BodyPool(allocator)
        self.lock = threading.Lock()
        self.frames: deque[IncomingFrame] = deque()
        self.nbytes = 0
        self.closed = False
        self.arrival = _Flag()
        self.room = _Flag()

    def put(self, frame: IncomingFrame, nbytes: int) -> bool:
        with self.lock:
            if self.closed:
                raise ConnectionLostError("the other end closed the connection")
            if self.nbytes and self.nbytes + nbytes > _CAPACITY:
                self.room.clear()
                return False
            self.frames.append(frame)
            self.nbytes += nbytes
            self.arrival.set()
        return True

    def get(self) -> list[IncomingFrame]:
        with self.lock:
            self.arrival.clear()
            frames = list(self.frames)
            self.frames.clear()
            self.nbytes = 0
            self.room.set()
            if not frames and self.closed:
                self.arrival.set()
                raise ConnectionLostError("the other end closed the connection")
            if self.closed:
                self.arrival.set()
        return frames

    def close(self, *, drop: bool) -> None:
        with self.lock:
            self.closed = True
            if drop:
                self.frames.clear()
            self.arrival.set()
            self.room.set()


class InprocChannel:
    """One end of a connection within the process."""

    capabilities = Capabilities()
    is_local = True
    user: int | None = None
    refusal: str | None = None
    lanes = ()
    at_boundary = True
    send_waits_readable = True
    delays_writer = False  # what was sent does not refer to a file
    unread_bytes = 0
    peer_silence = 0.0
    wake_at: float | None = None

    def __init__(self, inward: _Pipe, outward: _Pipe, limits: Limits, peer: str) -> None:
        self._inward = inward
        self._outward = outward
        self._limits = limits
        self._queue: deque[OutgoingFrame] = deque()
        self._closed = False
        self._headroom = 1024
        self.peer = peer
        self.bytes_sent = 0
        self.bytes_received = 0

    def fileno(self) -> int:
        """Return the descriptor that is readable when frames have arrived."""
        return self._inward.arrival.fileno()

    def send_fileno(self) -> int:
        """Return the descriptor that is readable when there is room to send."""
        return self._outward.room.fileno()

    def queue(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames; see `Channel.queue`."""
        self._queue.extend(frames)

    def send_some(self) -> bool:
        """Deliver as much of the queue as fits; see `Channel.send_some`."""
        while self._queue:
            frame = self._queue[0]
            if isinstance(frame, TaggedFrame):
                delivered, nbytes = ReceivedFrame(frame.tag, self._make_body(frame)), frame.nbytes
            else:
                delivered, nbytes = frame, len(frame.payload)
                self._headroom = nbytes + 8
            if not self._outward.put(delivered, nbytes):
                return False
            self._queue.popleft()
            self.bytes_sent += nbytes
        return True

    def _make_body(self, frame: TaggedFrame) -> ReceivedBody:
        if len(frame.buffers) == 1 and isinstance(frame.buffers[0], pa.Buffer):
            return ReceivedBody.wrap(frame.buffers[0])
        body = self._outward.pool.allocate(frame.nbytes, self._headroom, frame.tag)
        at = body.start
        for part in frame.buffers:
            if isinstance(part, FileSpan):
                part.read_into(body.view[at : at + part.nbytes])
                at += part.nbytes
            else:
                view = memoryview(part).cast("B")
                body.view[at : at + view.nbytes] = view
                at += view.nbytes
        return body

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived; see `Channel.receive_some`."""
        if self._closed:
            raise ConnectionLostError(f"the connection with {self.peer} is closed")
        frames = self._inward.get()
        for frame in frames:
            if isinstance(frame, UntaggedFrame):
                nbytes = len(frame.payload)
                check_metadata_size(nbytes, self._limits)
            else:
                assert not isinstance(frame, MessageRun)  # `send_some` puts no runs
                nbytes = frame.body.nbytes
                check_body_size(nbytes, self._limits, frame.tag)
            self.bytes_received += nbytes
        return frames

    def interrupt(self) -> None:
        """End a wait for this channel, from any thread; see `Channel.interrupt`."""
        self._inward.close(drop=True)

    def close(self) -> None:
        """Close; see `Channel.close`."""
        self._close(drop=False)

    def abort(self) -> None:
        """Close at once and drop the frames that the other end has not received."""
        self._close(drop=True)

    def _close(self, *, drop: bool) -> None:
        if not self._closed:
            self._closed = True
            self._queue.clear()
            self._outward.close(drop=drop)
            self._inward.close(drop=True)

    def __del__(self) -> None:
        self._close(drop=False)  # the other end need not wait any longer


class InprocListener:
    """A name in this process that readers connect to."""

    def __init__(self, uri: DataUri, limits: Limits) -> None:
        name = uri.host or f"server-{next(_numbers)}"
        self.uri = uri.replace(host=name)
        self.request_tags = list_request_tags(self.uri)
        self._limits = limits
        self._flag = _Flag()
        self._waiting: deque[InprocChannel] = deque()
        with _lock:
            if name in _listeners:
                raise ConfigError(f"cannot listen on inproc://{name}: the name is in use")
            _listeners[name] = self

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reader waits."""
        return self._flag.fileno()

    def connect(self, options: ConnectOptions) -> InprocChannel:
        """Create a connection and return the reader's end."""
        if not options.allocator.is_host:
            raise UsageError("inproc:// delivers bodies in host memory; use a host allocator")
        to_reader, to_server = _Pipe(options.allocator), _Pipe()
        self._waiting.append(
            InprocChannel(to_server, to_reader, self._limits, "a reader in this process")
        )
        self._flag.set()
        return InprocChannel(to_reader, to_server, options.limits, self.uri.address)

    def accept(self) -> InprocChannel | None:
        """Return the channel of the next reader, or None if no reader waits."""
        try:
            return self._waiting.popleft()
        except IndexError:
            self._flag.clear()
        # A reader may have connected before the flag was cleared.
        return self._waiting.popleft() if self._waiting else None

    def reject(self) -> bool:
        """Disconnect the next reader; return whether one was waiting."""
        channel = self.accept()
        if channel is not None:
            channel.abort()
        return channel is not None

    def close(self) -> None:
        """Stop listening and free the name."""
        with _lock:
            if _listeners.get(self.uri.host) is self:
                del _listeners[self.uri.host]
        for channel in self._waiting:
            channel.abort()
        self._waiting.clear()
        self._flag.close()


class InprocTransport:
    """The scheme ``inproc``."""

    scheme = "inproc"
    traits = Traits(local_only=True)

    def listen(self, uri: DataUri, options: ListenOptions) -> InprocListener:
        """Listen under the URI's name or, without one, a new name; see `Transport.listen`."""
        if uri.port is not None or uri.path.strip("/"):
            raise UriError(
                f"{uri.redacted()}: an inproc address has only a name, as in inproc://name"
            )
        return InprocListener(uri, options.limits)

    def connect(self, uri: DataUri, options: ConnectOptions) -> InprocChannel:
        """Connect; see `Transport.connect`."""
        with _lock:
            listener = _listeners.get(uri.host)
            if listener is None:
                raise ConnectError(
                    f"cannot connect to {uri.address}: no server in this process has that name"
                )
            return listener.connect(options)

    def diagnose(self) -> Diagnosis:
        """Return the state of the transport, which works on every host."""
        return Diagnosis()


TRANSPORT = InprocTransport()
