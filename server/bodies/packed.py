"""Packed bodies: each body travels through the connection, behind its metadata."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from anyio import to_thread

from ...protocol.request import AUTO, Request
from ...protocol.splitter import SourceMessage, Splitter
from ..catalog.dataset import Dataset, Source
from ..catalog.files.file_dataset import FileDataset
from ..catalog.messages.generator_source import GeneratorSource, MessageGroups
from ..catalog.vortex_dataset import VortexDataset
from ..shm.region_source import RegionSource
from .adaptive_compression import AdaptiveCompression
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
        self._adaptive: AdaptiveCompression | None = None

    @property
    def compression(self) -> str | None:
        """What ``auto`` has chosen, ``none`` or a codec; None if it was not requested."""
        return None if self._adaptive is None else self._adaptive.codec or "none"

    @property
    def message_count(self) -> int:
        """The number of messages sent so far."""
        return self._splitter.next_sequence

    def open_at_once(self, dataset: Dataset, request: Request) -> Source | None:
        """Open a dataset without a thread; see `BodySender.open_at_once`."""
        encoding = self._connection.encoding
        if not isinstance(dataset, FileDataset) or request.compression or encoding.compression:
            return None
        return dataset.open_at_once(request, encoding)

    async def open(self, dataset: Dataset, request: Request) -> Source:
        """Open a dataset, encoded by the server's defaults."""
        connection = self._connection
        if isinstance(dataset, VortexDataset):
            return await to_thread.run_sync(
                _open_compressed, dataset, request, connection, limiter=connection.threads
            )
        streams = connection.uri.stream
        if (request.compression or connection.encoding.compression) == AUTO and (
            streams.carries_metadata and streams.carries_bodies
        ):
            self._adaptive = AdaptiveCompression(connection.threads)
        return await to_thread.run_sync(
            dataset.open, request, connection.packed_encoding, limiter=connection.threads
        )

    async def send(self, messages: Sequence[SourceMessage]) -> None:
        """Send a group of messages in one go."""
        adaptive = self._adaptive
        if adaptive is None:
            await self._send(self._splitter.split(messages))
            return
        prepared = await adaptive.prepare(messages)
        started = time.monotonic()
        await self._send(self._splitter.split(prepared))
        adaptive.record(messages, prepared, time.monotonic() - started)

    async def finish(self) -> None:
        """Send the end of the stream."""
        await self._send(self._splitter.end())

    async def fail(self, code: str, message: str) -> None:
        """Report a failure to the reader."""
        await self._send(self._splitter.fail(code, message))


def _open_compressed(dataset: VortexDataset, request: Request, connection: Connection) -> Source:
    """Open a dataset that is compressed once for all its readers, in memory that they share."""
    if request.batch_rows is None:
        request = replace(request, batch_rows=connection.encoding.batch_rows)
    stored = dataset.open_stored(request)
    if stored is not None:
        return stored
    shared = connection.regions.open(dataset, request)
    source = GeneratorSource(_iterate(shared), blocking=shared.blocking)
    source.call_on_close(shared.release)
    source.call_on_close(shared.close)
    return source


def _iterate(shared: RegionSource) -> MessageGroups:
    yield from shared
