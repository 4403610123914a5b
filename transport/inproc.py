"""The scheme ``inproc``: both ends in one process, on any threads or event loops.

``inproc://name`` reaches the listener of that name. Bodies that are one buffer in memory are
handed over as they are; others are gathered once into memory of the reader's.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable

import pyarrow as pa

from ..errors import ConfigError, ConnectError, ConnectionLostError, UriError
from ..protocol.frames import (
    Incoming,
    Outgoing,
    ReceivedBody,
    Run,
    Tagged,
    TaggedReceived,
    Untagged,
)
from ..protocol.limits import Limits
from ..protocol.uri import DataUri
from .base import Capabilities
from .framing import check_sizes
from .regions import FileRegion

_CAPACITY = 4 << 20
_listeners: dict[str, InprocListener] = {}
_lock = threading.Lock()
_numbers = itertools.count(1)


class _Bell:
    """A descriptor that is readable once it was rung, until it is silenced."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def ring(self) -> None:
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)

    def silence(self) -> None:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            pass

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Pipe:
    """One direction of a connection: frames under way, bounded in bytes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.frames: deque[Incoming] = deque()
        self.nbytes = 0
        self.closed = False
        self.arrival = _Bell()
        self.room = _Bell()

    def put(self, frame: Incoming, nbytes: int) -> bool:
        with self.lock:
            if self.closed:
                raise ConnectionLostError("the other end closed the connection")
            if self.nbytes and self.nbytes + nbytes > _CAPACITY:
                self.room.silence()
                return False
            self.frames.append(frame)
            self.nbytes += nbytes
            self.arrival.ring()
        return True

    def get(self) -> list[Incoming]:
        with self.lock:
            self.arrival.silence()
            frames = list(self.frames)
            self.frames.clear()
            self.nbytes = 0
            self.room.ring()
            if not frames and self.closed:
                self.arrival.ring()
                raise ConnectionLostError("the other end closed the connection")
            if self.closed:
                self.arrival.ring()
        return frames

    def shut(self, *, drop: bool) -> None:
        with self.lock:
            self.closed = True
            if drop:
                self.frames.clear()
            self.arrival.ring()
            self.room.ring()


class InprocChannel:
    """One end of a connection within the process."""

    capabilities = Capabilities(regions=True)
    is_local = True
    at_boundary = True
    send_waits_readable = True
    wake_at: float | None = None

    def __init__(self, inward: _Pipe, outward: _Pipe, limits: Limits, peer: str) -> None:
        self._inward = inward
        self._outward = outward
        self._limits = limits
        self._queue: deque[Outgoing] = deque()
        self._closed = False
        self._headroom = 1024
        self.peer = peer
        self.bytes_sent = 0
        self.bytes_received = 0

    def fileno(self) -> int:
        """Return the descriptor that is readable when something arrived."""
        return self._inward.arrival.fileno()

    def send_fileno(self) -> int:
        """Return the descriptor that is readable when there is room again."""
        return self._outward.room.fileno()

    def queue(self, frames: Iterable[Outgoing]) -> None:
        """Line up frames to be sent."""
        self._queue.extend(frames)

    def send_some(self) -> bool:
        """Hand over what was queued, as far as there is room; tell whether all of it went."""
        while self._queue:
            frame = self._queue[0]
            if isinstance(frame, Tagged):
                delivered, nbytes = TaggedReceived(frame.tag, self._body(frame)), frame.nbytes
            else:
                delivered, nbytes = frame, len(frame.payload)
                self._headroom = nbytes + 8
            if not self._outward.put(delivered, nbytes):
                return False
            self._queue.popleft()
            self.bytes_sent += nbytes
        return True

    def _body(self, frame: Tagged) -> ReceivedBody:
        if len(frame.parts) == 1 and isinstance(frame.parts[0], pa.Buffer):
            return ReceivedBody.wrapping(frame.parts[0])
        body = ReceivedBody(frame.nbytes, self._headroom)
        at = body.start
        for part in frame.parts:
            if isinstance(part, FileRegion):
                part.read_into(body.view[at : at + part.nbytes])
                at += part.nbytes
            else:
                view = memoryview(part).cast("B")
                body.view[at : at + view.nbytes] = view
                at += view.nbytes
        return body

    def receive_some(self) -> list[Incoming]:
        """Return what has arrived; an empty list means: wait until it is readable."""
        if self._closed:
            raise ConnectionLostError(f"the connection with {self.peer} is closed")
        frames = self._inward.get()
        for frame in frames:
            if isinstance(frame, Untagged):
                nbytes = len(frame.payload)
                check_sizes(self._limits, untagged=nbytes)
            else:
                assert not isinstance(frame, Run)  # none is put
                nbytes = frame.body.nbytes
                check_sizes(self._limits, tagged=nbytes, tag=frame.tag)
            self.bytes_received += nbytes
        return frames

    def interrupt(self) -> None:
        """Make a wait for this channel end, from any thread."""
        self._inward.shut(drop=True)

    def close(self) -> None:
        """Close; what was sent still reaches the other end."""
        self._close(drop=False)

    def abort(self) -> None:
        """Close at once; what the other end has not taken is lost."""
        self._close(drop=True)

    def _close(self, *, drop: bool) -> None:
        if not self._closed:
            self._closed = True
            self._queue.clear()
            self._outward.shut(drop=drop)
            self._inward.shut(drop=True)

    def __del__(self) -> None:
        self._close(drop=False)


class InprocListener:
    """A name in this process that readers connect to."""

    def __init__(self, uri: DataUri, limits: Limits) -> None:
        name = uri.host or f"server-{next(_numbers)}"
        self.uri = uri.replace(host=name)
        self._limits = limits
        self._bell = _Bell()
        self._waiting: deque[InprocChannel] = deque()
        with _lock:
            if name in _listeners:
                raise ConfigError(f"inproc://{name} is taken")
            _listeners[name] = self

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reader waits."""
        return self._bell.fileno()

    def connect(self, limits: Limits) -> InprocChannel:
        """Make a connection; return the reader's end of it."""
        here, there = _Pipe(), _Pipe()
        self._waiting.append(InprocChannel(there, here, self._limits, "a reader in this process"))
        self._bell.ring()
        return InprocChannel(here, there, limits, self.uri.address)

    def accept(self) -> InprocChannel | None:
        """Return the next reader's channel, or None if none waits."""
        try:
            return self._waiting.popleft()
        except IndexError:
            self._bell.silence()
        # One may have come between the look and the silence.
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        """Take the name back."""
        with _lock:
            if _listeners.get(self.uri.host) is self:
                del _listeners[self.uri.host]
        for channel in self._waiting:
            channel.abort()
        self._waiting.clear()
        self._bell.close()


class InprocTransport:
    """The scheme ``inproc``."""

    scheme = "inproc"
    capabilities = Capabilities(regions=True)

    def listen(self, uri: DataUri, limits: Limits) -> InprocListener:
        """Take a name; an empty one stands for a new one. See `Transport.listen`."""
        if uri.port is not None or uri.path.strip("/"):
            raise UriError(f"{uri.redacted()}: an inproc address is a name alone")
        return InprocListener(uri, limits)

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> InprocChannel:
        """Connect; see `Transport.connect`."""
        with _lock:
            listener = _listeners.get(uri.host)
            if listener is None:
                raise ConnectError(f"no server in this process listens on {uri.address}")
            return listener.connect(limits)


TRANSPORT = InprocTransport()
