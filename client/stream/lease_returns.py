"""Returning leases: finalizers collect freed offsets, and one thread sends them to the servers.

A batch in a server's memory holds leases. When the last Arrow buffer on it dies, on any thread,
its finalizer only appends the offsets to a list and wakes the sender thread of this process. The
thread collects for a few milliseconds and sends few ``free_data`` messages.

After a fork, the child's batches stay valid. The child returns no leases: they are the parent's.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time

from ...errors import SplitArrowError
from ...protocol.frames import TaggedFrame
from ...protocol.lease_table import FreedOffsets
from ...protocol.payloads import pack_offsets
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

    Parameters
    ----------
    channel : Channel
        The connection. `close` closes it, and so does the return of the last lease after
        `linger`.
    free_data : int or None
        The tag of ``free_data`` messages. `None` if the server accepts none: it then frees all
        leases when the connection ends.
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

        Returns
        -------
        bool
            Whether there is anything to wait for. If not, the caller closes the connection.
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
    woken = {pending.get()}
    time.sleep(COLLECT_SECONDS)
    with contextlib.suppress(queue.Empty):
        while True:
            woken.add(pending.get_nowait())
    for returns in woken:
        returns.flush()


_SENDER = _Sender()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SENDER.reset)


def track_leases(channel: Channel, free_data: int | None) -> LeaseReturns:
    """Return the object that tracks the leases of a connection, and start the sender thread."""
    _SENDER.start()
    return LeaseReturns(channel, free_data)
