"""Giving leased memory back: finalizers note it, one thread of the process tells the servers.

A batch that lies in a server's memory is leased. When the last Arrow buffer on it dies, on
whatever thread, its finalizer notes the offsets and does nothing else. A thread collects what
was noted within a few milliseconds and sends it in few ``free_data`` messages.

After a fork the child keeps its batches, which stay valid, and gives nothing back: the leases
are the parent's.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time

from ..errors import SplitArrowError
from ..protocol.bodies import pack_offsets
from ..protocol.frames import Tagged
from ..protocol.leases import LeaseReturns
from ..transport import blocking
from ..transport.base import Channel

COLLECT_SECONDS = 0.002
"""How long frees are collected before they are sent."""
_MOST_OFFSETS = 1 << 14
_SEND_SECONDS = 5.0


class Lease:
    """What a batch in a server's memory keeps alive; its end gives the memory back."""

    __slots__ = ("_offsets", "_returns")

    def __init__(self, returns: Returns, offsets: tuple[int, ...]) -> None:
        self._returns = returns
        self._offsets = offsets

    def __del__(self) -> None:
        self._returns.give_back(self._offsets)


class Returns:
    """What one connection has leased, and gives back.

    Parameters
    ----------
    channel : Channel
        Where frees are sent.
    free_data : int or None
        The tag of ``free_data`` messages; None if the server takes none: all is given back
        when the connection closes.
    """

    def __init__(self, channel: Channel, free_data: int | None) -> None:
        self._channel = channel
        self._tag = free_data
        self._noted = LeaseReturns()
        self._granted = 0
        self._sent = 0
        self._queued = False
        self._lingers = False
        self._process = os.getpid()
        # Whoever closes the connection waits until nothing is being sent on it: its descriptor
        # may be another connection's right after. Reentrant, as what holds a stream, such as a
        # generator, may be finalized and close it on the very thread that sends.
        self._sending = threading.RLock()

    def lease(self, offsets: tuple[int, ...]) -> Lease:
        """Return a lease on what was just received."""
        self._granted += len(offsets)
        return Lease(self, offsets)

    def give_back(self, offsets: tuple[int, ...]) -> None:
        """Note offsets that are no longer needed. Safe in finalizers, on any thread."""
        self._noted.give_back(offsets)
        if not self._queued:
            self._queued = True
            _RETURNER.wake(self)

    def linger(self) -> bool:
        """Keep the connection until all is given back; tell whether that is to be waited for."""
        if self._tag is None or self._granted == self._sent or self._process != os.getpid():
            return False
        self._lingers = True
        _RETURNER.wake(self)
        return True

    def flush(self) -> None:
        """Send what was noted. Called by the returning thread alone."""
        self._queued = False  # first: what is noted from here on wakes the thread again
        if self._process != os.getpid():
            return
        with self._sending:
            self._send()

    def _send(self) -> None:
        try:
            while offsets := self._noted.take(_MOST_OFFSETS):
                self._sent += len(offsets)
                if self._tag is not None:
                    payload = pack_offsets(offsets)
                    frame = Tagged(self._tag, len(payload), (payload,))
                    blocking.send(self._channel, [frame], _SEND_SECONDS)
        except (SplitArrowError, OSError, ValueError, IndexError):
            # The connection is gone, be it closed by a finalizer in the midst of sending, and
            # the server has taken everything back.
            self._tag = None
        if self._lingers and (self._tag is None or self._sent == self._granted):
            self._channel.close()

    def end(self, *, abort: bool) -> None:
        """Close the connection; from any thread. What is still held is the server's again."""
        channel = self._channel
        done = channel.abort if abort else channel.close
        if self._process != os.getpid():
            done()
            return
        if not self._sending.acquire(blocking=False):
            if abort:
                channel.interrupt()
            self._sending.acquire()
        try:
            self._tag = None
            done()
        finally:
            self._sending.release()


class _Returner:
    """The thread that sends frees for all connections of the process."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._woken: queue.SimpleQueue[Returns] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Have the thread run. Not for finalizers."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="splitarrow-returns", daemon=True
                )
                self._thread.start()

    def wake(self, returns: Returns) -> None:
        """Have the frees of a connection sent soon."""
        self._woken.put(returns)

    def after_fork(self) -> None:
        """Forget the parent's thread and queue."""
        self._begin()

    def _run(self) -> None:
        woken = self._woken
        while True:
            _flush_all(woken.get(), woken)


def _flush_all(first: Returns, woken: queue.SimpleQueue[Returns]) -> None:
    time.sleep(COLLECT_SECONDS)
    waiting = {first}
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.add(woken.get_nowait())
    for returns in waiting:
        returns.flush()


_RETURNER = _Returner()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RETURNER.after_fork)


def returns_for(channel: Channel, free_data: int | None) -> Returns:
    """Return where the leases of a connection are kept; its thread runs from here on."""
    _RETURNER.start()
    return Returns(channel, free_data)
