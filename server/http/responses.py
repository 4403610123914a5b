"""Responses with data: their headers, and how their bodies go to the client.

An `Outlet` belongs to the event loop of the HTTP listener. The session that reads the data, on the
event loop of the daemon, calls it through `run_elsewhere`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.types import Message

from ...errors import ConnectionLostError
from ...transport.memory.files import SourceFile

CONNECTION = "connection"
"""The key in the state of a request: its `Connection`."""
ROWS_TRAILER = "splitarrow-rows"
"""The trailer with the number of rows in a response, which proves that it is complete."""


_LARGE_BYTES = 64 << 10


class Connection(Protocol):
    """The connection of a client, as a response uses it."""

    @property
    def is_lost(self) -> bool:
        """Whether the client has disconnected."""
        ...

    @property
    def can_send_files(self) -> bool:
        """Whether the kernel can send a file: it cannot encrypt it."""
        ...

    def begin_transfer(self) -> None:
        """Let the response take as long as its client takes data."""
        ...

    def add_trailers(self, trailers: Sequence[tuple[str, str]]) -> None:
        """Send trailers after the body that ends next."""
        ...

    async def send_large(self, piece: bytes | memoryview) -> None:
        """Send a piece of a body without copying it."""
        ...

    async def send_file(
        self, file: SourceFile, offset: int, nbytes: int, on_progress: Callable[[], object]
    ) -> None:
        """Send a part of a file as a part of the body. `on_progress` is called now and then."""
        ...

    def abort(self) -> None:
        """Reset the connection."""
        ...


class Outlet:
    """Takes the response to one request."""

    def __init__(self, connection: Connection, send: Callable[[Message], Awaitable[None]]) -> None:
        self.connection = connection
        self.loop = asyncio.get_running_loop()
        self.has_begun = False
        """Whether the status has been sent, so that an error can only end the connection."""
        self._send = send

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers."""
        self._check()
        self.has_begun = True
        self.connection.begin_transfer()
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send pieces of the body, and return when the client has taken most of them."""
        for piece in pieces:
            self._check()
            if len(piece) >= _LARGE_BYTES:
                await self.connection.send_large(piece)
            else:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._check()

    async def write_file(
        self, file: SourceFile, offset: int, nbytes: int, on_progress: Callable[[], object]
    ) -> None:
        """Send a part of a file as a part of the body; see `Connection.send_file`."""
        self._check()
        try:
            await self.connection.send_file(file, offset, nbytes, on_progress)
        except OSError as error:
            raise ConnectionLostError(f"the client has disconnected: {error.strerror}") from None

    async def end(self, piece: bytes = b"", *, rows: int | None = None) -> None:
        """End the response with the last piece. A chunked body has the rows in its trailer."""
        self._check()
        if rows is not None:
            self.connection.add_trailers([(ROWS_TRAILER, str(rows))])
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})

    def _check(self) -> None:
        if self.connection.is_lost:
            raise ConnectionLostError("the client has disconnected")


class ByteRange(NamedTuple):
    """A part of a file, in bytes."""

    begin: int
    end: int


_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


def parse_range(header: str, size: int) -> ByteRange | None:
    """Return the range that the header ``Range`` requests of a file ("RFC 9110", section 14.2).

    None stands for the whole file: the header is malformed, in another unit, or for several ranges,
    which a server may ignore. Raises `ValueError` if no byte of the range exists.

    Examples
    --------
    >>> parse_range("bytes=10-19", 100), parse_range("bytes=-5", 100), parse_range("rows=1-2", 9)
    (ByteRange(begin=10, end=20), ByteRange(begin=95, end=100), None)
    """
    found = _RANGE.fullmatch(header.strip().replace(" ", ""))
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        begin, end = max(size - int(last), 0), size
    else:
        begin = int(first)
        end = size if not last else min(int(last) + 1, size)
        if last and int(last) < begin:
            return None
    if begin >= end:
        raise ValueError(f"the file has {size} bytes")
    return ByteRange(begin, end)


def matches_tag(header: str, tag: str, *, weak: bool) -> bool:
    """Return whether a header such as ``If-None-Match`` has an entity tag, or ``*``.

    A strong comparison needs two strong tags ("RFC 9110", section 8.8.3.2).

    Examples
    --------
    >>> matches_tag('"a", W/"b"', '"b"', weak=True), matches_tag('W/"b"', '"b"', weak=False)
    (True, False)
    """
    listed = [each.strip() for each in header.split(",")]
    if not weak:
        return "*" in listed or (tag in listed and not tag.startswith("W/"))
    plain = {each.removeprefix("W/") for each in listed}
    return "*" in plain or tag.removeprefix("W/") in plain


def quote_tag(*parts: Any) -> str:
    """Return an entity tag with some texts: printable ASCII without quotes."""
    text = "-".join(map(str, parts)).encode("ascii", "backslashreplace").decode()
    return '"' + "".join(each if each.isalnum() or each in "-._:" else "_" for each in text) + '"'
