"""Every exception that splitarrow raises, in one tree.

::

    SplitArrowError
    ├── ProtocolError             the peer sent something that the protocol forbids
    │   ├── LimitError            ... or something larger than the limits allow
    │   └── InvalidDataError      ... or Arrow data that does not validate
    ├── RemoteError               the server said why it cannot serve (``code`` tells)
    │   ├── NotFoundError         NOT_FOUND: no such dataset or column
    │   ├── InvalidRequestError   INVALID_ARGUMENT: the ticket cannot be understood
    │   ├── DeniedError           UNAUTHENTICATED, PERMISSION_DENIED
    │   ├── ExhaustedError        RESOURCE_EXHAUSTED: a limit of the server is reached
    │   └── UnavailableError      UNAVAILABLE: draining, or not ready
    ├── TransportError            the connection failed
    │   ├── ConnectError          it could not be made
    │   ├── NotAPeerError         what answers does not speak splitarrow
    │   ├── ConnectionLostError   it ended before the stream did
    │   └── StallError            nothing arrived for too long
    ├── DatasetError              a source of data cannot be read
    ├── ConfigError               the server's configuration is wrong
    ├── ClosedError               the stream or server was closed by its own side
    └── UsageError                a call or an argument is wrong (also a ValueError)
        ├── UriError              the URI is malformed
        └── MissingExtraError     an optional package is not installed

Every error pickles, so that it can cross process boundaries, and carries what is known of
its place: ``stream``, ``sequence``, ``tag`` and ``state``.
"""

from __future__ import annotations

import copyreg
from typing import Any

__all__ = [
    "ClosedError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "DatasetError",
    "DeniedError",
    "ExhaustedError",
    "InvalidDataError",
    "InvalidRequestError",
    "LimitError",
    "MissingExtraError",
    "NotAPeerError",
    "NotFoundError",
    "ProtocolError",
    "RemoteError",
    "SplitArrowError",
    "StallError",
    "TransportError",
    "UnavailableError",
    "UriError",
    "UsageError",
    "remote_error",
]


class SplitArrowError(Exception):
    """The root of all errors of splitarrow.

    Attributes
    ----------
    message : str
        What went wrong, without the place.
    stream : str or None
        The stream or dataset concerned.
    sequence : int or None
        The sequence number of the message concerned (uint32).
    tag : int or None
        The tag of the message concerned (uint64).
    state : str or None
        The state of the connection or stream when it happened.
    """

    def __init__(
        self,
        message: str,
        *,
        stream: str | None = None,
        sequence: int | None = None,
        tag: int | None = None,
        state: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stream = stream
        self.sequence = sequence
        self.tag = tag
        self.state = state

    def __str__(self) -> str:
        place = [
            f"{word} {value}"
            for word, value in (
                ("stream", self.stream and repr(self.stream)),
                ("sequence", self.sequence),
                ("tag", None if self.tag is None else f"{self.tag:#018x}"),
                ("state", self.state),
            )
            if value is not None
        ]
        return f"{self.message} ({', '.join(place)})" if place else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ProtocolError(SplitArrowError):
    """The peer sent something that the protocol forbids."""


class LimitError(ProtocolError):
    """The peer sent, or announced, more than the limits allow."""


class InvalidDataError(ProtocolError):
    """The Arrow data of a message cannot be decoded or does not validate."""


class RemoteError(SplitArrowError):
    """The server reported why it cannot serve the stream.

    Attributes
    ----------
    code : str
        A gRPC status name, such as ``"NOT_FOUND"``.
    """

    code: str = "UNKNOWN"

    def __str__(self) -> str:
        return self.message  # the server's words name the dataset


class NotFoundError(RemoteError):
    """There is no dataset, or no column, of that name."""

    code = "NOT_FOUND"


class InvalidRequestError(RemoteError):
    """The server cannot understand the ticket."""

    code = "INVALID_ARGUMENT"


class DeniedError(RemoteError):
    """The server refuses this client."""

    code = "PERMISSION_DENIED"


class ExhaustedError(RemoteError):
    """A limit of the server is reached."""

    code = "RESOURCE_EXHAUSTED"


class UnavailableError(RemoteError):
    """The server is draining or not ready; another, or a later, try may succeed."""

    code = "UNAVAILABLE"


class TransportError(SplitArrowError):
    """The connection failed."""


class ConnectError(TransportError):
    """The connection could not be made."""


class NotAPeerError(TransportError):
    """What answers at the address does not speak the protocol of the URI's scheme."""


class ConnectionLostError(TransportError):
    """The connection ended before the stream did."""


class StallError(TransportError):
    """Nothing arrived from the peer for longer than the stall timeout."""


class DatasetError(SplitArrowError):
    """A source of data is missing, unreadable, truncated or changed while it was read."""


class ConfigError(SplitArrowError):
    """The server cannot start with the configuration given."""


class ClosedError(SplitArrowError):
    """The stream, or the server, was closed by its own side."""


class UsageError(SplitArrowError, ValueError):
    """A call or an argument is wrong."""


class UriError(UsageError):
    """A URI is malformed, or lacks what its use requires."""


class MissingExtraError(UsageError):
    """A package of an optional extra is not installed."""


_BY_CODE: dict[str, type[RemoteError]] = {
    "NOT_FOUND": NotFoundError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "UNAUTHENTICATED": DeniedError,
    "PERMISSION_DENIED": DeniedError,
    "RESOURCE_EXHAUSTED": ExhaustedError,
    "UNAVAILABLE": UnavailableError,
}


def remote_error(code: str, message: str, *, stream: str | None = None) -> RemoteError:
    """Build the exception for an error that a server reported.

    Parameters
    ----------
    code : str
        A gRPC status name.
    message : str
        The server's explanation.
    stream : str, optional
        The stream that failed.

    Returns
    -------
    RemoteError
        Of the subclass that stands for `code`, with ``code`` set.

    Examples
    --------
    >>> remote_error("NOT_FOUND", "no dataset 'flihgts'")
    NotFoundError("no dataset 'flihgts'")
    """
    error = _BY_CODE.get(code, RemoteError)(message, stream=stream)
    error.code = code
    return error
