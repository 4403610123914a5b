"""Channels over UCX: a worker, an endpoint, a sender and a receiver.

`UcxChannel` implements what both ends share. The reader's end requests remote bodies and frees
them. The server's end maps files, announces regions and sends the farewell.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from ...errors import ConnectionLostError, ProtocolError
from ...protocol.devices import DeviceAllocator
from ...protocol.frames import IncomingFrame, OutgoingFrame, TaggedFrame
from ...protocol.limits import Limits
from ...protocol.memory import DEFAULT_ALLOCATOR, Allocator
from ...protocol.messages import MetadataType
from ...protocol.payloads import pack_offsets
from ...protocol.regions import RegionAnnouncement
from ..base import Capabilities, FileMapper
from ..memory.files import SourceFile
from ..memory.mapped_region import MappedRegion
from .context import Reach
from .endpoint import list_lanes
from .ffi import ERR_CONNECTION_RESET, OK, StatusError, describe
from .lanes import lanes_pin_memory
from .links import IDLE_LINKS, Link, ServerKey, linger, retain
from .memory import list_direct_types, register
from .receiving import Receiver
from .sending import NETWORK_WINDOW_BYTES, WINDOW_BYTES, Sender
from .uri import RemoteTags
from .worker import Wakeup

REMOTE_CAPABILITIES = Capabilities(offset_bodies=True, remote_reads=True)
"""The capabilities of a connection whose bodies may be remote."""
_SEND_TURN_BYTES = 8 << 20
_RECEIVE_TURN_BYTES = 1 << 20
_MAX_FREED_OFFSETS = 1 << 14
"""The offsets in one message of freed offsets."""


class UcxChannel:
    """One end of a connection over UCX; see `Channel`.

    Any thread may send while another receives: both hold the worker's lock. A call of one
    side may progress the work of the other side, so each wakes the other up.

    Raises `OSError` if the process has no descriptors left. The caller then still owns the link.
    """

    capabilities = Capabilities()
    send_waits_readable = True
    delays_writer = False  # a file guard protects what was sent of a file
    unread_bytes = 0
    peer_silence = 0.0
    wake_at: float | None = None
    user: int | None = None
    refusal: str | None = None

    _closed = True  # until the constructor is done

    def __init__(self, link: Link, sender: Sender, receiver: Receiver) -> None:
        self.peer = link.peer
        self.is_local = link.reach is not Reach.NETWORK
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
        self._check_process()
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
        self._check_process()
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

    def _check_process(self) -> None:
        if self._worker.is_inherited:
            raise ConnectionLostError(
                f"the connection with {self.peer} belongs to the process that this one was forked "
                "from; open another one here"
            )

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
        """Close. Pending messages still reach the peer if it receives them within a second.

        A forked process leaves the connection to its parent.
        """
        if self._worker.is_inherited:
            self._close_descriptors()
            return
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
        """Continue closing; see `links.ClosingConnection`."""
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
        if self._worker.is_inherited:
            self._close_descriptors()
            return
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


class UcxReaderChannel(UcxChannel):
    """The reader's end of a connection.

    Without `remote_tags`, it requests packed bodies. Without `key`, or before the stream has ended,
    the connection ends with the channel.
    """

    def __init__(
        self,
        link: Link,
        limits: Limits,
        remote_tags: RemoteTags | None = None,
        allocator: Allocator = DEFAULT_ALLOCATOR,
        device: DeviceAllocator | None = None,
        key: ServerKey | None = None,
    ) -> None:
        self._link = link
        self._key = key
        self._remote_tags = remote_tags
        self._device = device
        receiver = Receiver(
            link.worker,
            link.endpoint,
            limits,
            expects_farewell=True,
            announcement_tag=None if remote_tags is None else remote_tags.announcement,
            allocator=allocator,
            device=device,
        )
        super().__init__(link, Sender(link.worker, link.endpoint), receiver)
        if remote_tags is not None:
            self.capabilities = REMOTE_CAPABILITIES
        elif device is not None:
            self.capabilities = Capabilities(devices=frozenset({device.type_code}))
        if link.is_reused:
            self.capabilities = replace(self.capabilities, is_reused=True)

    def receive_on_device(self, *, enabled: bool) -> None:
        """Choose where the packed bodies that arrive from now on are received."""
        self._receiver.uses_device = enabled

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived; see `Channel.receive_some`."""
        if self._device is None or not self._receiver.uses_device:
            return super().receive_some()
        with self._device.current():
            return super().receive_some()

    def send_some(self) -> bool:
        """Send queued frames within the window; see `Channel.send_some`."""
        if self._device is None or not self._receiver.uses_device:
            return super().send_some()
        with self._device.current():
            return super().send_some()

    def queue(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames. A data request gets the tag that requests remote bodies."""
        tags = self._remote_tags
        if tags is not None:
            frames = [
                frame._replace(tag=tags.request)
                if isinstance(frame, TaggedFrame) and frame.tag == tags.announcement
                else frame
                for frame in frames
            ]
        super().queue(frames)

    def _handle_received(self) -> None:
        """Free the remote bodies that have been read."""
        tags = self._remote_tags
        if tags is None:
            return
        offsets = self._receiver.take_freed()
        if offsets:
            for begin in range(0, len(offsets), _MAX_FREED_OFFSETS):
                payload = pack_offsets(offsets[begin : begin + _MAX_FREED_OFFSETS])
                self._sender.send_free_data(tags.free_data, payload)
            self._sender.reap()

    def _retire(self) -> None:
        """Keep the connection for another reader if its only stream has ended, or close it."""
        if self._key is None or not self._has_ended:
            self._destroy()
            return
        self._destroyed = True
        self._sender.abandon()
        self._receiver.abandon()  # It has no message, but the keys of regions.
        if not IDLE_LINKS.put(self._key, self._link):
            self._worker.close_endpoint(self._endpoint)
            self._worker.destroy()

    @property
    def _has_ended(self) -> bool:
        """Whether the only stream of this channel has ended, and nothing is left of it."""
        receiver = self._receiver
        return (
            self._pending_error is None
            and not self._interrupted
            and [end[0] for end in receiver.ends] == [MetadataType.END_OF_STREAM]
            and receiver.at_boundary
            and not receiver.has_work
            and not receiver.has_farewell
        )


class UcxServerChannel(UcxChannel):
    """The server's end of a connection."""

    def __init__(
        self,
        link: Link,
        limits: Limits,
        *,
        map_file: FileMapper | None = None,
        offers_remote_bodies: bool = False,
    ) -> None:
        self._map_file = map_file
        self._pins_memory: bool | None = None
        mapper = None if map_file is None else self._map_unless_pinned
        is_remote = link.reach is Reach.NETWORK
        window_bytes = NETWORK_WINDOW_BYTES if is_remote else WINDOW_BYTES
        sender = Sender(link.worker, link.endpoint, mapper, window_bytes)
        receiver = Receiver(link.worker, link.endpoint, limits, expects_farewell=False)
        super().__init__(link, sender, receiver)
        self.capabilities = Capabilities(
            offset_bodies=offers_remote_bodies,
            remote_reads=offers_remote_bodies,
            devices=list_direct_types(link.worker.context),
        )

    @property
    def pins_memory(self) -> bool:
        """Whether the lanes read the physical pages that were registered, or may do so.

        Such memory must not be a file that could change: replacing its pages has no effect.
        """
        if self._pins_memory is None and self.lanes:
            self._pins_memory = lanes_pin_memory(self.lanes)
        return self._pins_memory is not False

    def _map_unless_pinned(self, file: SourceFile) -> MappedRegion | None:
        if self._map_file is None or self.pins_memory:
            return None
        return self._map_file(file)

    def announce(self, region: MappedRegion) -> RegionAnnouncement:
        """Return the message that lets the reader read a region. It keeps the region mapped."""
        registration = register(region, self._worker.context)
        return RegionAnnouncement(registration.announcement(), (region,))

    def _say_farewell(self) -> None:
        if self._worker.events.error == OK:
            self._sender.send_farewell()
