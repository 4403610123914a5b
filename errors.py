"""Every exception that splitarrow raises, in one tree.

::

    SplitArrowError
    ├── ProtocolError             the peer sent something that the protocol forbids
    │   ├── LimitError            ... or something larger than the limits allow
    │   └── InvalidDataError      ... or Arrow data that does not validate
    ├── RemoteError               the server reported an error; see ``code``
    │   ├── NotFoundError         NOT_FOUND: the dataset or column does not exist
    │   ├── InvalidRequestError   INVALID_ARGUMENT: the ticket is malformed or invalid
    │   ├── DeniedError           UNAUTHENTICATED, PERMISSION_DENIED
    │   ├── ExhaustedError        RESOURCE_EXHAUSTED: a limit of the server is reached
    │   └── UnavailableError      UNAVAILABLE: draining, or not ready
    ├── TransportError            the connection failed
    │   ├── ConnectError          it could not be established
    │   ├── NotAPeerError         the peer does not use this protocol
    │   ├── ConnectionLostError   it ended before the stream ended
    │   └── StallError            the peer was silent for too long
    ├── DatasetError              a source of data cannot be read
    ├── ConfigError               the configuration of the server is invalid
    ├── ClosedError               this process closed the stream or server
    └── UsageError                a call or an argument is wrong (also a ValueError)
        ├── UriError              the URI is malformed
        └── MissingExtraError     an optional package is not installed

Every error can be pickled, so that it can cross process boundaries. It carries its position, as far
as known: ``stream``, ``sequence``, ``tag`` and ``state``.
"""

from __future__ import annotations

import copyreg
import errno
import os
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
    "InvalidValueWarning",
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
    "exhausted_error",
    "remote_error",
    "status_name",
]


class SplitArrowError(Exception):
    """The root of all errors of splitarrow.

    Attributes
    ----------
    message : str
        The problem, without the position.
    stream : str or None
        The stream or dataset.
    sequence : int or None
        The sequence number of the message (uint32).
    tag : int or None
        The tag of the message (uint64).
    state : str or None
        The state of the connection or stream at the time of the error.
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
    """The peer sent or declared more than the limits allow."""


class InvalidDataError(ProtocolError):
    """The Arrow data of a message cannot be decoded or does not validate."""


class RemoteError(SplitArrowError):
    """The server reported an error.

    Attributes
    ----------
    code : str
        A gRPC status name, such as ``"NOT_FOUND"``.
    """

    code: str = "UNKNOWN"

    def __str__(self) -> str:
        return self.message  # the server's message names the dataset


class NotFoundError(RemoteError):
    """The dataset or column does not exist."""

    code = "NOT_FOUND"


class InvalidRequestError(RemoteError):
    """The ticket or another argument is malformed or invalid."""

    code = "INVALID_ARGUMENT"


class DeniedError(RemoteError):
    """The server refuses this client."""

    code = "PERMISSION_DENIED"


class ExhaustedError(RemoteError):
    """A limit of the server is reached."""

    code = "RESOURCE_EXHAUSTED"


class UnavailableError(RemoteError):
    """The server is draining or not ready. Try another server, or try again later."""

    code = "UNAVAILABLE"


class TransportError(SplitArrowError):
    """The connection failed."""


class ConnectError(TransportError):
    """The connection could not be established."""


class NotAPeerError(TransportError):
    """The peer does not use the protocol of the URI's scheme."""


class ConnectionLostError(TransportError):
    """The connection ended before the stream ended."""


class StallError(TransportError):
    """The peer was silent for longer than the stall timeout."""


class DatasetError(SplitArrowError):
    """A source of data is missing, unreadable or truncated, or changed during a read."""


class ConfigError(SplitArrowError):
    """The configuration of the server is invalid."""


class ClosedError(SplitArrowError):
    """The stream or server was closed by this process."""


class UsageError(SplitArrowError, ValueError):
    """A call or an argument is wrong."""


class UriError(UsageError):
    """A URI is malformed, or lacks a required part."""


class MissingExtraError(UsageError):
    """A package of an optional extra is not installed."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, for the text of a `MissingExtraError`.

    >>> install_hint("vortex")
    "pip install 'splitarrow[vortex]' (in a checkout: pip install '.[vortex]')"
    """
    return f"pip install 'splitarrow[{extra}]' (in a checkout: pip install '.[{extra}]')"


_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_BY_CODE: dict[str, type[RemoteError]] = {
    "NOT_FOUND": NotFoundError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "UNAUTHENTICATED": DeniedError,
    "PERMISSION_DENIED": DeniedError,
    "RESOURCE_EXHAUSTED": ExhaustedError,
    "UNAVAILABLE": UnavailableError,
}


class InvalidValueWarning(UserWarning):
    """Received values are outside of the ranges of their types, but safe to use."""


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
        An instance of the subclass for `code`, with ``code`` set.

    Examples
    --------
    >>> remote_error("NOT_FOUND", "no dataset 'flihgts'")
    NotFoundError("no dataset 'flihgts'")
    """
    error = _BY_CODE.get(code, RemoteError)(message, stream=stream)
    error.code = code
    return error


def exhausted_error(error: BaseException) -> ExhaustedError | None:
    """Return the error for an `OSError` that means that the system is out of resources.

    Parameters
    ----------
    error : BaseException
        Any error.

    Returns
    -------
    ExhaustedError or None
        None if the error means anything else.
    """
    if not isinstance(error, OSError) or error.errno not in _OUT_OF_RESOURCES:
        return None
    reason = (error.strerror or os.strerror(error.errno)).lower()
    return ExhaustedError(f"the server is out of resources ({reason}); retry later")


def status_name(error: SplitArrowError) -> str:
    """Return the gRPC status name for reporting an error to a reader."""
    if isinstance(error, RemoteError):
        return error.code
    if isinstance(error, LimitError):
        return "RESOURCE_EXHAUSTED"
    if isinstance(error, DatasetError):
        return "DATA_LOSS"
    return "INTERNAL"
