"""The server's end of a connection: mapped files, announced regions and the farewell."""

from __future__ import annotations

from ...protocol.limits import Limits
from ...protocol.regions import RegionAnnouncement
from ..base import Capabilities, FileMapper
from ..memory.files import SourceFile
from ..memory.mapped_region import MappedRegion
from .channel import UcxChannel
from .device_memory import list_device_types
from .ffi import OK
from .idle_links import Link
from .lanes import lanes_pin_memory
from .memory import register
from .receiving import Receiver
from .sending import Sender


class UcxServerChannel(UcxChannel):
    """The server's end of a connection.

    Parameters
    ----------
    link : Link
        The connection.
    limits : Limits
        Limits on received messages.
    map_file : callable, optional
        Maps files that are sent; see `Sender`.
    offers_remote_bodies : bool
        Whether the listener offers remote bodies.
    """

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
        sender = Sender(link.worker, link.endpoint, mapper)
        receiver = Receiver(link.worker, link.endpoint, limits, expects_farewell=False)
        super().__init__(link, sender, receiver)
        remote = offers_remote_bodies
        self.capabilities = Capabilities(
            offset_bodies=remote,
            remote_reads=remote,
            devices=list_device_types(link.worker.context),
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
        """Return the message that lets the reader read a region. It keeps the region mapped.

        Raises
        ------
        TransportError
            If the region cannot be registered.
        """
        registration = register(region, self._worker.context)
        return RegionAnnouncement(registration.announcement(), (region,))

    def _say_farewell(self) -> None:
        if self._worker.events.error == OK:
            self._sender.send_farewell()
