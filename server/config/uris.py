"""The URIs that a server listens on for readers."""

from __future__ import annotations

from ...errors import UriError
from ...protocol.tags import FREE_DATA, KEEP_ALIVE, TRACE, WANT_DATA, is_request_tag
from ...protocol.uri import DataUri
from ...transport.registry import find_transport

_DEFAULT_TAGS = (
    ("want_data", WANT_DATA),
    ("free_data", FREE_DATA),
    ("keep_alive", KEEP_ALIVE),
    ("trace", TRACE),
)


def listener_uri(text: str, *, traced: bool = False) -> DataUri:
    """Return the URI of a listener for readers, with its tags filled in.

    Parameters
    ----------
    text : str
        The URI in the settings.
    traced : bool
        Whether the server records traces. Only then does the URI invite readers to send theirs.

    Raises
    ------
    UriError
        If the URI is malformed, has an unknown scheme or a ticket, or has a tag that could be a
        body's tag.
    """
    uri = DataUri.parse(text)
    is_used = {"free_data": find_transport(uri).traits.leases_memory, "trace": traced}
    if uri.ticket is not None:
        raise UriError(f"{uri.redacted()}: the URI of a listener must not have a ticket")
    tags: dict[str, int] = {}
    for name, default in _DEFAULT_TAGS:
        value = getattr(uri, name)
        if value is not None and not is_request_tag(value):
            raise UriError(f"{name}={value:#x}: set at least one of its bits 32-55")
        if value is None and is_used.get(name, True):
            tags[name] = default
    return uri.replace(**tags)
