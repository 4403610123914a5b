"""Mapping of OpenSSL's errors to those of splitarrow."""

from __future__ import annotations

import ssl

from ...errors import ConnectError, ConnectionLostError, NotAPeerError, TransportError

_ALERTS = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate",
    "UNKNOWN_CA": "it does not trust the certificate authority of our certificate",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "CERTIFICATE_REVOKED": "our certificate was revoked",
    "PROTOCOL_VERSION": "it does not support TLS 1.3",
    "HANDSHAKE_FAILURE": "it has no cipher in common with us",
    "ACCESS_DENIED": "it denies access",
}
"""The meanings of a peer's alerts, by the last words of their names in OpenSSL."""
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_TOO_OLD = ("UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION", "VERSION_TOO_LOW")


def map_ssl_error(
    error: ssl.SSLError, peer: str, *, server: bool, established: bool, preface_received: bool
) -> TransportError:
    """Return the error that corresponds to an error of OpenSSL.

    Parameters
    ----------
    error : ssl.SSLError
        The error of OpenSSL.
    peer : str
        The other end, for the message.
    server : bool
        Whether this end is the server.
    established : bool
        Whether this end has finished the handshake.
    preface_received : bool
        Whether the peer's preface has arrived. With TLS 1.3, a server can refuse a client's
        certificate after the client has finished the handshake, but not after that.
    """
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = error.verify_message.rstrip(".")
        return ConnectError(f"the certificate of {peer} is not trusted: {problem}")
    if server and reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ConnectError(f"{peer} sent no client certificate; this server requires one")
    if not preface_received and "ALERT" in reason:
        meaning = next((text for end, text in _ALERTS.items() if reason.endswith(end)), reason)
        return ConnectError(f"{peer} refuses the TLS connection: {meaning}")
    if not established and reason in _TOO_OLD:
        return ConnectError(f"{peer} does not support TLS 1.3")
    if not established and reason in _NO_TLS:
        return NotAPeerError(f"{peer} does not use TLS")
    problem = reason.replace("_", " ").lower() or str(error)
    if established:
        return ConnectionLostError(f"the TLS connection with {peer} broke: {problem}")
    return ConnectError(f"the TLS handshake with {peer} failed: {problem}")
