"""A control plane that cannot be reached: one line with the cause and a hint."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.pki import Pki
from splitarrow import TlsOptions
from splitarrow.client.rpc.errors import explain_connect_failure
from splitarrow.errors import ConnectError, SplitArrowError

TABLE = pa.table({"n": [1, 2, 3]})
PREFIX = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:8815: "
TLS_FAILURE = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1:SSL routines:"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ("Failed to connect to remote host: Connection refused", "the connection was refused; "),
        ("errors resolving host:1: [lookup error: Domain name not found]", "the host name cannot"),
        ("Failed to connect to remote host: No route to host", "no route to host; check the addr"),
        (
            f"{TLS_FAILURE}OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: self signed certificate: OK",
            "the certificate of the server is not trusted: self signed certificate; name its",
        ),
        ("connection attempt timed out before receiving SETTINGS frame", "the server does not re"),
        (f"{TLS_FAILURE}OPENSSL_internal:SOMETHING: OK", "the TLS handshake failed; check"),
        ("Something\n  else", "Something else"),
    ],
)
def test_the_text_of_grpc_becomes_a_cause_and_a_hint(details: str, expected: str) -> None:
    text = explain_connect_failure(PREFIX + details, encrypted=True)
    assert text.startswith(expected)
    assert "10.0.0.1" not in text
    assert "\n" not in text


CLOSED = "the server closed the connection; it may require "
UNTRUSTED = "the certificate of the server is not trusted: "


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        *(
            (text, "the host name cannot be resolved; check the name")
            for text in ("errors resolving a", "DNS resolution failed", "name resolution failure")
        ),
        ("Domain name not found", "the host name cannot be resolved; check the name"),
        ("Connection Refused", "the connection was refused; check that the server runs, and the p"),
        ("connect: Host is down (112)", "host is down; check the address and the network"),
        ("Network is unreachable", "network is unreachable; check the address and the network"),
        (
            "Hostname Verification Check failed.",
            "the certificate of the server is for another name; set server_name or SPLITARROW_",
        ),
        ("Peer name a is not in peer certificate", "the certificate of the server is for another"),
        (
            "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: x",
            f"{UNTRUSTED}certificate is not yet valid; renew it, and check the clocks",
        ),
        ("CERTIFICATE_VERIFY_FAILED", f"{UNTRUSTED}it cannot be verified; name its authority with"),
        ("x: WRONG_VERSION_NUMBER", "the server does not speak TLS; check the port, or use grpc:"),
        ("x: HTTP_REQUEST", "the server does not speak TLS; check the port, or use grpc://"),
        ("Handshake read failed", "the TLS handshake failed; check that the port is that of a con"),
        ("Connection timed out", "the server does not respond; check that the port is that of a"),
        *(
            (text, f"{CLOSED}a client certificate (cert_file, SPLITARROW_TLS_CERT), or the port")
            for text in ("Socket closed", "Connection reset by peer", "Endpoint closing", "recvmsg")
        ),
        ("UNKNOWN: INTERNAL: ipv6:%5B::1%5D:1: a  b", "a b"),
        ("dns:host:1: x", "x"),
        ("unix:/a/b: x", "x"),
        ("other:host:1: x", "other:host:1: x"),
    ],
)
def test_each_failure_has_a_cause_and_a_hint(details: str, expected: str) -> None:
    assert explain_connect_failure(details, encrypted=True).startswith(expected)


def test_a_connection_without_tls_that_is_closed_may_need_it() -> None:
    for text in ("broken pipe", "End of TCP stream", "sendmsg:Connection reset"):
        assert explain_connect_failure(text, encrypted=False) == (
            f"{CLOSED}TLS (grpc+tls://), or the port is not a control plane's"
        )


def test_of_several_failures_the_last_is_explained() -> None:
    first = "failed to connect to all addresses; last error: UNKNOWN: Connection refused; "
    assert explain_connect_failure(
        f"{first}last error: UNKNOWN: Network is unreachable", encrypted=False
    ).startswith("network is unreachable; ")


def failure(uri: str, ca_file: Path | None = None) -> str:
    """Return the reason why a client cannot connect, without the address."""
    with pytest.raises(ConnectError) as caught:
        splitarrow.connect(uri, tls=TlsOptions(ca_file=ca_file), connect_timeout=10)
    start = f"cannot connect to {uri}: "
    text = str(caught.value)
    assert text.startswith(start)
    return text.removeprefix(start)


def test_tls_and_plain_text_do_not_match(pki: Pki) -> None:
    with splitarrow.serve({"d": TABLE}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        uri = server.control_uri.replace("grpc://", "grpc+tls://")
        assert failure(uri).startswith("the server does not speak TLS; check the port, or use grpc")
    path = str(pki.path("server"))
    with splitarrow.serve({"d": TABLE}, control="grpc+tls://127.0.0.1:0", tls_cert=path) as server:
        assert server.control_uri is not None
        uri = server.control_uri.replace("grpc+tls://", "grpc://")
        assert failure(uri) == f"the server requires TLS; use {server.control_uri}"


@pytest.mark.parametrize(
    ("certificate", "authority", "expected"),
    [
        ("server", "foreign-ca", "not trusted: unable to get local issuer certificate; name its"),
        ("elsewhere", "ca", "the certificate of the server is for another name; set server_name"),
        ("expired", "ca", "the certificate of the server expired on "),
        ("expired", "foreign-ca", "the certificate of the server expired on "),
    ],
)
def test_a_certificate_that_is_refused(
    pki: Pki, certificate: str, authority: str, expected: str
) -> None:
    path = str(pki.path(certificate))
    with splitarrow.serve({"d": TABLE}, control="grpc+tls://127.0.0.1:0", tls_cert=path) as server:
        assert server.control_uri is not None
        assert expected in failure(server.control_uri, ca_file=pki.path(authority))


def test_a_client_certificate_that_is_missing(pki: Pki) -> None:
    with splitarrow.serve(
        {"d": TABLE},
        control="grpc+tls://127.0.0.1:0",
        tls_cert=str(pki.path("server")),
        tls_client_ca=str(pki.path("ca")),
    ) as server:
        assert server.control_uri is not None
        reason = failure(server.control_uri, ca_file=pki.path("ca"))
        assert "it may require a client certificate (cert_file, SPLITARROW_TLS_CERT)" in reason


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_name_that_does_not_exist_is_a_connect_error() -> None:
    assert failure("grpc://no-such-host.invalid:1").startswith("the host name cannot be resolved;")


@pytest.mark.parametrize("kind", ["refused", "resolve", "tls"])
def test_a_command_prints_one_line(free_port: int, kind: str) -> None:
    with splitarrow.serve({"d": TABLE}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        uri = {
            "refused": f"grpc://127.0.0.1:{free_port}",
            "resolve": "grpc://no-such-host.invalid:1",
            "tls": server.control_uri.replace("grpc://", "grpc+tls://"),
        }[kind]
        command = [sys.executable, "-P", "-m", "splitarrow", "ls", uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"splitarrow: error: cannot connect to {uri}: the ")
    assert done.stderr.count("\n") == 1
    assert "; check " in done.stderr


def test_a_server_that_leaves_is_named_without_the_words_of_grpc(tmp_path: Path) -> None:
    with splitarrow.serve({"d": TABLE}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        client = splitarrow.connect(server.control_uri)
    with client, pytest.raises(SplitArrowError) as caught:
        client.datasets()
    assert "ipv4:" not in str(caught.value)
    assert "\n" not in str(caught.value)
