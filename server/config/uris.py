"""The URIs that a server listens on for readers."""

from __future__ import annotations

from ...errors import UriError
from ...protocol.tags import FREE_DATA, KEEP_ALIVE, WANT_DATA, is_request_tag
from ...protocol.uri import DataUri
from ...transport.registry import find_transport

_DEFAULT_TAGS = (
    ("want_data", WANT_DATA),
    ("free_data", FREE_DATA),
    ("keep_alive", KEEP_ALIVE),
)


def listener_uri(text: str) -> DataUri:
    """Return the URI of a listener for readers, with its tags filled in.

    Raises
    ------
    UriError
        If the URI is malformed, has an unknown scheme or a ticket, or has a tag that could be a
        body's tag.
    """
    uri = DataUri.parse(text)
    leases_memory = find_transport(uri).traits.leases_memory
    if uri.ticket is not None:
        raise UriError(f"{uri.redacted()}: the URI of a listener must not have a ticket")
    tags: dict[str, int] = {}
    for name, default in _DEFAULT_TAGS:
        value = getattr(uri, name)
        if value is not None and not is_request_tag(value):
            raise UriError(f"{name}={value:#x}: set at least one of its bits 32-55")
        if value is None and (name != "free_data" or leases_memory):
            tags[name] = default
    return uri.replace(**tags)
