"""The data of a dataset as the response to one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...errors import (
    ConnectionLostError,
    ExhaustedError,
    InvalidRequestError,
    NotFoundError,
    RemoteError,
)
from ...formats.arrow.tensors.labels import is_tensor_content
from ...protocol.request import Request
from ..addresses import parse_peer
from ..caller import Caller, run_in_thread
from ..catalog.dataset import ServedDataset, StoredFile, check_version
from ..catalog.delta import DeltaDataset
from ..catalog.files.origins import ObjectFile
from ..catalog.published import PublishedDataset
from ..catalog.selection import Selection, open_rows
from ..chunks import Chunk, Pace, ReadAhead, send_chunks
from ..logs import get_logger
from ..streams import RunningStream
from .formats import Format, accepts_zstd, compress_chunks
from .parameters import DataQuery
from .responses import (
    CONNECTION,
    ByteRange,
    Outlet,
    matches_tag,
    parse_range,
    quote_tag,
)
from .sessions import run_elsewhere, run_http_stream, run_session

VERSION_HEADER = "splitarrow-version"
"""The header with the version of the dataset, with which a client continues a read."""
_PART_BYTES = 64 << 20
"""The part of a file that the kernel sends at a time, in bytes."""
_COPY_BYTES = 1 << 20
"""The part of a file that is read and sent where the kernel cannot send it, in bytes."""
_TAIL_BYTES = 64 << 10
"""The end of a file, which is sent once the file has turned out to be unchanged, in bytes."""
_ATTEMPTS = 3
"""How often a read begins anew because the dataset changes before it is open."""
_CACHE_SECONDS = 31_536_000


@dataclass
class Readers:
    """The responses with data that are under way."""

    read_ahead: ReadAhead
    running: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a response has."""

    dataset: ServedDataset
    request: Request
    """The request, for one version, with its filter."""
    format: Format
    version: str
    stored: StoredFile | None
    """The file that is the response."""


