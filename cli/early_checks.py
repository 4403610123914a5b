"""Connecting before the modules that read data are imported, which takes most of a second.

A command then fails at once where nothing listens.
"""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager, nullcontext

from ..errors import ConnectError, UriError
from ..protocol.uri import DataUri, Streams

_KNOCK_SECONDS = 1.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables that let gRPC connect to another address."""


def connect_first(
    uris: list[str], ticket: str | None, timeout: float
) -> AbstractContextManager[None]:
    """Return a context in which the reader of a URI finds its connection made.

    Over other transports than TCP, and for a pair of URIs, it does nothing. An invalid or
    incomplete URI is left to the reader too.

    Raises `ConnectError` if the connection fails.
    """
    try:
        uri = DataUri.parse(uris[0])
    except UriError:
        return nullcontext()
    is_complete = (
        bool(uri.path.strip("/"))
        if uri.ticket is None and ticket is None
        else (uri.want_data is not None and (uri.ticket is None) != (ticket is None))
    )
    is_complete = is_complete and uri.stream is Streams.BOTH
    has_socket = uri.scheme in ("tcp", "tcp+tls") and bool(uri.host)
    if len(uris) > 1 or not has_socket or not is_complete or timeout <= 0:
        return nullcontext()
    from ..transport.early_connections import connected_early

    return connected_early(uri.replace(path=""), timeout)


def check_control_plane(uri: str, timeout: float) -> None:
    """Check that something listens at the address of a control plane.

    With several addresses, or behind a proxy, it does nothing.

    Raises `ConnectError` if the connection is refused. Raises `UriError` if the URI is malformed.
    """
    from ..client.rpc.errors import explain_connect_failure
    from ..client.uris import parse_control_uris

    addresses = parse_control_uris(uri)
    if len(addresses) > 1 or any(name in os.environ for name in _PROXIES) or timeout <= 0:
        return
    host, port = addresses[0].host, addresses[0].port or 0
    try:
        socket.create_connection((host, port), min(timeout, _KNOCK_SECONDS)).close()
    except ConnectionRefusedError as error:
        reason = explain_connect_failure(error.strerror or "", encrypted=False)
        raise ConnectError(f"cannot connect to {addresses[0].address}: {reason}") from None
    except OSError:
        pass  # gRPC may find another way, or explains why it does not
