"""The certificates that servers present."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

from ..errors import ConnectError, UsageError
from ..protocol.uri import CONTROL_PORT, TCP_PORT
from .certificates import import_cryptography

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_PORTS = {"grpc+tls": CONTROL_PORT, "tcp+tls": TCP_PORT, "https": 443}
"""The schemes with certificates, and their default ports."""


def is_server(target: str) -> bool:
    """Return whether a target is a URI, and not a file."""
    return "://" in target


def fetch_certificates(uri: str, timeout: float) -> tuple[list[Certificate], str | None]:
    """Connect to a server and return its certificates, and why a client does not trust them.

    The certificates of the client come from the ``SPLITARROW_TLS_…`` variables.

    `timeout` is the longest time to connect, in seconds. Return the certificates, and a reason or
    None. Raises `UsageError` if the scheme has no certificates. Raises `ConnectError` if the server
    does not respond or does not use TLS.
    """
    from ..transport.tls_options import TlsOptions, build_client_context

    scheme, host, port = _split(uri)
    options = TlsOptions.from_environment()
    name = options.server_name or host
    context = build_client_context(options)
    if scheme != "tcp+tls":
        context.set_alpn_protocols(["h2", "http/1.1"] if scheme == "https" else ["h2"])
    problem = None
    try:
        _present(context, host, port, name, timeout)
    except ssl.SSLCertVerificationError as error:
        problem = error.verify_message.rstrip(".")
    except OSError as error:
        raise ConnectError(
            f"cannot connect to {scheme}://{host}:{port}: {_reason(error)}"
        ) from None
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        certificates = _present(context, host, port, name, timeout)
    except OSError as error:
        raise ConnectError(
            f"cannot connect to {scheme}://{host}:{port}: {_reason(error)}"
        ) from None
    return certificates, problem


def _split(uri: str) -> tuple[str, str, int]:
    from urllib.parse import urlsplit

    parts = urlsplit(uri)
    if parts.scheme not in _PORTS:
        schemes = ", ".join(f"{scheme}://" for scheme in _PORTS)
        raise UsageError(f"{parts.scheme}:// has no certificate; expected one of {schemes}")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise UsageError(f"{uri}: the port is not a number below 65536") from None
    if not parts.hostname:
        raise UsageError(f"{uri} names no host")
    return parts.scheme, parts.hostname, port


def _present(
    context: ssl.SSLContext, host: str, port: int, name: str, timeout: float
) -> list[Certificate]:
    x509 = import_cryptography("x509")
    with (
        socket.create_connection((host, port), timeout) as sock,
        context.wrap_socket(sock, server_hostname=name) as tls,
    ):
        get_chain: Any = getattr(tls, "get_unverified_chain", None)  # from Python 3.13 on
        chain = [tls.getpeercert(binary_form=True)] if get_chain is None else get_chain()
    return [x509.load_der_x509_certificate(each) for each in chain]


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS 1.3 ({error.reason or error})"
    return error.strerror or str(error)
