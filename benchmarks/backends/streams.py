"""splitarrow itself, over any of its transports."""

from __future__ import annotations

import os
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
    body : str, optional
        With ucx: whether bodies are sent (``packed``) or read by the client (``remote``).
    lanes : str, optional
        With ucx: which of its transports may be used. It counts for the whole process.
    """

    def __init__(
        self,
        name: str,
        listen: str,
        *,
        asynchronous: bool = False,
        in_process: bool = False,
        body: str | None = None,
        lanes: str | None = None,
    ) -> None:
        self.name = name
        self.in_process = in_process
        self._listen = listen
        self._asynchronous = asynchronous
        self._body = body
        self._lanes = lanes
        scheme = listen.partition(":")[0]
        client = "asynchronous" if asynchronous else "blocking"
        where = ", within one process" if in_process else ""
        kind = {None: "", "packed": ", bodies sent", "remote": ", bodies read by the client"}[body]
        only = "" if lanes is None else f", {lanes} lanes only"
        self.summary = f"splitarrow over {scheme}{only}{kind}, the {client} client{where}"

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
        self._choose_lanes()
        with serve({_DATASET: dataset.path}, listen=[self._listen]) as server:
            uri = DataUri.parse(server.uri(_DATASET))
            yield str(uri if self._body is None else uri.replace(body=self._body))

    def _choose_lanes(self) -> None:
        if self._lanes is not None:
            os.environ["UCX_TLS"] = self._lanes  # before the library reads its settings

    def read(self, address: str, consumer: Consumer, *, validate: str | None = None) -> None:
        """Read all batches; see `Backend.read`."""
        self._choose_lanes()
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