class DataResponse(Response):
    """Sends the data that a query selects."""

    def __init__(
        self,
        caller: Caller,
        query: DataQuery,
        format: Format,
        request_headers: Headers,
        readers: Readers,
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._caller = caller
        self._format = format
        self._query = query
        self._asked = request_headers
        self._readers = readers
        self._log = get_logger("http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; raise an error if that can still become another response."""
        outlet = Outlet(scope["state"][CONNECTION], send)
        is_head = scope["method"] == "HEAD"
        server = self._caller.server
        session = asyncio.ensure_future(
            run_session(server, partial(self._run, outlet, is_head=is_head))
        )
        leaving = asyncio.ensure_future(_wait_disconnected(receive))
        try:
            await asyncio.wait((session, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not session.done():
                session.cancel()
                return
            session.result()
        except ConnectionLostError:
            return
        except Exception as error:
            if not outlet.has_begun:
                raise
            outlet.connection.abort()
            self._log_failure(error)
        finally:
            session.cancel()
            leaving.cancel()

    def _log_failure(self, error: Exception) -> None:
        """Log why a response ended in its middle."""
        name, peer = self._query.request.dataset, self._caller.peer
        if isinstance(error, RemoteError):
            self._log.info("response cut", dataset=name, peer=peer, reason=error.message)
        else:
            self._log.error("response cut", dataset=name, peer=peer, exc_info=error)

    # --- on the event loop of the daemon ---------------------------------------------------------

    async def _run(self, outlet: Outlet, *, is_head: bool) -> None:
        caller, server, request = self._caller, self._caller.server, self._query.request
        address, limit = str(parse_peer(caller.peer) or ""), server.settings.address_limit
        if self._readers.running >= server.settings.max_connections:
            raise ExhaustedError("the server has reached its limit of connections; retry later")
        if not server.usage.addresses.take(address, limit):
            raise ExhaustedError(
                f"the address {address} has reached its limit of {limit} connections; retry later"
            )
        self._readers.running += 1
        try:
            dataset = caller.find_dataset(request.dataset)
            caller.check_draining(request)
            for attempt in range(_ATTEMPTS):
                try:
                    await self._respond(dataset, outlet, is_head=is_head)
                    return
                except NotFoundError as error:  # a column: the resource exists
                    raise InvalidRequestError(error.message, stream=error.stream) from None
                except RemoteError as error:
                    # The dataset has changed since its version was read.
                    is_stale = error.code == "FAILED_PRECONDITION" and request.version is None
                    if not is_stale or outlet.has_begun or attempt + 1 == _ATTEMPTS:
                        raise
        finally:
            self._readers.running -= 1
            server.usage.addresses.release(address)

    async def _respond(self, dataset: ServedDataset, outlet: Outlet, *, is_head: bool) -> None:
        plan = await run_in_thread(self._plan, dataset, limiter=self._caller.server.threads)
        try:
            if plan.stored is not None:
                await self._send_file(plan, plan.stored, outlet, is_head=is_head)
            else:
                await self._send_rows(plan, outlet, is_head=is_head)
        finally:
            if plan.stored is not None:
                plan.stored.close()

    def _plan(self, dataset: ServedDataset) -> _Plan:
        """Decide what to send. Blocking: it looks at the files."""
        query, request, chosen = self._query, self._query.request, self._format
        if isinstance(dataset, (DeltaDataset, PublishedDataset)):
            dataset = dataset.resolve_version(request)
        version = dataset.version
        check_version(request, version)
        if is_tensor_content(dataset.schema):
            raise InvalidRequestError(
                "the dataset holds tensors, which HTTP does not carry; read it over another "
                "transport",
                stream=request.dataset,
            )
        whole = Request(request.dataset, shard=request.shard, version=request.version)
        if chosen.stored_kinds and query.filter is None and request == whole:
            stored = dataset.open_stored_file(replace(request, version=version))
            if stored is not None and stored.kind in chosen.stored_kinds:
                return _Plan(dataset, request, chosen, stored.version, stored)
            if stored is not None:
                stored.close()
        dataset.update_description()
        bound = replace(query.bind(dataset.schema), version=version)
        # Errors of the selection become a status, also for HEAD.
        Selection.resolve(bound, self._caller.server.encoding, dataset.schema)
        return _Plan(dataset, bound, chosen, version, None)

    def _make_headers(self, plan: _Plan, tag: str) -> dict[str, str]:
        """Return the headers that a response and its 304 share."""
        is_private = self._caller.server.access.requires_token
        cache = "no-cache"
        if self._query.request.version == plan.version:  # its number may get other data again
            cache = f"max-age={_CACHE_SECONDS}, immutable"
        return {
            **self.headers,
            "etag": tag,
            "cache-control": f"{'private' if is_private else 'public'}, {cache}",
            "vary": "Accept, Accept-Encoding, Authorization",
            VERSION_HEADER: plan.version,
        }

    def _describe_content(self, plan: _Plan) -> dict[str, str]:
        name = quote(plan.request.dataset.replace("/", "_") + plan.format.suffix, safe="")
        return {
            "content-type": plan.format.media_type,
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
        }

    async def _call(self, outlet: Outlet, status: int, headers: Mapping[str, str]) -> None:
        await run_elsewhere(outlet.loop, outlet.begin(status, headers))

    async def _send_rows(self, plan: _Plan, outlet: Outlet, *, is_head: bool) -> None:
        server, request = self._caller.server, plan.request
        is_compressed = self._compresses(plan)
        encoding = "zstd" if is_compressed else "identity"
        digest = blake2b(request.ticket() + encoding.encode(), digest_size=12).hexdigest()
        tag = f"W/{quote_tag(plan.version, plan.format.name, digest)}"
        headers = self._make_headers(plan, tag)
        if matches_tag(self._asked.get("if-none-match", ""), tag, weak=True):
            await self._send_empty(outlet, 304, headers)
            return
        headers |= self._describe_content(plan) | {"accept-ranges": "none"}
        if is_compressed:
            headers["content-encoding"] = encoding
        if is_head:
            await self._send_empty(outlet, 200, headers)
            return
        with run_http_stream(self._caller, request) as stream, self._readers.read_ahead.stream():
            pace = Pace(self._readers.read_ahead)
            source = await run_in_thread(
                open_rows,
                plan.dataset,
                request,
                pace.adapt(server.encoding),
                limiter=server.threads,
            )
            chunks = plan.format.write(source, pace)
            if is_compressed:
                chunks = compress_chunks(chunks, pace)

            pending: list[asyncio.Future[None]] = []
            """The pieces that are being sent while the next ones are made."""

            async def write(chunk: Chunk) -> None:
                if not outlet.has_begun:  # errors of the first chunk still become a status
                    await self._call(outlet, 200, headers)
                pieces = list(chunk.buffers)
                chunk.buffers.clear()
                if pending:
                    await pending.pop()
                pending.append(asyncio.ensure_future(self._write(outlet, stream, pieces)))

            slot = server.read_slots.slot_for(request, self._caller.principal.name)
            try:
                await send_chunks(server, chunks, source.close, pace, stream, slot, write)
                if pending:
                    await pending.pop()
            finally:
                for each in pending:
                    if not each.cancel() and not each.cancelled():
                        each.exception()  # it is the one that has ended the stream, or later
            await run_elsewhere(outlet.loop, outlet.end(rows=stream.rows))

    def _compresses(self, plan: _Plan) -> bool:
        """Return whether to compress a response: text, or if the client accepts nothing else."""
        header = self._asked.get("accept-encoding", "")
        if not accepts_zstd(header):
            return False
        is_arrow = plan.format.name.startswith("arrow")
        return plan.format.is_text or (is_arrow and header.strip().lower() == "zstd")

    async def _write(
        self, outlet: Outlet, stream: RunningStream, pieces: list[bytes | memoryview]
    ) -> None:
        """Send pieces, and count them."""
        nbytes = sum(map(len, pieces))
        stream.writing_since = time.monotonic()
        stream.waits.begin()
        await run_elsewhere(outlet.loop, outlet.write(pieces))
        self._count(stream, nbytes)

    def _count(self, stream: RunningStream, nbytes: int) -> None:
        stream.waits.end()
        stream.writing_since = None
        stream.nbytes += nbytes
        self._caller.server.metrics.bytes_sent += nbytes

    async def _send_empty(self, outlet: Outlet, status: int, headers: Mapping[str, str]) -> None:
        await self._call(outlet, status, headers)
        await run_elsewhere(outlet.loop, outlet.end())

    async def _send_file(
        self, plan: _Plan, stored: StoredFile, outlet: Outlet, *, is_head: bool
    ) -> None:
        file, tag = stored.file, quote_tag(plan.version, plan.format.name)
        headers = self._make_headers(plan, tag)
        asked = self._asked
        if "if-match" in asked and not matches_tag(asked["if-match"], tag, weak=False):
            await self._send_empty(outlet, 412, headers | {"content-length": "0"})
            return
        if matches_tag(asked.get("if-none-match", ""), tag, weak=True):
            await self._send_empty(outlet, 304, headers)
            return
        headers |= self._describe_content(plan) | {"accept-ranges": "bytes"}
        status, part = 200, ByteRange(0, file.size)
        if "range" in asked and asked.get("if-range", tag) == tag:
            try:
                found = parse_range(asked["range"], file.size)
            except ValueError:
                headers |= {"content-range": f"bytes */{file.size}", "content-length": "0"}
                await self._send_empty(outlet, 416, headers)
                return
            if found is not None:
                status, part = 206, found
                headers["content-range"] = f"bytes {part.begin}-{part.end - 1}/{file.size}"
        headers["content-length"] = str(part.end - part.begin)
        if is_head:
            await self._send_empty(outlet, status, headers)
            return
        with run_http_stream(self._caller, plan.request) as stream:
            await self._call(outlet, status, headers)
            await self._send_part(stored, part, outlet, stream)
            is_whole = part == (0, file.size)
            if is_whole and plan.dataset.rows is not None and plan.request.shard is None:
                stream.rows = plan.dataset.rows

    async def _send_part(
        self, stored: StoredFile, part: ByteRange, outlet: Outlet, stream: RunningStream
    ) -> None:
        """Send a part of a file. A client never gets all of one that has changed meanwhile."""
        file, threads = stored.file, self._caller.server.threads
        position, tail = part.begin, max(part.end - _TAIL_BYTES, part.begin)
        by_kernel = outlet.connection.can_send_files and not (
            file.writers or isinstance(file, ObjectFile)
        )
        while position < tail:
            if by_kernel:
                nbytes = min(tail - position, _PART_BYTES)
                stream.writing_since = time.monotonic()
                stream.waits.begin()
                sending = outlet.write_file(file, position, nbytes, stream.renew_write)
                await run_elsewhere(outlet.loop, sending)
                self._count(stream, nbytes)
            else:
                nbytes = min(tail - position, _COPY_BYTES)
                data = await run_in_thread(file.read, position, nbytes, limiter=threads)
                await self._write(outlet, stream, [data])
            position += nbytes

        def read_tail() -> bytes:
            data = file.read(tail, part.end - tail)
            file.check()
            return data

        data = await run_in_thread(read_tail, limiter=threads)
        # The response ends with its last byte: the next request then finds it complete.
        await run_elsewhere(outlet.loop, outlet.end(data))
        self._count(stream, len(data))


async def _wait_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
