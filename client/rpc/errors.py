"""Errors of calls, as exceptions of `splitarrow.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NotAPeerError,
    RemoteError,
    SplitArrowError,
    StallError,
    remote_error,
)
from .connect_failures import explain_connect_failure, remove_address

if TYPE_CHECKING:
    import grpc

# gRPC reports a status only. The text of its details tells the causes apart.
_CONNECT_FAILURES = (
    "failed to connect",
    "errors resolving",
    "dns resolution",
    "name resolution",
    "no address",
    "handshake",
)
_CONNECTION_LOSSES = (
    "socket closed",
    "connection reset",
    "connection timed out",
    "broken pipe",
    "goaway",
    "rst_stream",
    "keepalive",
    "recvmsg",
    "sendmsg",
    "transport closed",
    "connection closed",
    "end of tcp stream",
    "stream removed",
    "server shutdown",
    "cancelling all calls",
)
_NOT_FLIGHT = ("http2 header with status", "missing :status", "trying to connect an http1.x server")


def convert_grpc_error(
    error: grpc.RpcError,
    address: str,
    *,
    dataset: str | None = None,
    secret: str | None = None,
    closed: bool = False,
) -> SplitArrowError:
    """Return the splitarrow exception for a failed call.

    Parameters
    ----------
    error : grpc.RpcError
        The error that gRPC raised.
    address : str
        The address of the server.
    dataset : str, optional
        The dataset that the call is about.
    secret : str, optional
        A text that the message must not contain, such as the token.
    closed : bool
        Whether this side ended the call.
    """
    call: Any = error
    status: str = call.code().name if hasattr(call, "code") else "UNKNOWN"
    details = str(call.details() or "") if hasattr(call, "details") else ""
    if secret:
        details = details.replace(secret, "…")
    if closed:
        return ClosedError("the stream was cancelled", stream=dataset)
    if status == "DEADLINE_EXCEEDED":
        hint = "it may be overloaded; allow more time with timeout"
        return StallError(f"{address} did not respond in time: {hint}", stream=dataset)
    if _contains(details, _NOT_FLIGHT):
        hint = "check that the port is that of a control plane"
        return NotAPeerError(
            f"the server at {address} does not speak Flight; {hint}", stream=dataset
        )
    if status in ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED"):
        if _contains(details, _CONNECT_FAILURES):
            encrypted = address.startswith("grpc+tls:")
            reason = explain_connect_failure(details, encrypted=encrypted)
            return ConnectError(f"cannot connect to {address}: {reason}", stream=dataset)
        if status == "CANCELLED" or _contains(details, _CONNECTION_LOSSES):
            reason = remove_address(details)
            return ConnectionLostError(
                f"the connection to {address} was lost: {reason}", stream=dataset
            )
    if status == "UNAUTHENTICATED" and "token" in details:
        hint = "pass a token" if secret is None else "check the token"
        details = f"{details}; {hint}: token=, or for commands SPLITARROW_TOKEN"
    return remote_error(status, details or f"{address} failed with {status}", stream=dataset)


def _contains(details: str, phrases: tuple[str, ...]) -> bool:
    lower = details.lower()
    return any(phrase in lower for phrase in phrases)


def restate_error(error: SplitArrowError, message: str, dataset: str | None) -> SplitArrowError:
    """Return an error of the same type, and with the same code, that has another message."""
    if isinstance(error, RemoteError):
        return remote_error(error.code, message, stream=dataset)
    return type(error)(message, stream=dataset)
