"""One request over HTTP, and the body of its response.

The errors of the connection and the status codes of the server become those of splitarrow.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, IncompleteRead, parse_headers
from io import BytesIO

from ...errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NotAPeerError,
    ProtocolError,
    SplitArrowError,
    StallError,
    TransportError,
    UriError,
    remote_error,
)
from ...transport.tls import map_ssl_error
from ..arguments import StreamOptions
from ..stream.tracing import current_context
from .connection import Connection, Url, connect

ARROW_STREAM = "application/vnd.apache.arrow.stream"
"""The content type of an Arrow IPC stream."""
_UNTYPED = ("application/octet-stream", "")
"""The content types of servers that know no other. Arrow Flight's "Extended Location URIs" ask
readers to try an Arrow IPC stream."""
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
"""The codes of errors, by the status of a response. The others concern the request, or are internal
errors."""
_FROM_ANYONE = frozenset([401, 403, 429, 502, 503, 504])
"""The errors that servers in front of a daemon report too."""
_MAX_REASON_CHARS = 400
_MAX_LINE_BYTES = 4096
_MAX_TRAILER_LINES = 64


class _Response(HTTPResponse):
    """A response that keeps its trailer, which the base class discards, and needs all of it."""

    trailer: Message | None = None

    def _read_and_discard_trailer(self) -> None:
        lines: list[bytes] = []
        while not lines or lines[-1].strip():
            lines.append(self.fp.readline(_MAX_LINE_BYTES))
            if not lines[-1].endswith(b"\n") or len(lines) > _MAX_TRAILER_LINES:
                raise IncompleteRead(b"")
        self.trailer = parse_headers(BytesIO(b"".join(lines)))


class Exchange:
    """A request for an Arrow stream, and the body of its response, which one thread reads.

    The body is read into the memory of the caller. A `content` in JSON makes the request a POST.
    With `is_foreign`, the server may be any HTTP server, which does not know the type of its data.
    Raises as `connect`, `StallError`, `ConnectionLostError` and `NotAPeerError`, and `RemoteError`
    if the server refuses.
    """

    def __init__(
        self,
        url: str,
        name: str,
        options: StreamOptions,
        *,
        token: str | None = None,
        content: bytes | None = None,
        is_foreign: bool = False,
    ) -> None:
        self._types = (ARROW_STREAM, *_UNTYPED) if is_foreign else (ARROW_STREAM,)
        self.is_untyped = False
        """Whether the response has no specific content type."""
        self._url = Url.parse(url)
        self._name = name
        self._token = token
        self._timeout = options.schema_timeout
        self._is_cancelled = False
        self.bytes_received = 0
        """The size of the body received so far, in bytes."""
        try:
            self._connection = connect(self._url, options.tls, options.connect_timeout)
        except SplitArrowError as error:
            error.stream = name
            raise
        self._response: HTTPResponse | None = None
        try:
            self._response = self._request(self._connection, content)
            self._check(self._response)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> str:
        """The version of the dataset that the response is of; empty if it is not stated."""
        return self._find_header("splitarrow-version")

    def _find_header(self, name: str) -> str:
        assert self._response is not None
        return self._response.headers.get(name, "").strip()

    def set_timeout(self, timeout: float | None) -> None:
        """Limit each wait for the server, in seconds. None disables the limit."""
        self._timeout = timeout
        with contextlib.suppress(OSError):  # an interrupted one
            self._connection.sock.settimeout(timeout)

    def _request(self, connection: Connection, content: bytes | None) -> HTTPResponse:
        headers = {
            **connection.headers,
            "Accept": ", ".join(filter(None, self._types)),
            "Connection": "close",
            "User-Agent": "splitarrow",
        }
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        context = current_context()
        headers |= dict(() if context is None else context.headers())
        http = connection.http
        http.response_class = _Response
        try:
            connection.sock.settimeout(self._timeout)
            http.request("GET" if content is None else "POST", connection.target, content, headers)
            return http.getresponse()
        except (OSError, HTTPException) as error:
            raise self._convert(self._find_alert() or error, has_answered=False) from None

    def _find_alert(self) -> ssl.SSLError | None:
        """Return the error for an alert with which the server has refused TLS, after all of it.

        With TLS 1.3, a server checks the client's certificate when the client may send already.
        """
        sock = self._connection.sock
        if isinstance(sock, ssl.SSLSocket) and not self._is_cancelled:
            try:
                sock.settimeout(0)
                sock.recv(1)
            except ssl.SSLError as error:
                return error if "ALERT" in (error.reason or "") else None
            except OSError:
                pass
        return None

    # --- the status of the response ------------------------------------------------------------

    def _check(self, response: HTTPResponse) -> None:
        """Raise the error of a response that is not an Arrow stream."""
        status, media_type = response.status, self._find_header("content-type")
        kind = media_type.partition(";")[0].strip().lower()
        if 300 <= status < 400:
            place = _shorten(self._find_header("location").partition("?")[0])
            raise UriError(
                f"{self.place} redirects to {place or 'another place'} (status {status}), and "
                "redirects are not followed; open that URL if you trust it",
                stream=self._name,
            )
        if status == 407:
            reason = "the proxy requires a user name and a password (status 407)"
            raise ConnectError(f"cannot connect to {self.place}: {reason}", stream=self._name)
        if status == HTTPStatus.HTTP_VERSION_NOT_SUPPORTED:
            raise self._refuse_peer()
        is_sentence = kind == "text/plain"
        if status >= 400 and (is_sentence or status in _FROM_ANYONE):
            reason = self._read_reason(response) if is_sentence else ""
            reason = reason or f"{self.place} answers with the status {self._describe(response)}"
            if status == 401:
                hint = "pass a token" if self._token is None else "check the token"
                reason += f"; {hint}: token=, or for commands SPLITARROW_TOKEN"
            code = _CODES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
            raise remote_error(code, reason, stream=self._name)
        self.is_untyped = kind in _UNTYPED
        if status != 200 or kind not in self._types:
            raise NotAPeerError(
                f"{self.place} answers with {_shorten(kind) or 'no content type'} (status "
                f"{self._describe(response)}), not with an Arrow stream; check the URL and proxies",
                stream=self._name,
            )
        encoding = self._find_header("content-encoding").lower()
        if encoding not in ("", "identity"):
            raise NotAPeerError(
                f"{self.place} sends the content encoding {_shorten(encoding)!r}, which was not "
                "requested; check proxies",
                stream=self._name,
            )

    @property
    def place(self) -> str:
        """The URL without its parameters."""
        return f"{self._url.server.address}{self._url.target.partition('?')[0]}"

    def _describe(self, response: HTTPResponse) -> str:
        return f"{response.status} {_shorten(response.reason)}".strip()

    def _read_reason(self, response: HTTPResponse) -> str:
        """Return the sentence of an error, without the token."""
        try:
            text = response.read(4 * _MAX_REASON_CHARS).decode(errors="replace")
        except (OSError, HTTPException):
            return ""
        return _shorten(text.replace(self._token, "…") if self._token else text)

    # --- the body of the response --------------------------------------------------------------

    def read_into(self, view: memoryview) -> None:
        """Fill memory with the next bytes of the body."""
        if view.nbytes and self._receive(view) < view.nbytes:
            raise self._lost("it ended early")

    def finish(self) -> int | None:
        """Read the end of the body; return the number of rows that the server states after it.

        Return None if it states none. Raises `ConnectionLostError` if the end does not follow.
        """
        response = self._response
        assert isinstance(response, _Response)
        if self._receive(memoryview(bytearray(1))):
            raise ProtocolError("data follows the end of the stream", stream=self._name)
        if response.length:  # of a body whose size was declared
            raise self._lost("it ended early")
        text = "" if response.trailer is None else response.trailer.get("splitarrow-rows", "")
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise ProtocolError("the number of rows after the stream is invalid", stream=self._name)
        return int(text)

    def _receive(self, view: memoryview) -> int:
        """Fill memory, or less of it at the end of the body; return the number of bytes."""
        assert self._response is not None
        try:
            count = self._response.readinto(view)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: it was closed
            raise self._convert(error, has_answered=True) from None
        self.bytes_received += count
        if self._is_cancelled:
            raise self._cancellation()
        return count

    # --- errors --------------------------------------------------------------------------------

    def _convert(self, error: Exception, *, has_answered: bool) -> SplitArrowError:
        """Return the error for one of the connection or of the parser of HTTP."""
        server = self._url.server
        if self._is_cancelled:
            return self._cancellation()
        if isinstance(error, TimeoutError):
            return StallError(f"nothing arrived for {self._timeout:g} s", stream=self._name)
        if isinstance(error, ssl.SSLError):
            found: TransportError = map_ssl_error(
                *(error, f"{server.host}:{server.port}"),
                server=False,
                established=True,
                preface_received=has_answered,
            )
            found.stream = self._name
            return found
        if isinstance(error, IncompleteRead):
            return self._lost("it ended early")
        hint = "" if has_answered or server.scheme == "https" else "; it may require https://"
        if isinstance(error, OSError):
            return self._lost((error.strerror or str(error)) + hint)
        if has_answered:
            return ProtocolError(f"the response is malformed: {error!r}", stream=self._name)
        return self._refuse_peer(hint)

    def _refuse_peer(self, hint: str = "") -> NotAPeerError:
        return NotAPeerError(
            f"{self._url.server.address} does not answer as an HTTP server{hint}; check the port: "
            "that of a control plane needs grpc://",
            stream=self._name,
        )

    def _lost(self, reason: str) -> ConnectionLostError:
        reason = reason[:1].lower() + reason[1:]
        return ConnectionLostError(
            f"the connection to {self._url.server.address} was lost: {reason}", stream=self._name
        )

    def _cancellation(self) -> ClosedError:
        return ClosedError("the stream was cancelled", stream=self._name)

    def interrupt(self) -> None:
        """Let a thread that waits for the server fail."""
        self._is_cancelled = True
        with contextlib.suppress(OSError):
            # The method of a socket with TLS would let the other thread read ciphertext.
            socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. No other thread may be reading. Idempotent."""
        if self._response is not None:
            self._response.close()
        self._connection.http.close()
        self._connection.sock.close()


def _shorten(text: str) -> str:
    """Return the first line of a server's text, without control characters."""
    line = text.strip().partition("\n")[0]
    return "".join(each if each.isprintable() else "?" for each in line[:_MAX_REASON_CHARS])
