"""The reader's end of a connection: requests for remote bodies, and freeing them."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.bodies import pack_offsets
from ...protocol.frames import OutgoingFrame, TaggedFrame
from ...protocol.limits import Limits
from ...protocol.memory import DEFAULT_ALLOCATOR, Allocator
from .channel import REMOTE_CAPABILITIES, Link, UcxChannel
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
    """

    def __init__(
        self,
        link: Link,
        limits: Limits,
        remote_tags: RemoteTags | None = None,
        allocator: Allocator = DEFAULT_ALLOCATOR,
    ) -> None:
        self._remote_tags = remote_tags
        receiver = Receiver(
            link.worker,
            link.endpoint,
            limits,
            expects_farewell=True,
            announcement_tag=None if remote_tags is None else remote_tags.announcement,
            allocator=allocator,
        )
        super().__init__(link, Sender(link.worker, link.endpoint), receiver)
        if remote_tags is not None:
            self.capabilities = REMOTE_CAPABILITIES

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
