"""Uploads over HTTP: an Arrow IPC stream as the body of PUT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from ...errors import (
    ConnectionLostError,
    InvalidRequestError,
    LimitError,
    ProtocolError,
    UnavailableError,
    remote_error,
)
from ...formats.arrow.stream_parser import StreamParser
from ...formats.flight_data import FlightData
from ..caller import NO_UPLOADS, Caller
from ..receiving import Patience
from ..uploads.store import DatasetTarget
from .responses import CONNECTION, Connection, quote_tag
from .sessions import run_elsewhere, run_session


async def receive_upload(caller: Caller, dataset: str, request: Request) -> dict[str, Any]:
    """Store the body of a request as a dataset, and return the response for JSON.

    Raises `SplitArrowError` as `UploadReceiver.receive` does.
    """
    receiver, server = caller.server.uploads, caller.server
    if receiver is None:
        raise remote_error("UNIMPLEMENTED", NO_UPLOADS)
    loop, pieces = asyncio.get_running_loop(), aiter(request.stream())
    connection: Connection = getattr(request.state, CONNECTION)
    connection.begin_transfer()

    async def read_piece() -> bytes | None:
        try:
            return await anext(pieces, None)
        except ClientDisconnect:
            raise ConnectionLostError("the client has disconnected") from None

    async def read() -> bytes | None:
        return await run_elsewhere(loop, read_piece())

    async def receive() -> dict[str, Any]:
        if server.draining.is_set():
            raise UnavailableError("the server is draining", stream=dataset)
        target = DatasetTarget(dataset, partial(_check_tags, dataset, request.headers))
        return await receiver.receive(caller, target, _parse(caller, read))

    return await run_session(server, receive)


def _check_tags(dataset: str, headers: Headers, version: str | None) -> None:
    """Check the conditions of a request (RFC 9110, section 13) against the current version."""
    expected, unexpected = headers.get("if-match"), headers.get("if-none-match")
    if expected is not None and not _names_version(expected, version, weak=False):
        problem = (
            "If-Match has no strong ETag of the current version, as HEAD with the format of the "
        )
        problem += "stored file returns: ?format=arrow-file, or arrow-stream with dictionaries"
        if version is None:
            problem = "If-Match requires that the dataset exists"
        raise remote_error(
            "FAILED_PRECONDITION", f"cannot upload {dataset!r}: {problem}", stream=dataset
        )
    if unexpected is not None and _names_version(unexpected, version, weak=True):
        raise remote_error(
            "ALREADY_EXISTS",
            f"cannot upload {dataset!r}: the dataset exists; to replace it, leave out the header "
            "If-None-Match",
            stream=dataset,
        )


def _names_version(header: str, version: str | None, *, weak: bool) -> bool:
    """Return whether a header has an entity tag of a version in any format, or ``*``."""
    if version is None:
        return False
    start = quote_tag(version, "").removesuffix('"')
    tags = [each.strip() for each in header.split(",")]
    return any(
        tag == "*" or (tag.removeprefix("W/") if weak else tag).startswith(start) for tag in tags
    )


async def _parse(
    caller: Caller, read: Callable[[], Awaitable[bytes | None]]
) -> AsyncIterator[FlightData]:
    """Yield the messages of a stream, up to its end and that of the request."""
    limits = caller.server.limits
    parser = StreamParser(limits.metadata_bytes, limits.upload_message_bytes)
    patience = Patience(caller.server.settings)
    empty = memoryview(b"")
    while (piece := await patience.wait(read)) is not None:
        try:
            for message in parser.feed(piece):
                yield FlightData(
                    None, memoryview(message.metadata), empty, memoryview(message.body)
                )
        except LimitError:
            raise
        except ProtocolError as error:
            raise InvalidRequestError(f"the upload is refused: {error.message}") from None
    if not parser.has_ended:
        raise InvalidRequestError("the upload is refused: the Arrow stream has no end")
