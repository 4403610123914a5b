"""The interface between a session and the delivery of bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...protocol.tags import BodyType
from ..catalog.dataset import ServedDataset, Source
from .connection import Connection
from .packed import PackedBodySender
from .remote import RemoteBodySender, access_method


class BodySender(Protocol):
    """Sends one data stream, its bodies in the form that the reader requested.

    A session calls `open`, then `send` for each group of messages, then `finish`. It calls `fail`
    instead when the stream cannot go on.
    """

    @property
    def message_count(self) -> int:
        """The number of messages sent so far."""
        ...

    @property
    def bytes_lent(self) -> int:
        """The bytes of remote bodies delivered so far."""
        ...

    @property
    def compression(self) -> str | None:
        """What the compression ``auto`` has chosen; None if it was not requested."""
        ...

    def open_at_once(self, dataset: ServedDataset, request: Request) -> Source | None:
        """Open a dataset as `open` does, if that takes no time; otherwise return None."""
        ...

    async def open(self, dataset: ServedDataset, request: Request) -> Source:
        """Open a dataset so that its messages suit this sender; see `ServedDataset.open`."""
        ...

    async def send(self, messages: Sequence[SourceMessage]) -> None:
        """Send the next group of messages.

        Raises `ConnectionLostError` if the reader is gone. Raises `DatasetError` if a body cannot
        be read or shared. Raises `ExhaustedError` if the reader's user holds too many leases and
        frees none in time.
        """
        ...

    async def finish(self) -> None:
        """Send the end of the stream."""
        ...

    async def fail(self, code: str, message: str) -> None:
        """Report a failure to the reader; nothing may follow it."""
        ...


def make_body_sender(body_type: BodyType, connection: Connection) -> BodySender:
    """Return a sender for one stream of a connection."""
    if body_type is BodyType.PACKED:
        return PackedBodySender(connection)
    return RemoteBodySender(connection, access_method(connection))
