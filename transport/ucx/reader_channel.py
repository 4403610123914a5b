"""The reader's end of a connection: requests for remote bodies, and freeing them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...protocol.bodies import pack_offsets
from ...protocol.devices import DeviceAllocator
from ...protocol.frames import IncomingFrame, OutgoingFrame, TaggedFrame
from ...protocol.limits import Limits
from ...protocol.memory import DEFAULT_ALLOCATOR, Allocator
from ...protocol.messages import MetadataType
from ..base import Capabilities
from .channel import REMOTE_CAPABILITIES, UcxChannel
from .idle_links import IDLE_LINKS, Link, ServerKey
from .receiving import Receiver
from .request_tags import RemoteTags
from .sending import Sender

_MAX_FREED_OFFSETS = 1 << 14
"""The offsets in one message of freed offsets."""


class UcxReaderChannel(UcxChannel):
    """The reader's end of a connection.

    Parameters
    ----------
    link : Link
        The connection.
    limits : Limits
        Limits on received messages.
    remote_tags : RemoteTags, optional
        The tags of the server's remote bodies; None to request packed bodies.
    allocator : Allocator
        Supplies the memory of received bodies.
    device : DeviceAllocator, optional
        Supplies the memory of a device that the library knows, for packed bodies.
    key : ServerKey, optional
        By what another reader finds the connection that this one has closed. Without it, or before
        the stream has ended, the connection ends with the channel.
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
