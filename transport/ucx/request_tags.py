"""The tags of data requests over UCX. This module alone knows the rule that derives them.

A reader requests packed bodies by sending its ticket with the tag ``want_data``. It requests
remote bodies with the tag ``want_data XOR remote_handle``. The handle is 8 bytes, the least
significant first. A handle that belongs to another ``want_data`` therefore requests nothing.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from ...errors import UriError
from ...protocol.tags import BodyType
from ...protocol.uri import DataUri
from ..base import list_request_tags

HANDLE_BYTES = 8
"""The size of a ``remote_handle``, in bytes."""


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

    Raises
    ------
    UriError
        If the ``remote_handle`` does not have 8 bytes.
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
    """Return a random ``remote_handle`` for a listener.

    The tag that it yields has bits set that no tag of a body has.
    """
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
