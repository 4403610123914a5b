"""URIs of data streams ("URI Specification").

``scheme://authority-or-path?want_data=U64&free_data=U64&remote_handle=BASE64&stream=…&body=…&ticket=…``
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes, urlsplit

from ..errors import UriError

_KNOWN = ("want_data", "free_data", "remote_handle", "stream", "body", "ticket")
_SECRET = ("ticket", "remote_handle")
_U64 = 1 << 64
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_AUTHORITY = re.compile(r"[^/?#]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_PATH_SAFE = "/:@!$&'()*+,;="


class StreamKind(Enum):
    """Which of the two streams of messages a connection carries."""

    BOTH = "both"
    METADATA = "metadata"
    BODY = "body"

    @property
    def metadata(self) -> bool:
        """Whether metadata messages travel on it."""
        return self is not StreamKind.BODY

    @property
    def body(self) -> bool:
        """Whether bodies travel on it."""
        return self is not StreamKind.METADATA


@dataclass(frozen=True, slots=True)
class DataUri:
    """A parsed URI of a data stream. It is valid once built."""

    scheme: str
    """The transport, in lower case."""
    host: str = ""
    """The host name or address, without brackets; empty where the scheme has none."""
    port: int | None = None
    """The port, if one is given."""
    path: str = ""
    """The path, decoded: a socket's for ``shm``, a name for ``inproc``."""
    want_data: int | None = None
    """The tag of the request (uint64). A reader needs it; a listener may leave it open."""
    free_data: int | None = None
    """The tag of messages that return leased memory (uint64)."""
    remote_handle: bytes | None = None
    """What the client needs to reach the server's memory."""
    stream: StreamKind = StreamKind.BOTH
    """Which of the streams this address carries."""
    ticket: bytes | None = None
    """What to ask for: the body of the request."""
    body: str | None = None
    """How bodies are to come over ``ucx``: ``packed`` (type 0) or ``remote`` (type 1). None leaves
    it to the two sides."""
    extra: tuple[tuple[str, str], ...] = field(default=())
    """Parameters that this version does not know, kept as they came."""

    def __post_init__(self) -> None:
        if self.body not in (None, "packed", "remote"):
            raise UriError(f"body={self.body!r}: it is 'packed' or 'remote', or left out")
        for name in ("want_data", "free_data"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < _U64:
                raise UriError(f"{name}={value} is not an unsigned 64-bit integer")
        if not _SCHEME.fullmatch(self.scheme):
            raise UriError(f"{self.scheme!r} is no scheme of a URI")
        if "\0" in self.path or self.path[:1] not in ("", "/"):
            raise UriError(f"the path {self.path!r} of a URI has to begin with /")
        if self.port is not None and not 0 <= self.port < 65536:
            raise UriError(f"port {self.port} is not between 0 and 65535")

    @classmethod
    def parse(cls, text: str) -> DataUri:
        """Parse a URI.

        Raises
        ------
        UriError
            If it is malformed. The error names the part, and never the ticket.

        Examples
        --------
        >>> uri = DataUri.parse("tcp://host:8816?want_data=0x10000000001&ticket=flights")
        >>> uri.host, uri.port, uri.ticket
        ('host', 8816, b'flights')
        """
        scheme, separator, rest = text.partition("://")
        if not separator or not scheme:
            raise UriError(
                f"{text.partition('?')[0]!r} is no URI: it has to begin with a scheme, "
                "as tcp://host:port?want_data=… does"
            )
        authority = _AUTHORITY.match(rest)
        if authority and "@" in authority.group():
            raise UriError("a URI of a data stream carries no user name or password")
        if _CONTROL.search(text):
            raise UriError("a URI holds no control characters; write them as %XX")
        if "#" in rest:
            raise UriError("a URI of a data stream has no '#'; in a ticket it is written %23")
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise UriError(f"malformed URI {text.partition('?')[0]!r}: {error}") from None
        values: dict[str, str] = {}
        extra: list[tuple[str, str]] = []
        for pair in parts.query.split("&") if parts.query else ():
            key, _, value = pair.partition("=")
            if key not in _KNOWN:
                extra.extend(parse_qsl(pair, keep_blank_values=True))
            elif key in values:
                raise UriError(f"{key} is given twice")
            else:
                values[key] = value
        return cls(
            scheme=scheme.lower(),
            host=host,
            port=port,
            path=unquote(parts.path, errors="surrogateescape"),
            want_data=_parse_u64("want_data", values.get("want_data")),
            free_data=_parse_u64("free_data", values.get("free_data")),
            remote_handle=_parse_base64(values.get("remote_handle")),
            stream=_parse_stream(values.get("stream")),
            ticket=unquote_to_bytes(values["ticket"]) if "ticket" in values else None,
            body=values.get("body"),
            extra=tuple(extra),
        )

    def require_want_data(self) -> int:
        """Return the value of ``want_data``.

        Raises
        ------
        UriError
            If the URI has none.
        """
        if self.want_data is None:
            raise UriError(
                f"{self.redacted()} has no want_data: a reader's URI needs "
                "?want_data=NUMBER, as the server prints it"
            )
        return self.want_data

    def replace(self, **changes: Any) -> DataUri:
        """Return the same URI with some fields changed."""
        return replace(self, **changes)

    @property
    def remote_tag(self) -> int | None:
        """The tag of requests for bodies that the reader fetches itself; None if there is none.

        Over ``ucx`` it is ``want_data`` exclusive-or ``remote_handle``, whose 8 bytes are a number
        with the least first: a handle that belongs to another ``want_data`` asks for nothing.
        """
        if self.scheme != "ucx" or self.remote_handle is None or self.want_data is None:
            return None
        return self.want_data ^ int.from_bytes(self.remote_handle, "little")

    @property
    def address(self) -> str:
        """Where to connect, without any parameter: ``scheme://host:port/path``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        path = quote(self.path, safe=_PATH_SAFE, errors="surrogateescape")
        return f"{self.scheme}://{host}{port}{path}"

    def __str__(self) -> str:
        return self._text(redact=False)

    def redacted(self) -> str:
        """Return the URI for logs and errors: ticket and remote handle are left out."""
        return self._text(redact=True)

    def _text(self, *, redact: bool) -> str:
        query: list[tuple[str, str]] = []
        if self.want_data is not None:
            query.append(("want_data", f"{self.want_data:#x}"))
        if self.free_data is not None:
            query.append(("free_data", f"{self.free_data:#x}"))
        if self.remote_handle is not None:
            handle = base64.urlsafe_b64encode(self.remote_handle).decode()
            query.append(("remote_handle", handle))
        if self.stream is not StreamKind.BOTH:
            query.append(("stream", self.stream.value))
        if self.body is not None:
            query.append(("body", self.body))
        query.extend((quote(key, safe=""), quote(value, safe="")) for key, value in self.extra)
        if self.ticket is not None:
            query.append(("ticket", quote(self.ticket, safe="")))
        text = "&".join(
            f"{key}=…" if redact and key in _SECRET else f"{key}={value}" for key, value in query
        )
        return f"{self.address}?{text}" if text else self.address


def _parse_u64(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        digits = text[2:] if text[:2].lower() == "0x" else text
        if not digits.isalnum() or not digits.isascii():
            raise ValueError
        value = int(digits, 16 if digits is not text else 10)
    except ValueError:
        raise UriError(f"{name}={text!r} is neither a decimal nor a 0x number") from None
    if value >= _U64:
        raise UriError(f"{name}={text} does not fit in 64 bits")
    return value


def _parse_base64(text: str | None) -> bytes | None:
    if text is None:
        return None
    data = unquote_to_bytes(text).replace(b"+", b"-").replace(b"/", b"_").rstrip(b"=")
    try:
        return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise UriError("remote_handle is not base64") from None


def _parse_stream(text: str | None) -> StreamKind:
    if text is None:
        return StreamKind.BOTH
    if text in ("metadata", "body"):
        return StreamKind(text)
    raise UriError(f"stream={text!r}: it is 'metadata' or 'body', or left out for both")
