"""Bodies in the memory of a device, which readers on this host open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...formats.arrow.buffer_spans import BufferLocator
from ...memory.device_region import DeviceExport
from ...protocol.memory import DeviceSpan
from ...protocol.payloads import Span
from ...protocol.regions import RegionAnnouncement
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ..catalog.dataset import Source
from ..catalog.device_table import DeviceTable
from .connection import Connection


class SharedBodies:
    """The bodies of one stream of a device table.

    Parameters
    ----------
    export : DeviceExport
        The memory of the table.
    announcement : RegionAnnouncement
        The message that lets the reader open it.
    """

    def __init__(self, export: DeviceExport, announcement: RegionAnnouncement) -> None:
        self._export = export
        self.announcement = announcement
        """The message that lets the reader open the memory. It precedes all others."""
        self._locator = BufferLocator()

    def locate(self, message: SourceMessage) -> list[Span]:
        """Return the span of each buffer of a message in the region."""
        places: dict[int, int] = {}
        end = 0
        for part in message.body or ():
            if isinstance(part, DeviceSpan):
                places[end] = part.address
            end += part.nbytes
        buffers = self._locator.locate(message.metadata, message.body_length, 0)
        return [
            (self._export.locate(places[offset]), length) if length else (0, 0)
            for offset, length in buffers
        ]


def open_shared(
    table: DeviceTable, request: Request, connection: Connection
) -> tuple[SharedBodies, Source] | None:
    """Open a table for a reader that opens its memory.

    Returns
    -------
    (SharedBodies, Source) or None
        None if the memory cannot be shared, or the reader requests something else than whole
        batches of columns of fixed width.
    """
    channel: Any = connection.channel
    encoding = replace(connection.encoding, devices=frozenset({table.device_type}))
    source = table.open(request, encoding)
    if source.blocking or (export := table.export()) is None:
        source.close()
        return None
    return SharedBodies(export, channel.announce_device(export.handles)), source
