"""URIs of the scheme ``ucx``: the options of a connection, and the tags of its data requests."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import UriError
from ...protocol.tags import BodyType
from ...protocol.uri import DataUri
from ..base import list_request_tags

_MAX_BUSY_POLL = 1_000_000
"""The longest time to busy-poll, in microseconds."""
HANDLE_BYTES = 8
"""The size of a ``remote_handle``, in bytes."""


@dataclass(frozen=True, slots=True)
class UcxOptions:
    """Parameters that only ``ucx`` URIs have."""

    body: str | None = None
    """How bodies travel: ``packed`` (type 0) or ``remote`` (type 1). None leaves the choice to
    both sides."""
    busy_poll: float = 0.0
    """The time to look for work before waiting for it, in seconds."""

    @classmethod
    def from_uri(cls, uri: DataUri) -> UcxOptions:
        """Return the options of a URI; raise `UriError` if a value is invalid."""
        body = uri.parameter("body")
        if body not in (None, "packed", "remote"):
            raise UriError(f"body={body!r} is invalid; it must be 'packed' or 'remote'")
        text = uri.parameter("busy_poll")
        if text is None:
            return cls(body)
        if not text.isascii() or not text.isdigit() or int(text) > _MAX_BUSY_POLL:
            raise UriError(
                f"busy_poll={text!r} is invalid; it must be a number of microseconds, "
                f"at most {_MAX_BUSY_POLL}"
            )
        return cls(body, int(text) / 1e6)


class RemoteTags(NamedTuple):
    """The tags by which a reader exchanges remote bodies with a server that offers them."""

    announcement: int
    """The tag of region announcements, which is ``want_data``."""
    request: int
    """The tag of data requests for remote bodies."""
    free_data: int
    """The tag of freed offsets."""


def find_remote_request_tag(uri: DataUri) -> int | None:
    """Return the tag of data requests for remote bodies, or None if the URI does not offer them.

    Raises `UriError` if the ``remote_handle`` does not have 8 bytes.
    """
    handle = uri.remote_handle
    if handle is None or uri.want_data is None:
        return None
    check_handle(uri)
    return uri.want_data ^ int.from_bytes(handle, "little")


def find_request_tags(uri: DataUri) -> dict[int, BodyType]:
    """Return the tags of a listener's data requests; see `Listener.request_tags`."""
    tags = list_request_tags(uri)
    remote = find_remote_request_tag(uri)
    if remote is not None:
        tags[remote] = BodyType.OFFSETS
    return tags


def create_handle(want_data: int) -> bytes:
    """Return a random handle. Its tag has bits set that no tag of a body has."""
    tag = int.from_bytes(secrets.token_bytes(6) + b"\xff\xff", "little")
    return (tag ^ want_data).to_bytes(HANDLE_BYTES, "little")


def check_handle(uri: DataUri) -> None:
    """Raise `UriError` if the ``remote_handle`` of a URI does not have 8 bytes."""
    handle = uri.remote_handle
    if handle is not None and len(handle) != HANDLE_BYTES:
        raise UriError(
            f"{uri.redacted()}: remote_handle has {len(handle)} bytes; that of a ucx address has "
            f"{HANDLE_BYTES} bytes"
        )
