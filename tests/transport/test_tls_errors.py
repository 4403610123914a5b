"""Each error of OpenSSL becomes one that states who did what."""

from __future__ import annotations

import ssl

import pytest

from splitarrow.errors import ConnectError, ConnectionLostError, NotAPeerError
from splitarrow.transport.tls import map_ssl_error

HANDSHAKE = {"server": False, "established": False, "preface_received": False}
ESTABLISHED = {"server": False, "established": True, "preface_received": False}
OPEN = {"server": False, "established": True, "preface_received": True}


def failed(reason: str | None, text: str = "text") -> ssl.SSLError:
    error = ssl.SSLError(1, text)
    error.reason = reason  # pyright: ignore[reportAttributeAccessIssue]
    return error


@pytest.mark.parametrize(
    ("reason", "state", "kind", "message"),
    [
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            ESTABLISHED,
            ConnectError,
            "peer refuses the TLS connection: it requires a client certificate",
        ),
        (
            "TLSV1_ALERT_UNKNOWN_CA",
            HANDSHAKE,
            ConnectError,
            "peer refuses the TLS connection: it does not trust the certificate authority of our "
            "certificate",
        ),
        (
            "SSLV3_ALERT_STRANGE",
            ESTABLISHED,
            ConnectError,
            "peer refuses the TLS connection: SSLV3_ALERT_STRANGE",
        ),
        (
            "SSLV3_ALERT_STRANGE",
            OPEN,
            ConnectionLostError,
            "the TLS connection with peer broke: sslv3 alert strange",
        ),
        ("UNSUPPORTED_PROTOCOL", HANDSHAKE, ConnectError, "peer does not support TLS 1.3"),
        (
            "UNSUPPORTED_PROTOCOL",
            OPEN,
            ConnectionLostError,
            "the TLS connection with peer broke: unsupported protocol",
        ),
        ("WRONG_VERSION_NUMBER", HANDSHAKE, NotAPeerError, "peer does not use TLS"),
        ("PACKET_LENGTH_TOO_LONG", HANDSHAKE, NotAPeerError, "peer does not use TLS"),
        (
            "RECORD_LAYER_FAILURE",
            ESTABLISHED,
            ConnectionLostError,
            "the TLS connection with peer broke: record layer failure",
        ),
        (
            "SOMETHING_ELSE",
            HANDSHAKE,
            ConnectError,
            "the TLS handshake with peer failed: something else",
        ),
        (
            None,
            HANDSHAKE,
            ConnectError,
            "the TLS handshake with peer failed: ('text',)",
        ),
        (
            "PEER_DID_NOT_RETURN_A_CERTIFICATE",
            HANDSHAKE | {"server": True},
            ConnectError,
            "peer sent no client certificate; this server requires one",
        ),
        (
            "PEER_DID_NOT_RETURN_A_CERTIFICATE",
            HANDSHAKE,
            ConnectError,
            "the TLS handshake with peer failed: peer did not return a certificate",
        ),
    ],
)
def test_an_error_of_openssl_is_explained(
    reason: str | None, state: dict[str, bool], kind: type[Exception], message: str
) -> None:
    error = map_ssl_error(failed(reason), "peer", **state)
    assert type(error) is kind
    assert error.message == message.replace("('text',)", str(failed(None)))


@pytest.mark.parametrize("state", [HANDSHAKE, ESTABLISHED, OPEN])
def test_an_untrusted_certificate_is_named_first(state: dict[str, bool]) -> None:
    error = ssl.SSLCertVerificationError(1, "text")
    error.reason = "TLSV1_ALERT_UNKNOWN_CA"  # pyright: ignore[reportAttributeAccessIssue]
    error.verify_message = "it has expired."
    mapped = map_ssl_error(error, "peer", **state)
    assert type(mapped) is ConnectError
    assert mapped.message == "the certificate of peer is not trusted: it has expired"
