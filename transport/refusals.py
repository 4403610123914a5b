"""What a failure of TLS means, in words that say what to do."""

from __future__ import annotations

import ssl

from ..errors import ConnectError, ConnectionLostError, NotAPeerError, TransportError

_ALERTS = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate, and none was given",
    "UNKNOWN_CA": "it does not trust the authority of our certificate",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "CERTIFICATE_REVOKED": "our certificate was revoked",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "HANDSHAKE_FAILURE": "it has no cipher or version in common with us",
    "ACCESS_DENIED": "it denies access",
}
"""Alerts that a peer sends, by the end of their names in OpenSSL."""
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_TOO_OLD = ("UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION", "VERSION_TOO_LOW")


def refusal(
    error: ssl.SSLError, peer: str, *, server: bool, established: bool, proven: bool
) -> TransportError:
    """Return the error of the project for one of OpenSSL.

    Parameters
    ----------
    error : ssl.SSLError
        What OpenSSL says.
    peer : str
        The other end.
    server : bool
        Whether this end is the server.
    established : bool
        Whether this end has ended the handshake.
    proven : bool
        Whether the peer has been heard since: with TLS 1.3 a server may refuse a client's
        certificate only then.
    """
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return ConnectError(f"the certificate of {peer} is not trusted: {why}")
    if server and reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ConnectError(f"{peer} has no client certificate, and this server asks for one")
    if not proven and "ALERT" in reason:
        why = next((text for end, text in _ALERTS.items() if reason.endswith(end)), reason)
        return ConnectError(f"{peer} refuses the TLS connection: {why}")
    if not established and reason in _TOO_OLD:
        return ConnectError(f"{peer} offers an older version of TLS than 1.3")
    if not established and reason in _NO_TLS:
        return NotAPeerError(f"{peer} does not speak TLS")
    words = reason.replace("_", " ").lower() or str(error)
    if established:
        return ConnectionLostError(f"the TLS connection with {peer} broke: {words}")
    return ConnectError(f"the TLS handshake with {peer} failed: {words}")
