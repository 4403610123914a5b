"""Downloads over HTTP, read from the socket without a client library."""

from __future__ import annotations

import socket
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Download(NamedTuple):
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes
    trailers: dict[str, str]


class IncompleteDownloadError(Exception):
    """The connection ended before the response did."""


class Downloader:
    """A connection of HTTP/1.1, which takes responses apart as RFC 9112 says."""

    def __init__(
        self, uri: str, context: ssl.SSLContext | None = None, timeout: float = 30
    ) -> None:
        address = urlsplit(uri)
        self.host = f"{address.hostname}:{address.port}"
        self.socket = socket.create_connection((address.hostname, address.port or 0), timeout)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=address.hostname)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Downloader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        version: str = "1.1",
        **headers: str,
    ) -> None:
        """Send a request. Underscores in the names of headers become hyphens."""
        host = headers.pop("Host", self.host)
        lines = [f"{method} {path} HTTP/{version}", f"Host: {host}"]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    def read_head(self) -> tuple[int, dict[str, str]]:
        """Return the status and the headers of the next response."""
        status = int(self._line().split()[1])
        return status, self._fields()

    def read(self, *, has_body: bool = True) -> Download:
        """Return the next response; raise `IncompleteDownloadError` if it does not end."""
        status, headers = self.read_head()
        return self.read_body(status, headers, has_body=has_body)

    def read_body(self, status: int, headers: dict[str, str], *, has_body: bool = True) -> Download:
        """Return the response with a head; raise `IncompleteDownloadError` if it does not end."""
        if not has_body or status in (204, 304):
            return Download(status, headers, b"", {})
        if headers.get("transfer-encoding", "").lower() != "chunked":
            size = int(headers["content-length"])
            return Download(status, headers, self._exactly(size), {})
        body = bytearray()
        while size := int(self._line(), 16):
            body += self._exactly(size)
            assert self._exactly(2) == b"\r\n"
        return Download(status, headers, bytes(body), self._fields())

    def read_all(self) -> bytes:
        """Return everything that arrives until the connection ends, as it is."""
        return self._file.read()

    def get(self, path: str, **headers: str) -> Download:
        """Send a request, and return its response."""
        fields: dict[str, Any] = dict(headers)
        self.send(path, **fields)
        return self.read()

    def _fields(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            found[name.lower()] = value.strip()
        return found

    def _line(self) -> bytes:
        try:
            line = self._file.readline(1 << 16)
        except ConnectionError as error:
            raise IncompleteDownloadError(str(error)) from None
        if not line.endswith(b"\r\n"):
            raise IncompleteDownloadError(f"it ends in {line!r}")
        return line[:-2]

    def _exactly(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except ConnectionError as error:
            raise IncompleteDownloadError(str(error)) from None
        if len(data) < size:
            raise IncompleteDownloadError(f"{len(data)} of {size} bytes have arrived")
        return data


def download(uri: str, path: str, **headers: str) -> Download:
    """Return the response to one request over a connection of its own."""
    with Downloader(uri) as client:
        return client.get(path, **headers)
