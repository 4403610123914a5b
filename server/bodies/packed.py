"""Packed bodies: each body travels through the connection, behind its metadata."""

from __future__ import annotations

from anyio import to_thread

from ...protocol.request import Request
from ...protocol.splitter import SourceMessage, Splitter
from ..catalog.dataset import Dataset, Source
from .connection import Connection


class PackedBodySender:
    """Sends the bodies of a stream packed; see `BodySender`.

    Parameters
    ----------
    connection : Connection
        The reader's connection.
    """

    bytes_lent = 0

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send = connection.writer.send
        self._splitter = Splitter(connection.uri.stream)

    @property
    def message_count(self) -> int:
        """The number of messages sent so far."""
        return self._splitter.next_sequence

    async def open(self, dataset: Dataset, request: Request) -> Source:
        """Open a dataset, encoded by the server's defaults."""
        connection = self._connection
        return await to_thread.run_sync(
            dataset.open, request, connection.packed_encoding, limiter=connection.threads
        )

    async def send(self, messages: list[SourceMessage]) -> None:
        """Send a group of messages in one go."""
        await self._send(self._splitter.split(messages))

    async def finish(self) -> None:
        """Send the end of the stream."""
        await self._send(self._splitter.end())

    async def fail(self, code: str, message: str) -> None:
        """Report a failure to the reader."""
        await self._send(self._splitter.fail(code, message))
