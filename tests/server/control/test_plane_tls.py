"""TLS, mutual TLS, and certificates that change while the server runs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from pyarrow import flight

from helpers.control_plane import Running, running
from splitarrow.errors import ConfigError, SplitArrowError

TLS = "grpc+tls://127.0.0.1:0"


class Authority:
    """A certificate authority that writes its certificates to files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._ca = trustme.CA()
        self.root = self._ca.cert_pem.bytes()
        self.cert, self.key, self.ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        self.ca.write_bytes(self.root)
        self.renew()

    def renew(self) -> None:
        certificate = self._ca.issue_cert("127.0.0.1", "localhost")
        self.cert.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        self.key.write_bytes(certificate.private_key_pem.bytes())

    def client(self) -> dict[str, bytes]:
        certificate = self._ca.issue_cert("anna@example.org")
        return {
            "cert_chain": certificate.cert_chain_pems[0].bytes(),
            "private_key": certificate.private_key_pem.bytes(),
        }


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def test_calls_are_encrypted_and_plain_ones_are_refused(
    authority: Authority, table: pa.Table
) -> None:
    with running(
        {"a": table}, control=TLS, tls_cert=authority.cert, tls_key=authority.key
    ) as server:
        assert server.uri.startswith("grpc+tls://127.0.0.1:")
        with server.client(tls_root_certs=authority.root) as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path("a"))
            assert client.do_get(info.endpoints[0].ticket).read_all() == table
        with server.client() as client, pytest.raises(flight.FlightUnavailableError):
            list(client.list_flights())
        plain = flight.FlightClient(server.uri.replace("+tls", ""))
        with plain, pytest.raises(flight.FlightUnavailableError):
            list(plain.list_flights())


def test_one_file_can_hold_the_certificate_and_its_key(
    authority: Authority, table: pa.Table
) -> None:
    authority.cert.write_bytes(authority.key.read_bytes() + authority.cert.read_bytes())
    one_file = running({"a": table}, control=TLS, tls_cert=authority.cert)
    with one_file as server, server.client(tls_root_certs=authority.root) as client:
        assert client.do_get(flight.Ticket(b"a")).read_all() == table


def test_only_clients_of_the_configured_authority_are_accepted(
    authority: Authority, tmp_path: Path, table: pa.Table
) -> None:
    other = Authority(tmp_path / "other")
    settings: dict[str, Any] = {
        "tls_cert": authority.cert,
        "tls_key": authority.key,
        "tls_client_ca": authority.ca,
    }
    with running({"a": table}, control=TLS, **settings) as server:
        with server.client(tls_root_certs=authority.root, **authority.client()) as client:
            assert client.do_get(flight.Ticket(b"a")).read_all() == table
        for credentials in ({}, other.client()):
            client = server.client(tls_root_certs=authority.root, **credentials)
            with client, pytest.raises(flight.FlightUnavailableError):
                list(client.list_flights())


def shown(server: Running) -> str:
    return ssl.get_server_certificate(("127.0.0.1", server.port), timeout=10)


def test_new_certificates_are_used_at_the_next_handshake(
    authority: Authority,
    table: pa.Table,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("splitarrow.transport.credential_files._CHECK_SECONDS", 0.0)
    with running(
        {"a": table}, control=TLS, tls_cert=authority.cert, tls_key=authority.key
    ) as server:
        before = shown(server)
        assert shown(server) == before
        authority.renew()
        after = shown(server)
        assert after != before
        authority.key.write_bytes(b"half written")
        assert shown(server) == after
        other = trustme.CA().issue_cert("localhost")
        authority.key.write_bytes(other.private_key_pem.bytes())
        assert shown(server) == after
        authority.key.unlink()
        assert shown(server) == after
        assert "cannot reload the certificates" in caplog.text
        authority.renew()
        assert shown(server) not in (before, after)
        with server.client(tls_root_certs=authority.root) as client:
            assert client.do_get(flight.Ticket(b"a")).read_all() == table


@pytest.mark.parametrize(
    ("control", "settings", "message"),
    [
        (TLS, {}, "needs tls_cert"),
        (TLS, {"tls_cert": "absent", "tls_key": "key"}, "cannot read .*absent"),
        (TLS, {"tls_cert": "key", "tls_key": "key"}, "no certificate"),
        (TLS, {"tls_cert": "cert", "tls_key": "cert"}, "contain no certificate and key"),
        (TLS, {"tls_cert": "cert", "tls_key": "key", "tls_client_ca": "key"}, "no certificates"),
        ("http://127.0.0.1:0", {}, "has the scheme 'http'"),
        ("grpc://127.0.0.1:0/path", {}, "a host and a port only"),
        ("grpc://127.0.0.1:0?want_data=1", {}, "a host and a port only"),
        ("grpc://127.0.0.1:99999", {}, "(?i)port"),
        ("grpc://192.0.2.1:0", {"insecure": True}, "cannot listen on grpc://192.0.2.1:0"),
        ("grpc://127.0.0.1:0", {"upload_bytes": 1}, "without writable"),
    ],
)
def test_invalid_addresses_and_certificates_are_refused(
    authority: Authority, control: str, settings: dict[str, str], message: str
) -> None:
    files = {"cert": authority.cert, "key": authority.key, "ca": authority.ca}
    given: dict[str, Any] = {
        name: value if name in ("insecure", "upload_bytes") else files.get(value, Path(value))
        for name, value in settings.items()
    }
    with pytest.raises(SplitArrowError, match=message), running(control=control, **given):
        pass


def test_a_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    refused = pytest.raises(ConfigError, match="does not belong to the certificate")
    with refused, running(control=TLS, tls_cert=authority.cert, tls_key=other.key):
        pass
