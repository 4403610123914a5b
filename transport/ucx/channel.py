"""A channel over UCX: a worker, an endpoint, a sender and a receiver."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from ...errors import ConnectionLostError, ProtocolError
from ...protocol.bodies import pack_offsets
from ...protocol.frames import Handover, Incoming, Outgoing, Tagged
from ...protocol.limits import Limits
from ...protocol.tags import BodyType
from ..base import Capabilities
from ..regions import RegionFile
from ..shm.mapping import MappedRegion
from . import endpoint as endpoints
from .closing import keep_for_a_while, linger
from .lanes import pin_memory
from .library import ERR_CONNECTION_RESET, OK, describe
from .receiving import ReceiveError, Receiver
from .registration import registered
from .sending import Mapped, Sender, SendError
from .worker import Bell, Worker

CAPABILITIES = Capabilities(ordered=False)
"""Metadata and bodies are two streams to UCX, and may overtake each other."""
LENDING = Capabilities(
    ordered=False, body_types=frozenset({int(BodyType.PACKED), int(BodyType.OFFSETS)}), fetches=True
)
"""Of a connection whose bodies may stay where they are until the reader fetches them."""
_MOST_FREED = 1 << 14
_TURN_BYTES = 8 << 20
_RECEIVE_MOST = 1 << 20


class Remote(NamedTuple):
    """The tags of a reader that reads bodies from the server's memory itself."""

    want_data: int
    """The tag of requests for packed bodies; regions are handed over by it."""
    tag: int
    """The tag of requests for bodies of type 1."""
    free_data: int
    """The tag by which offsets are given back."""


