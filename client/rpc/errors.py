"""Errors of calls, as exceptions of `splitarrow.errors`.

gRPC reports the cause of a failed connection as text only. This module reads that text, or asks the
address what listens there, and adds a hint. It does not import gRPC.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from ...protocol.uri import DataUri

if TYPE_CHECKING:
    import grpc


class _Failure(NamedTuple):
    """A failure to connect."""

    pattern: str
    """Matches gRPC's text in any case. A group ``reason`` is part of the cause."""
    cause: str
    hint: str


NO_RESPONSE = "the server does not respond"
"""The cause of a failure to connect that took as long as an attempt may take."""

# The first one that matches counts.
_FAILURES = (
    _Failure(
        r"errors resolving|dns resolution|name resolution|lookup failed|domain name not found",
        "the host name cannot be resolved",
        "check the name",
    ),
    _Failure(
        r"connection refused",
        "the connection was refused",
        "check that the server runs, and the port",
    ),
    _Failure(
        r"(?P<reason>no route to host|network is unreachable|host is down)",
        "{reason}",
        "check the address and the network",
    ),
    _Failure(
        r"hostname verification check failed|peer name .* is not in peer certificate",
        "the certificate of the server is for another name",
        "set server_name or SPLITARROW_TLS_SERVER_NAME",
    ),
    _Failure(
        r"certificate_verify_failed: (?P<reason>certificate (has expired|is not yet valid))",
        "the certificate of the server is not trusted: {reason}",
        "renew it, and check the clocks",
    ),
    _Failure(
        r"certificate_verify_failed(: (?P<reason>[^:;]+))?",
        "the certificate of the server is not trusted: {reason}",
        "name its authority with ca_file or SPLITARROW_TLS_CA",
    ),
    _Failure(
        r"wrong_version_number|http_request",
        "the server does not speak TLS",
        "check the port, or use grpc:// instead of grpc+tls://",
    ),
    _Failure(
        r"handshake read failed|tls handshake failed",
        "the TLS handshake failed",
        "check that the port is that of a control plane with TLS",
    ),
    _Failure(
        r"timed out|before receiving settings",
        NO_RESPONSE,
        "check that the port is that of a control plane, and firewalls",
    ),
)
_CLOSED = re.compile(
    "socket closed|connection reset|endpoint closing|end of tcp stream|broken pipe|recvmsg|sendmsg"
    "|unwrap failed",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"^(?:[A-Z_]+: )*(?:ipv[46]|unix|dns):\S+: ")


def explain_connect_failure(details: str, *, encrypted: bool) -> str:
    """Return the cause of a failure to connect and a hint, in one line.

    Examples
    --------
    >>> details = "last error: UNKNOWN: ipv4:10.0.0.1:8815: Failed to connect: Connection refused"
    >>> explain_connect_failure(details, encrypted=False)
    'the connection was refused; check that the server runs, and the port'
    """
    # gRPC joins the failures of all addresses that it tried.
    reason = details.rpartition("last error: ")[2] or details
    for failure in _FAILURES:
        if match := re.search(failure.pattern, reason, re.IGNORECASE):
            found = match.groupdict().get("reason") or "it cannot be verified"
            return f"{failure.cause.format(reason=found.strip().lower())}; {failure.hint}"
    if _CLOSED.search(reason):
        if encrypted:
            hint = "it may require a client certificate (cert_file, SPLITARROW_TLS_CERT)"
        else:
            hint = "it may require TLS (grpc+tls://)"
        return f"the server closed the connection; {hint}, or the port is not a control plane's"
    return remove_address(reason)


def remove_address(details: str) -> str:
    """Return gRPC's text in one line, without the address that it begins with."""
    return " ".join(_ADDRESS.sub("", details).split())


_SECONDS = 1.0
"""How long each attempt may take, in seconds."""


