"""The options of a connection over UCX, from the parameters of its URI."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UriError
from ...protocol.uri import DataUri

_MAX_BUSY_POLL = 1_000_000
"""The longest time to busy-poll, in microseconds."""


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
        """Return the options of a URI.

        Raises
        ------
        UriError
            If a value is invalid.
        """
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