class UcxChannel:
    """One end of a connection over UCX. It owns its worker and its endpoint.

    Parameters
    ----------
    worker : Worker
        The connection's own.
    endpoint : object
        The connection, made or being made.
    limits : Limits
        Bounds on what is received.
    server : bool
        Whether the peer is a reader.
    peer : str
        The other end, for logs and errors.
    is_local : bool
        Whether the other end is on this host.
    mapped : callable, optional
        Returns the mapping of a file that is sent; see `sending.Sender`.
    remote : Remote, optional
        By what tags a reader asks for bodies of type 1; None: it does not.
    lends : bool
        Whether a server offers such bodies.
    spin : float
        For how many seconds to look for work before waiting for it.
    """

    send_waits_readable = True
    wake_at: float | None = None

    def __init__(
        self,
        worker: Worker,
        endpoint: Any,
        limits: Limits,
        *,
        server: bool,
        peer: str,
        is_local: bool,
        mapped: Mapped | None = None,
        remote: Remote | None = None,
        lends: bool = False,
        spin: float = 0.0,
    ) -> None:
        self.capabilities = LENDING if lends or remote is not None else CAPABILITIES
        """What this connection can do."""
        self.peer = peer
        self.is_local = is_local
        self._closed = True  # until all is there
        self._arrival = Bell(worker.descriptor)
        try:
            self._room = Bell(worker.descriptor)
        except OSError:
            self._arrival.close()
            raise
        self._worker = worker
        self._endpoint = endpoint
        self._remote = remote
        self._spin = spin
        self._lanes: list[str] = []
        self._pins: bool | None = None
        self._mapped = mapped
        self._sender = Sender(worker, endpoint, self._mapping if mapped is not None else None)
        region_tag = None if remote is None else remote.want_data
        self._receiver = Receiver(
            worker, limits, server=server, endpoint=endpoint, region_tag=region_tag
        )
        self._server = server
        self._interrupted = False
        self._destroyed = False
        self._refused: Exception | None = None
        self._closed = False

    @property
    def bytes_sent(self) -> int:
        """How many bytes of payload have been handed to UCX."""
        return self._sender.bytes_sent

    @property
    def bytes_received(self) -> int:
        """How many bytes of payload have arrived."""
        return self._receiver.bytes_received

    @property
    def at_boundary(self) -> bool:
        """Whether nothing of an unfinished message has arrived."""
        return self._receiver.at_boundary

    @property
    def lanes(self) -> list[str]:
        """The transports and devices that UCX uses for this connection."""
        with self._worker.lock:
            if not self._lanes and not self._closed:
                self._lanes = endpoints.lanes(self._endpoint)
            return self._lanes

    @property
    def pins_memory(self) -> bool:
        """Whether registered memory is read where it lay when it was registered, or may be."""
        if self._pins is None and self.lanes:  # there are none until it is made
            self._pins = pin_memory(self.lanes)
        return self._pins is not False

    def _mapping(self, file: RegionFile) -> MappedRegion | None:
        if self._mapped is None or self.pins_memory:
            return None
        return self._mapped(file)

    def hand_over(self, region: MappedRegion) -> Handover:
        """Return the message that lets the reader read a region.

        Raises
        ------
        TransportError
            If the region cannot be registered.
        """
        made = registered(region, self._worker.context)
        return Handover(made.announcement(), (region,))

    def fileno(self) -> int:
        """Return the descriptor that is readable when something arrived; -1 once closed."""
        return self._arrival.fileno()

    def send_fileno(self) -> int:
        """Return the descriptor that is readable when there may be room; -1 once closed."""
        return self._room.fileno()

    def queue(self, frames: Iterable[Outgoing]) -> None:
        """Line up frames to be sent. A request asks for bodies of type 1 by its tag."""
        remote = self._remote
        if remote is not None:
            frames = [
                frame._replace(tag=remote.tag)
                if isinstance(frame, Tagged) and frame.tag == remote.want_data
                else frame
                for frame in frames
            ]
        self._sender.add(frames)

    def send_some(self) -> bool:
        """Send what was queued, as far as the window goes; tell whether all of it went."""
        worker, sender = self._worker, self._sender
        with worker.lock:
            self._check()
            self._room.silence()
            try:
                while True:
                    sender.reap()
                    if sender.post(_TURN_BYTES):
                        self._room.ring()  # the turn is over, not the window full
                        break
                    moved = worker.progress()
                    if sender.done:
                        self._tell_receiver()
                        if not sender.settled and not worker.arm():
                            self._arrival.ring_later()  # whoever receives sees to the rest
                        return True
                    if worker.events.error != OK:
                        raise SendError(worker.events.error)
                    if moved:
                        self._room.moved()
                    elif self._may_wait(self._room):
                        self._tell_receiver()
                        break
            except SendError as error:
                raise self._lost(error.status) from None
            return False

    def _tell_receiver(self) -> None:
        """Wake whoever receives for what came while this side was sending."""
        if self._receiver.has_work or self._worker.events.error != OK:
            self._arrival.ring()

    def receive_some(self) -> list[Incoming]:
        """Return what has arrived; an empty list means: wait until it is readable."""
        worker, receiver = self._worker, self._receiver
        frames: list[Incoming] = []
        with worker.lock:
            self._check()
            self._arrival.silence()
            if self._refused is not None:
                raise self._refused
            most = receiver.bytes_received + _RECEIVE_MOST
            try:
                while True:
                    moved = worker.progress()
                    receiver.take(frames, most)
                    if receiver.freed:
                        self._free()
                    if frames and not (moved and receiver.bytes_received < most):
                        break
                    if worker.events.error != OK:
                        raise ReceiveError(worker.events.error)
                    if receiver.ended and receiver.at_boundary:
                        raise ReceiveError(ERR_CONNECTION_RESET)
                    if moved:
                        self._arrival.moved()
                    elif self._may_wait(self._arrival):
                        break
            except ProtocolError as error:
                self._refused = error
            except (ReceiveError, SendError) as error:
                self._refused = self._lost(error.status)
            if self._sender.may_go_on:
                self._room.ring()
            if self._refused is not None and not frames:
                raise self._refused
        if self._refused is not None:
            self._arrival.ring()  # the next read raises
        return frames

    def _free(self) -> None:
        """Tell the server what has been read."""
        offsets, self._receiver.freed = self._receiver.freed, []
        if self._remote is not None:
            for begin in range(0, len(offsets), _MOST_FREED):
                payload = pack_offsets(offsets[begin : begin + _MOST_FREED])
                self._sender.free(self._remote.free_data, payload)
            self._sender.reap()

    def _may_wait(self, bell: Bell) -> bool:
        """Tell whether to wait for a bell now; if not, there is work."""
        worker = self._worker
        if self._spin:
            until = time.monotonic() + self._spin
            while time.monotonic() < until:
                if worker.progress():
                    return False
        if not worker.arm():
            if worker.progress():
                return False
            bell.ring_later()
        return True

    def _check(self) -> None:
        if self._closed:
            raise ConnectionLostError(f"the connection with {self.peer} is closed")
        if self._interrupted:
            raise ConnectionLostError(f"the connection with {self.peer} was interrupted")

    def _lost(self, status: int) -> ConnectionLostError:
        told = self._worker.events.error or status
        if told == ERR_CONNECTION_RESET:
            return ConnectionLostError(f"{self.peer} closed the connection")
        return ConnectionLostError(f"the connection with {self.peer} broke: {describe(told)}")

    def interrupt(self) -> None:
        """Make a wait for this channel end, from any thread."""
        self._interrupted = True
        self._arrival.ring()
        self._room.ring()

    def close(self) -> None:
        """Close; what was sent still reaches the peer, if it takes it within a second."""
        with self._worker.lock:
            if self._closed:
                return
            self._closed = True
            self._arrival.close()
            self._room.close()
            if self._server and self._worker.events.error == OK:
                self._sender.farewell()
            if self.finish(force=False):
                return
        linger(self)

    def finish(self, *, force: bool) -> bool:
        """Go on closing; see `closing.Closing`."""
        worker, sender = self._worker, self._sender
        with worker.lock:
            if not self._destroyed:
                try:
                    while worker.progress():
                        pass
                    sender.reap()
                except SendError:
                    force = True
                if force or sender.settled or worker.events.error != OK:
                    self._destroy()
            return self._destroyed

    def abort(self) -> None:
        """Close at once; the peer notices."""
        with self._worker.lock:
            if not self._closed:
                self._closed = True
                self._arrival.close()
                self._room.close()
                self._destroy()

    def _destroy(self) -> None:
        self._destroyed = True
        self._worker.close_endpoint(self._endpoint)
        keep_for_a_while(self._sender.drop() + self._receiver.drop())
        self._worker.destroy()

    def __del__(self) -> None:
        if not self._closed:
            self.abort()
