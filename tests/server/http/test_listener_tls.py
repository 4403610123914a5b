"""The HTTP listener with TLS."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import trustme

import splitarrow
from helpers.http_requests import Answer, request_over
from helpers.waiting import wait_until
from splitarrow.errors import ConfigError

TABLE = pa.table({"n": [1]})


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


def issue(authority: trustme.CA, path: Path) -> trustme.LeafCert:
    certificate = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    certificate.private_key_and_cert_chain_pem.write_to_path(str(path))
    return certificate


@pytest.fixture
def served(authority: trustme.CA, tmp_path: Path) -> Iterator[splitarrow.Server]:
    issue(authority, tmp_path / "server.pem")
    with serve(tmp_path) as server:
        yield server


def serve(folder: Path, **settings: Any) -> splitarrow.Server:
    return splitarrow.serve(
        {"data": TABLE}, http="https://127.0.0.1:0", tls_cert=folder / "server.pem", **settings
    )


def request(
    server: splitarrow.Server, authority: trustme.CA, path: str, cert: Path | None = None
) -> tuple[Answer, bytes]:
    """Return the response, and the server's certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if cert is not None:
        context.load_cert_chain(cert)
    address = urlsplit(server.http_uri or "")
    connection = http.client.HTTPSConnection(
        address.hostname or "", address.port, context=context, timeout=30
    )
    try:
        connection.connect()
        found = connection.sock.getpeercert(True)
        assert found is not None
        return request_over(connection, path), found
    finally:
        connection.close()


def test_metrics_are_encrypted_and_state_when_the_certificate_expires(
    served: splitarrow.Server, authority: trustme.CA
) -> None:
    answer, found = request(served, authority, "/metrics")
    name = 'splitarrow_certificate_expiry_timestamp_seconds{certificate="server"} '
    (line,) = [line for line in answer.text.splitlines() if line.startswith(name)]
    text = ssl.DER_cert_to_PEM_cert(found)
    assert float(line.removeprefix(name)) > time.time()
    assert text.startswith("-----BEGIN")


def test_a_new_certificate_is_used_without_a_restart(
    served: splitarrow.Server, authority: trustme.CA, tmp_path: Path
) -> None:
    before = request(served, authority, "/healthz")[1]
    issue(authority, tmp_path / "server.pem")
    wait_until(lambda: request(served, authority, "/healthz")[1] != before)


def test_clients_need_a_certificate_except_for_health_checks(
    authority: trustme.CA, tmp_path: Path
) -> None:
    issue(authority, tmp_path / "server.pem")
    own, foreign = tmp_path / "own.pem", tmp_path / "foreign.pem"
    issue(authority, own)
    issue(trustme.CA(key_type=trustme.KeyType.ECDSA), foreign)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with serve(tmp_path, tls_client_ca=tmp_path / "ca.pem") as server:
        for path in ("/healthz", "/readyz"):
            assert request(server, authority, path)[0].status == 200
        for path in ("/", "/metrics", "/v1/streams"):
            assert request(server, authority, path)[0].status == 403
            assert request(server, authority, path, own)[0].status == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            request(server, authority, "/metrics", foreign)


def test_an_unusable_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"server\.pem"):
        serve(tmp_path)
