"""What gRPC says when a call fails, in the words of `splitarrow.errors`."""

from __future__ import annotations

from typing import Any

import grpc

from ..errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NotAPeerError,
    SplitArrowError,
    StallError,
    remote_error,
)

_UNREACHED = ("failed to connect", "dns resolution", "name resolution", "no address", "handshake")
_BROKEN = (
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
_NO_PEER = ("http2 header with status", "missing :status", "trying to connect an http1.x server")


def failure(
    error: grpc.RpcError,
    where: str,
    *,
    subject: str | None = None,
    secret: str | None = None,
    closed: bool = False,
) -> SplitArrowError:
    """Return the exception for a call that failed.

    Parameters
    ----------
    error : grpc.RpcError
        What gRPC raised.
    where : str
        The address of the server.
    subject : str, optional
        The dataset that the call is about.
    secret : str, optional
        What no message may show.
    closed : bool
        Whether this side ended the call.
    """
    call: Any = error
    code: Any = call.code() if hasattr(call, "code") else grpc.StatusCode.UNKNOWN
    text = str(call.details() or "") if hasattr(call, "details") else ""
    if secret:
        text = text.replace(secret, "…")
    name: str = code.name
    lower = text.lower()
    if closed:
        return ClosedError("the stream was cancelled", stream=subject)
    if name == "DEADLINE_EXCEEDED":
        return StallError(f"{where} did not answer in time", stream=subject)
    if any(word in lower for word in _NO_PEER):
        return NotAPeerError(f"what answers at {where} does not speak Flight", stream=subject)
    if name in ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED"):
        if any(word in lower for word in _UNREACHED):
            return ConnectError(f"cannot connect to {where}: {_reason(text)}", stream=subject)
        if name == "CANCELLED" or any(word in lower for word in _BROKEN):
            return ConnectionLostError(f"the connection to {where} broke: {text}", stream=subject)
    return remote_error(name, text or f"{where} refused: {name}", stream=subject)


def _reason(text: str) -> str:
    """Return the last of the reasons that gRPC strings together."""
    return text.rpartition("last error: ")[2].removeprefix("UNKNOWN: ") or text
