"""Channels over UCX: a worker, an endpoint, a sender and a receiver.

`UcxChannel` implements what both ends share. `server_channel` and `reader_channel` implement the
rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...errors import ConnectionLostError, ProtocolError
from ...protocol.frames import IncomingFrame, OutgoingFrame
from ..base import Capabilities
from .endpoint import list_lanes
from .ffi import ERR_CONNECTION_RESET, OK, StatusError, describe
from .idle_links import Link
from .linger import linger, retain
from .receiving import Receiver
from .sending import Sender
from .wakeup import Wakeup

REMOTE_CAPABILITIES = Capabilities(offset_bodies=True, remote_reads=True)
"""The capabilities of a connection whose bodies may be remote."""
_SEND_TURN_BYTES = 8 << 20
_RECEIVE_TURN_BYTES = 1 << 20


class UcxChannel:
    """One end of a connection over UCX; see `Channel`.

    Any thread may send while another receives: both hold the worker's lock. A call of one
    side may progress the work of the other side, so each wakes the other up.

    Parameters
    ----------
    link : Link
        The connection.
    sender : Sender
        Its sending half.
    receiver : Receiver
        Its receiving half.

    Raises
    ------
    OSError
        If the process has no descriptors left. The caller then still owns the link.
    """

    capabilities = Capabilities()
    send_waits_readable = True
    delays_writer = False  # a file guard protects what was sent of a file
    unread_bytes = 0
    wake_at: float | None = None
    user: int | None = None
    refusal: str | None = None

    _closed = True  # until the constructor is done

    def __init__(self, link: Link, sender: Sender, receiver: Receiver) -> None:
        self.peer = link.peer
        self.is_local = link.is_local
        self._arrival = Wakeup(link.worker.descriptor)
        try:
            self._room = Wakeup(link.worker.descriptor)
        except OSError:
            self._arrival.close()
            raise
        self._worker = link.worker
        self._endpoint = link.endpoint
        self._spin_seconds = link.spin_seconds
        self._sender = sender
        self._receiver = receiver
        self._lanes: list[str] = []
        self._interrupted = False
        self._destroyed = False
        self._pending_error: Exception | None = None
        self._closed = False

    @property
    def bytes_sent(self) -> int:
        """The bytes of payload that have been handed to UCX."""
        return self._sender.bytes_sent

    @property
    def bytes_received(self) -> int:
        """The bytes of payload that have arrived."""
        return self._receiver.bytes_received

    @property
    def at_boundary(self) -> bool:
        """Whether no message has arrived in part."""
        return self._receiver.at_boundary

    @property
    def lanes(self) -> list[str]:
        """The lanes of this connection (transport/device); empty until it is made."""
        with self._worker.lock:
            if not self._lanes and not self._closed:
                self._lanes = list_lanes(self._endpoint)
            return self._lanes

    def fileno(self) -> int:
        """Return the descriptor that is readable when something has arrived; -1 once closed."""
        return self._arrival.fileno()

    def send_fileno(self) -> int:
        """Return the descriptor that is readable when there may be room; -1 once closed."""
        return self._room.fileno()

    # Sending.

    def queue(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames; see `Channel.queue`."""
        self._sender.add(frames)

    def send_some(self) -> bool:
        """Send queued frames within the window; see `Channel.send_some`."""
        worker, sender = self._worker, self._sender
        with worker.lock:
            self._check_open()
            self._room.clear()
            try:
                while True:
                    sender.reap()
                    if sender.post(_SEND_TURN_BYTES):
                        self._room.set()  # the window has room: only the turn is over
                        return False
                    progressed = worker.progress()
                    if sender.is_done:
                        self._notify_receiver()
                        if not sender.is_idle and not worker.arm():
                            self._arrival.set_later()  # the receiving side completes the sends
                        return True
                    if worker.events.error != OK:
                        raise StatusError(worker.events.error)
                    if progressed:
                        self._room.reset_pause()
                    elif self._can_wait(self._room):
                        self._notify_receiver()
                        return False
            except StatusError as error:
                raise self._explain_loss(error.status) from None

    def _notify_receiver(self) -> None:
        """Wake up the receiving side if messages arrived while this side made progress."""
        if self._receiver.has_work or self._worker.events.error != OK:
            self._arrival.set()

    # Receiving.

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived; see `Channel.receive_some`."""
        frames: list[IncomingFrame] = []
        with self._worker.lock:
            self._check_open()
            self._arrival.clear()
            if self._pending_error is not None:
                raise self._pending_error
            try:
                self._receive_into(frames)
            except ProtocolError as error:
                self._pending_error = error
            except StatusError as error:
                self._pending_error = self._explain_loss(error.status)
            if self._sender.has_completed:
                self._room.set()
            if self._pending_error is not None and not frames:
                raise self._pending_error
        if self._pending_error is not None:
            self._arrival.set()  # the next call raises it
        return frames

    def _receive_into(self, frames: list[IncomingFrame]) -> None:
        """Append arriving frames until the turn is over or no more arrive."""
        worker, receiver = self._worker, self._receiver
        limit = receiver.bytes_received + _RECEIVE_TURN_BYTES
        while True:
            progressed = worker.progress()
            receiver.take(frames, limit)
            self._handle_received()
            if frames and not (progressed and receiver.bytes_received < limit):
                return
            if worker.events.error != OK:
                raise StatusError(worker.events.error)
            if receiver.has_ended and receiver.at_boundary:
                raise StatusError(ERR_CONNECTION_RESET)
            if progressed:
                self._arrival.reset_pause()
            elif self._can_wait(self._arrival):
                return

    def _handle_received(self) -> None:
        """React to received messages. The reader's end frees the bodies that it has read."""

    def _can_wait(self, wakeup: Wakeup) -> bool:
        """Prepare to wait for a wakeup; return False if there is work to do instead."""
        worker = self._worker
        if self._spin_seconds:
            stop = time.monotonic() + self._spin_seconds
            while time.monotonic() < stop:
                if worker.progress():
                    return False
        return worker.arm_for(wakeup)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLostError(f"the connection with {self.peer} is closed")
        if self._interrupted:
            raise ConnectionLostError(f"the connection with {self.peer} was interrupted")

    def _explain_loss(self, status: int) -> ConnectionLostError:
        """Return the error for a status. A status that the endpoint reported takes precedence."""
        status = self._worker.events.error or status
        if status == ERR_CONNECTION_RESET:
            return ConnectionLostError(f"{self.peer} closed the connection")
        return ConnectionLostError(f"the connection with {self.peer} broke: {describe(status)}")

    # Closing.

    def interrupt(self) -> None:
        """End a wait for this channel; see `Channel.interrupt`."""
        self._interrupted = True
        self._arrival.set()
        self._room.set()

    def close(self) -> None:
        """Close. Pending messages still reach the peer if it receives them within a second."""
        with self._worker.lock:
            if self._closed:
                return
            self._close_descriptors()
            self._say_farewell()
            if self.finish(force=False):
                return
        linger(self)

    def _say_farewell(self) -> None:
        """Send the farewell if the peer expects one."""

    def finish(self, *, force: bool) -> bool:
        """Continue closing; see `linger.ClosingConnection`."""
        worker, sender = self._worker, self._sender
        with worker.lock:
            if not self._destroyed:
                try:
                    while worker.progress():
                        pass
                    sender.reap()
                except StatusError:
                    force = True
                if force or worker.events.error != OK:
                    self._destroy()
                elif sender.is_idle:
                    self._retire()
            return self._destroyed

    def abort(self) -> None:
        """Close at once; see `Channel.abort`."""
        with self._worker.lock:
            if not self._closed:
                self._close_descriptors()
                self._destroy()

    def _close_descriptors(self) -> None:
        self._closed = True
        self._arrival.close()
        self._room.close()

    def _retire(self) -> None:
        """Give up a connection on which nothing is under way."""
        self._destroy()

    def _destroy(self) -> None:
        self._destroyed = True
        self._worker.close_endpoint(self._endpoint)
        retain(self._sender.abandon() + self._receiver.abandon())
        self._worker.destroy()

    def __del__(self) -> None:
        if not self._closed:
            self.abort()
