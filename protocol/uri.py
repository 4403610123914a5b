"""URIs of data streams ("URI Specification").

``scheme://authority-or-path?want_data=U64&free_data=U64&remote_handle=BASE64&stream=…&ticket=…``
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, unquote_to_bytes, urlsplit

from ..errors import UriError

CONTROL_PORT, TCP_PORT, UCX_PORT, HTTP_PORT = 8815, 8816, 8817, 9816
"""The default ports: of the control plane, of TCP with and without TLS, of UCX and of HTTP."""
_TAGS = ("want_data", "free_data", "keep_alive", "trace")
_KNOWN = (*_TAGS, "remote_handle", "stream", "ticket")
_SECRET = ("ticket", "remote_handle")
_U64 = 1 << 64
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_AUTHORITY = re.compile(r"[^/?#]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_PATH_SAFE = "/:@!$&'()*+,;="


class Streams(Enum):
    """The streams that a connection carries."""

    BOTH = "both"
    METADATA = "metadata"
    BODY = "body"

    carries_metadata: bool
    """Whether the connection carries the metadata stream."""
    carries_bodies: bool
    """Whether the connection carries the body stream."""

    def __init__(self, value: str) -> None:
        self.carries_metadata = value != "body"
        self.carries_bodies = value != "metadata"


@dataclass(frozen=True, slots=True)
class DataUri:
    """A parsed URI of a data stream. It is valid once built.

    Raises `UriError` if a component has an invalid value.
    """

    scheme: str
    """The scheme, in lower case. It selects the transport."""
    host: str = ""
    """The host name or address, without brackets. Empty if the URI has none."""
    port: int | None = None
    """The port."""
    path: str = ""
    """The decoded path: the path of a socket for ``shm``."""
    want_data: int | None = None
    """The tag of requests (uint64). A reader's URI must have it."""
    free_data: int | None = None
    """The tag of messages that free leased memory (uint64)."""
    remote_handle: bytes | None = None
    """The data that the client needs to access the server's memory."""
    stream: Streams = Streams.BOTH
    """The streams that this address carries."""
    ticket: bytes | None = None
    """The payload of the request."""
    keep_alive: int | None = None
    """The tag of messages that request keep-alives (uint64)."""
    trace: int | None = None
    """The tag of messages with the context of a trace (uint64)."""
    extra: tuple[tuple[str, str], ...] = ()
    """Other parameters, in order. Some belong to one scheme; unknown ones are ignored."""

    def __post_init__(self) -> None:
        for name in _TAGS:
            value = getattr(self, name)
            if value is not None and not 0 <= value < _U64:
                raise UriError(f"{name}={value} is not an unsigned 64-bit integer")
        if not _SCHEME.fullmatch(self.scheme):
            raise UriError(
                f"invalid scheme {self.scheme!r}; expected a lower-case scheme such as tcp"
            )
        if "\0" in self.path or self.path[:1] not in ("", "/"):
            raise UriError(f"invalid path {self.path!r}; the path of a URI begins with /")
        if self.port is not None and not 0 <= self.port < 65536:
            raise UriError(f"port {self.port} is not between 0 and 65535")

    @classmethod
    def parse(cls, text: str) -> DataUri:
        """Parse a URI.

        Raises `UriError` if the URI is malformed. The error names the invalid part and never the
        ticket.

        Examples
        --------
        >>> uri = DataUri.parse("tcp://host:8816?want_data=0x10000000001&ticket=flights")
        >>> uri.host, uri.port, uri.ticket
        ('host', 8816, b'flights')
        """
        return _parse(text)

    def require_want_data(self) -> int:
        """Return the value of ``want_data``; raise `UriError` if the URI has none."""
        if self.want_data is None:
            raise UriError(
                f"{self.redacted()} has no want_data; use the complete URI that the server reports"
            )
        return self.want_data

    def parameter(self, name: str) -> str | None:
        """Return a parameter in `extra`, or None; raise `UriError` if it is given twice."""
        values = [value for key, value in self.extra if key == name]
        if len(values) > 1:
            raise UriError(f"{name} is given twice")
        return values[0] if values else None

    def replace(self, **changes: Any) -> DataUri:
        """Return the same URI with some fields changed."""
        return replace(self, **changes)

    @property
    def address(self) -> str:
        """The URI without parameters: ``scheme://host:port/path``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        path = quote(self.path, safe=_PATH_SAFE, errors="surrogateescape")
        return f"{self.scheme}://{host}{port}{path}"

    def __str__(self) -> str:
        return self._format(redact=False)

    def redacted(self) -> str:
        """Return the URI for logs and errors, without its ticket and remote handle."""
        return self._format(redact=True)

    def _format(self, *, redact: bool) -> str:
        tags = ((name, getattr(self, name)) for name in _TAGS)
        query = [(name, f"{tag:#x}") for name, tag in tags if tag is not None]
        if self.remote_handle is not None:
            handle = base64.urlsafe_b64encode(self.remote_handle).decode()
            query.append(("remote_handle", handle))
        if self.stream is not Streams.BOTH:
            query.append(("stream", self.stream.value))
        query.extend((quote(key, safe=""), quote(value, safe="")) for key, value in self.extra)
        if self.ticket is not None:
            query.append(("ticket", quote(self.ticket, safe="")))
        text = "&".join(
            f"{key}=…" if redact and key in _SECRET else f"{key}={value}" for key, value in query
        )
        return f"{self.address}?{text}" if text else self.address


@lru_cache(maxsize=32)
def _parse(text: str) -> DataUri:
    """Parse a URI. Programs open the same few again and again."""
    scheme = _check_scheme(text)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UriError(f"malformed URI {text.partition('?')[0]!r}: {error}") from None
    known, extra = _parse_query(parts.query)
    return DataUri(
        scheme=scheme.lower(),
        host=host,
        port=port,
        path=unquote(parts.path, errors="surrogateescape"),
        **{name: _parse_u64(name, known.get(name)) for name in _TAGS},
        remote_handle=_parse_base64(known.get("remote_handle")),
        stream=_parse_streams(known.get("stream")),
        ticket=unquote_to_bytes(known["ticket"]) if "ticket" in known else None,
        extra=tuple(extra),
    )


def _check_scheme(text: str) -> str:
    """Return the scheme of a URI after checking for components that data streams do not have."""
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme:
        raise UriError(
            f"{text.partition('?')[0]!r} is not a URI; expected grpc://host:port and a name, "
            "or tcp://host:port/name"
        )
    authority = _AUTHORITY.match(rest)
    if authority and "@" in authority.group():
        raise UriError("the URI has a user name; the URI of a data stream has none")
    if _CONTROL.search(text):
        raise UriError("the URI has control characters; write them as %XX")
    if "#" in rest:
        raise UriError("the URI has a fragment; write a '#' in a ticket as %23")
    return scheme


def _parse_query(query: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the known parameters, still encoded, and the other ones."""
    known: dict[str, str] = {}
    extra: list[tuple[str, str]] = []
    for pair in query.split("&") if query else ():
        key, _, value = pair.partition("=")
        if key not in _KNOWN:
            extra.extend(parse_qsl(pair, keep_blank_values=True))
        elif key in known:
            raise UriError(f"{key} is given twice")
        else:
            known[key] = value
    return known, extra


def _parse_u64(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        digits = text[2:] if text[:2].lower() == "0x" else text
        if not digits.isalnum() or not digits.isascii():
            raise ValueError
        value = int(digits, 16 if digits is not text else 10)
    except ValueError:
        raise UriError(f"{name}={text!r} is not a decimal or 0x number") from None
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


def _parse_streams(text: str | None) -> Streams:
    if text is None:
        return Streams.BOTH
    if text in ("metadata", "body"):
        return Streams(text)
    raise UriError(f"stream={text!r} is invalid; it must be 'metadata' or 'body'")
