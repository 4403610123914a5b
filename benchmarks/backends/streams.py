"""splitarrow itself, over any of its transports."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from ... import aio, serve
from ... import open as open_stream
from ...errors import MissingExtraError
from ...protocol.uri import DataUri
from ...transport.registry import transport_for
from ..consumer import Consumer
from ..dataset import Dataset

_DATASET = "benchmark"


class Streams:
    """splitarrow's server and one of its clients.

    Parameters
    ----------
    name : str
        What it is called in the report.
    listen : str
        Where the server listens; the scheme chooses the transport.
    asynchronous : bool
        Whether the client is the asynchronous one.
    in_process : bool
        Whether server and client are one process.
    """

    def __init__(
        self, name: str, listen: str, *, asynchronous: bool = False, in_process: bool = False
    ) -> None:
        self.name = name
        self.in_process = in_process
        self._listen = listen
        self._asynchronous = asynchronous
        scheme = listen.partition(":")[0]
        client = "asynchronous" if asynchronous else "blocking"
        where = ", within one process" if in_process else ""
        self.summary = f"splitarrow over {scheme}, the {client} client{where}"

    def unavailable(self) -> str | None:
        """Return why the transport cannot be used here, or None if it can."""
        try:
            transport_for(DataUri.parse(self._listen))
        except MissingExtraError as error:
            return error.message
        return None

    @contextmanager
    def serve(self, dataset: Dataset) -> Generator[str]:
        """Serve the file as it lies; see `Backend.serve`."""
        with serve({_DATASET: dataset.path}, listen=[self._listen]) as server:
            yield server.uri(_DATASET)

    def read(self, address: str, consumer: Consumer, *, validate: str | None = None) -> None:
        """Read all batches; see `Backend.read`."""
        if self._asynchronous:
            anyio.run(self._read_async, address, consumer, validate)
            return
        with open_stream(address, validate=validate) as stream:
            if consumer.whole:
                consumer.table(stream.read_all())
            else:
                consumer.drain(stream)

    async def _read_async(self, address: str, consumer: Consumer, validate: str | None) -> None:
        async with aio.open(address, validate=validate) as stream:
            if consumer.whole:
                consumer.table(await stream.read_all())
            else:
                await consumer.drain_async(stream)
