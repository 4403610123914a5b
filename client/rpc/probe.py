"""Finding out what listens at an address that is not that of a control plane."""

from __future__ import annotations

import contextlib
import socket

from ...protocol.uri import DataUri

_SECONDS = 1.0
"""How long each attempt may take, in seconds."""


def explain_listener(uri: DataUri) -> str | None:
    """Return what listens at an address, and which URI reaches it; None if that is unknown.

    Parameters
    ----------
    uri : DataUri
        The address that did not respond like a control plane.
    """
    try:
        if _speaks_splitarrow(uri):
            address = uri.replace(scheme="tcp").address
            return (
                f"a data listener is at this port; use {address}/NAME, or the port of the control "
                "plane, which is 8815 by default"
            )
        if uri.scheme != "grpc+tls" and _speaks_tls(uri):
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