def explain_listener(uri: DataUri) -> str | None:
    """Return what listens at an address, and which URI reaches it; None if that is unknown.

    An expired certificate is named as well.
    """
    try:
        if _speaks_splitarrow(uri):
            address = uri.replace(scheme="tcp").address
            return (
                f"a data listener is at this port; use {address}/NAME, or the port of the control "
                "plane, which is 8815 by default"
            )
        if uri.scheme == "grpc+tls":
            from ...transport.tls_options import explain_expiry

            return explain_expiry(uri.host, uri.port or 0, _SECONDS)
        if _speaks_tls(uri):
            return f"the server requires TLS; use {uri.replace(scheme='grpc+tls').address}"
    except OSError:
        pass  # nothing listens
    return None


def _speaks_splitarrow(uri: DataUri) -> bool:
    from ...transport.framing import PREFACE

    with _connect(uri) as sock, contextlib.suppress(OSError):
        sock.sendall(PREFACE)
        return sock.recv(len(PREFACE), socket.MSG_WAITALL) == PREFACE
    return False


def _speaks_tls(uri: DataUri) -> bool:
    import ssl  # takes time, and is rarely needed

    # This finds out only whether the peer speaks TLS. Nothing is sent to it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _connect(uri) as sock, contextlib.suppress(OSError):
        try:
            context.wrap_socket(sock, server_hostname=uri.host).close()
        except ssl.SSLError as error:
            # An alert is an answer in TLS: the server may require a certificate of the client.
            return "ALERT" in (error.reason or "")
        return True
    return False


def _connect(uri: DataUri) -> socket.socket:
    return socket.create_connection((uri.host, uri.port or 0), _SECONDS)


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
    "too many pings",
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
    secrets: Sequence[str] = (),
    closed: bool = False,
    phase: str = "",
    seconds: float = 0.0,
) -> SplitArrowError:
    """Return the splitarrow exception for a failed call, without the secrets in its message.

    If the call took long, the message names the phase of the read and the seconds.
    """
    call: Any = error
    status: str = call.code().name if hasattr(call, "code") else "UNKNOWN"
    details = str(call.details() or "") if hasattr(call, "details") else ""
    spent = f" ({phase}, {seconds:.1f} s)" if phase and seconds >= 1 else ""
    for secret in secrets:
        details = details.replace(secret, "…")
    if closed:
        return ClosedError("the stream was cancelled", stream=dataset)
    if status == "DEADLINE_EXCEEDED":
        return no_response_error(address, spent, dataset)
    if _contains(details, _NOT_FLIGHT):
        hint = "check that the port is that of a control plane"
        return NotAPeerError(
            f"the server at {address} does not speak Flight; {hint}", stream=dataset
        )
    if status in ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED"):
        if _contains(details, _CONNECT_FAILURES):
            encrypted = address.startswith("grpc+tls:")
            reason = explain_connect_failure(details, encrypted=encrypted)
            return ConnectError(f"cannot connect to {address}{spent}: {reason}", stream=dataset)
        if status == "CANCELLED" or _contains(details, _CONNECTION_LOSSES):
            reason = remove_address(details)
            return ConnectionLostError(
                f"the connection to {address} was lost{spent}: {reason}", stream=dataset
            )
    if status == "UNAUTHENTICATED" and "token" in details:
        details = f"{details}; {_hint_token(details, has_sent=bool(secrets))}"
    return remote_error(status, details or f"{address} failed with {status}", stream=dataset)


def _hint_token(details: str, *, has_sent: bool) -> str:
    if has_sent and "expired" in details:
        return "to renew it: token_file=, or for commands --token-file"
    action = "check the token" if has_sent else "pass a token"
    return f"{action}: token=, or for commands SPLITARROW_TOKEN"


def no_response_error(address: str, spent: str, dataset: str | None) -> StallError:
    """Return the error of a call that has reached its time limit."""
    hint = "it may be overloaded or unreachable; allow more time with timeout"
    return StallError(f"{address} did not respond in time{spent}: {hint}", stream=dataset)


def _contains(details: str, phrases: tuple[str, ...]) -> bool:
    lower = details.lower()
    return any(phrase in lower for phrase in phrases)


def restate_error(error: SplitArrowError, message: str, dataset: str | None) -> SplitArrowError:
    """Return an error of the same type, and with the same code, that has another message."""
    if isinstance(error, RemoteError):
        return remote_error(error.code, message, stream=dataset)
    return type(error)(message, stream=dataset)
