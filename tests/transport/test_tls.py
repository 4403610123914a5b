"""tcp+tls: who trusts whom, and one clear line for everything that is wrong."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import (
    ConfigError,
    ConnectError,
    NotAPeerError,
    TransportError,
    UriError,
    UsageError,
)
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import registry
from splitarrow.transport.certificates import TlsOptions, TlsServerOptions, server_contexts
from splitarrow.transport.registry import transport_for
from splitarrow.transport.secured import TlsChannel
from splitarrow.transport.tls import TlsListener, TlsTransport

from .pki import Pki

CANARY = "canary-d41d8cd98f00"
TABLE = pa.table({"n": list(range(100))})


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@contextmanager
def serving(
    options: TlsServerOptions, address: str = "tcp+tls://127.0.0.1:0"
) -> Generator[DataUri]:
    with (
        registry.replaced(TlsTransport(server_options=options)),
        splitarrow.serve({"data": TABLE}, listen=["tcp+tls://127.0.0.1:0"]) as server,
    ):
        yield DataUri.parse(server.uri("data"))


def read(uri: DataUri, options: TlsOptions, timeout: float = 10) -> pa.Table:
    """Read a table with some options, as `splitarrow.open` does."""
    with (
        registry.replaced(TlsTransport(options)),
        splitarrow.open(str(uri), connect_timeout=timeout) as stream,
    ):
        return stream.read_all()


def test_a_trusted_server_is_read_from(pki: Pki) -> None:
    with serving(pki.showing()) as uri:
        assert read(uri, pki.trusting()).equals(TABLE)
        assert read(uri.replace(host="localhost"), pki.trusting()).equals(TABLE)


def test_certificate_and_key_in_two_files(pki: Pki) -> None:
    options = TlsServerOptions(pki.path("server-cert"), pki.path("server-key"))
    with serving(options) as uri:
        assert read(uri, pki.trusting()).equals(TABLE)


def test_options_come_from_the_environment(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITARROW_TLS_CERT", str(pki.path("server-cert")))
    monkeypatch.setenv("SPLITARROW_TLS_KEY", str(pki.path("server-key")))
    monkeypatch.setenv("SPLITARROW_TLS_CA", str(pki.path("ca")))
    with splitarrow.serve({"data": TABLE}, listen=["tcp+tls://127.0.0.1:0"]) as server:
        with splitarrow.open(server.uri("data")) as stream:
            assert stream.read_all().equals(TABLE)
            assert stream.transport == "tcp+tls"
        monkeypatch.delenv("SPLITARROW_TLS_CA")
        with pytest.raises(ConnectError, match="not trusted"):
            splitarrow.open(server.uri("data"))


def test_options_can_be_given_for_one_connection(pki: Pki) -> None:
    with serving(pki.showing()) as uri:
        channel = transport_for(uri, pki.trusting()).connect(uri, Limits(), 10)
        channel.close()
    plain = DataUri.parse("tcp://127.0.0.1:1")
    assert transport_for(plain, pki.trusting()) is transport_for(plain)


@pytest.mark.parametrize(
    ("certificate", "ca", "why"),
    [
        ("server", "foreign-ca", "unable to get local issuer certificate"),
        ("elsewhere", "ca", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ("expired", "ca", "certificate has expired"),
    ],
)
def test_an_untrusted_server_is_refused(pki: Pki, certificate: str, ca: str, why: str) -> None:
    with serving(pki.showing(certificate)) as uri:
        with pytest.raises(ConnectError, match=f"is not trusted: .*{why}") as caught:
            read(uri, pki.trusting(ca))
        assert uri.address in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_system_s_authorities_do_not_know_ours(pki: Pki) -> None:
    with serving(pki.showing()) as uri, pytest.raises(ConnectError, match="not trusted"):
        read(uri, TlsOptions())


def test_the_name_may_differ_from_the_host(pki: Pki) -> None:
    name = "elsewhere.example"
    with serving(pki.showing("elsewhere")) as uri:
        assert read(uri, pki.trusting(server_name=name)).equals(TABLE)
        assert read(uri.replace(extra=(("server_name", name),)), pki.trusting()).equals(TABLE)
        assert read(uri, pki.trusting(check_name=False)).equals(TABLE)
        with pytest.raises(ConnectError, match="Hostname mismatch"):
            read(uri, pki.trusting(server_name="other.example"))
        with pytest.raises(ConnectError, match="cannot connect to tcp"):
            read(uri, pki.trusting(server_name=".bad"))


def test_clients_show_certificates(pki: Pki) -> None:
    with serving(pki.showing(client_ca="ca")) as uri:
        good = pki.trusting(cert_file=pki.path("client"))
        assert read(uri, good).equals(TABLE)
        with pytest.raises(ConnectError, match="asks for a client certificate, and none was given"):
            read(uri, pki.trusting())
        with pytest.raises(ConnectError, match="does not trust the authority of our certificate"):
            read(uri, pki.trusting(cert_file=pki.path("stranger")))
        assert read(uri, good).equals(TABLE)


async def test_a_refusal_is_clear_in_an_async_client_too(pki: Pki) -> None:
    with (
        serving(pki.showing(client_ca="ca")) as uri,
        registry.replaced(TlsTransport(pki.trusting())),
        pytest.raises(ConnectError, match="asks for a client certificate"),
    ):
        async with splitarrow.aio.open(str(uri)):
            pass


def test_a_plain_client_is_told_to_use_tls(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "splitarrow")
    with serving(pki.showing()) as uri:
        plain = uri.replace(scheme="tcp", ticket=CANARY.encode())
        with pytest.raises(NotAPeerError, match=r"speaks TLS: its URI begins with tcp\+tls://"):
            splitarrow.open(str(plain))
    assert "speaks plain tcp" in caplog.text + str([r.__dict__ for r in caplog.records])
    assert CANARY not in str([record.__dict__ for record in caplog.records])


def test_a_plain_server_does_not_speak_tls(pki: Pki) -> None:
    with splitarrow.serve({"data": TABLE}) as server:
        uri = DataUri.parse(server.uri("data")).replace(scheme="tcp+tls")
        with pytest.raises(NotAPeerError, match="does it speak plain tcp"):
            read(uri, pki.trusting())


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Generator[DataUri]:
    """A server that does something of its own with one client."""

    def run() -> None:
        with closing(listener.accept()[0]) as sock:
            try:
                answer(sock)
            except OSError:
                pass  # the client has left, as it should

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        port = listener.getsockname()[1]
        yield DataUri.parse(f"tcp+tls://127.0.0.1:{port}?want_data=0x10000000001&ticket=data")
        thread.join()


def test_another_server_does_not_speak_tls(pki: Pki) -> None:
    def answer(sock: socket.socket) -> None:
        sock.recv(1)
        sock.sendall(b"SSH-2.0-x\r\n")

    with (
        answering(answer) as uri,
        pytest.raises(NotAPeerError, match=r"does not speak TLS: it answered b'SSH-2.0-x"),
    ):
        read(uri, pki.trusting())


def test_a_silent_server_is_bounded(pki: Pki) -> None:
    def answer(sock: socket.socket) -> None:
        while sock.recv(4096):
            pass

    with (
        answering(answer) as uri,
        pytest.raises(ConnectError, match=r"no TLS handshake within 0.3 s"),
    ):
        read(uri, pki.trusting(), timeout=0.3)


def test_an_older_server_is_refused(pki: Pki) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.path("server"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def answer(sock: socket.socket) -> None:
        context.wrap_socket(sock, server_side=True).close()

    with answering(answer) as uri, pytest.raises(ConnectError, match=r"TLS.* 1\.3"):
        read(uri, pki.trusting())


def test_an_older_client_is_refused(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context(cafile=pki.path("ca"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    caplog.set_level(logging.DEBUG, "splitarrow")
    with (
        serving(pki.showing()) as uri,
        socket.create_connection(("127.0.0.1", uri.port)) as sock,
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")
    assert "offers an older version of TLS than 1.3" in str([r.__dict__ for r in caplog.records])


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_silent_client_holds_nobody_up(pki: Pki, begun: bytes) -> None:
    with serving(pki.showing()) as uri, socket.create_connection(("127.0.0.1", uri.port)) as idle:
        idle.sendall(begun)
        for _ in range(3):
            assert read(uri, pki.trusting()).equals(TABLE)


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\x16\x03\x01\xff\xff" * 9]
)
def test_noise_is_refused_and_closed(pki: Pki, noise: bytes) -> None:
    with serving(pki.showing()) as uri:
        with socket.create_connection(("127.0.0.1", uri.port)) as sock:
            sock.sendall(noise)
            sock.settimeout(10)
            try:
                assert len(sock.recv(100)) <= 7  # nothing, or an alert
            except ConnectionResetError:
                pass
        assert read(uri, pki.trusting()).equals(TABLE)


class RawClient:
    """A client of TLS that is not ours, with its handshake done."""

    def __init__(self, listener: TlsListener, ca: Path) -> None:
        context = ssl.create_default_context(cafile=ca)
        self.incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, outgoing, server_hostname="127.0.0.1")
        self.sock = socket.create_connection(("127.0.0.1", listener.uri.port), timeout=10)
        channel = listener.accept()
        assert isinstance(channel, TlsChannel)
        self.channel = channel
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.sock.sendall(outgoing.read())
        assert channel.receive_some() == []
        self.receive()
        self.tls.do_handshake()
        self.sock.sendall(outgoing.read())
        assert channel.receive_some() == []
        assert channel.established

    def receive(self) -> None:
        self.incoming.write(self.sock.recv(1 << 16))

    def close(self) -> None:
        self.channel.close()
        self.sock.close()


def test_another_client_of_tls_sees_a_proper_end(pki: Pki) -> None:
    uri = DataUri.parse("tcp+tls://127.0.0.1:0")
    with (
        closing(TlsListener(uri, Limits(), pki.showing())) as listener,
        closing(RawClient(listener, pki.path("ca"))) as client,
    ):
        assert client.tls.version() == "TLSv1.3"
        client.channel.close()
        client.receive()
        assert client.tls.read(100) == b""  # and no SSLEOFError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def serial(listener: TlsListener, ca: Path) -> str:
    """Return the serial number of the certificate that a listener shows."""
    with closing(RawClient(listener, ca)) as client:
        certificate = client.tls.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def test_changed_certificates_are_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pki = Pki(tmp_path)
    clock = Clock()
    uri = DataUri.parse("tcp+tls://127.0.0.1:0")
    options = TlsServerOptions(pki.path("server-cert"), pki.path("server-key"))
    with closing(TlsListener(uri, Limits(), options, clock=clock)) as listener:
        first = serial(listener, pki.path("ca"))
        pki.write("server", pki.authority.issue_cert("127.0.0.1"))
        assert serial(listener, pki.path("ca")) == first  # not looked at again within a second
        clock.now += 1
        second = serial(listener, pki.path("ca"))
        assert second != first

        pki.path("server-cert").write_text("broken")
        clock.now += 1
        assert serial(listener, pki.path("ca")) == second
        clock.now += 1
        assert serial(listener, pki.path("ca")) == second
        assert len([r for r in caplog.records if "the old ones stay" in r.getMessage()]) == 1
        assert str(pki.path("server-cert")) in caplog.text

        pki.write("server", pki.authority.issue_cert("127.0.0.1"))
        clock.now += 1
        assert serial(listener, pki.path("ca")) not in (first, second)
        pki.path("server-key").unlink()
        clock.now += 1
        serial(listener, pki.path("ca"))
        assert "No such file" in caplog.text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read .*own.pem: No such file"),
        ("nothing", "own.pem.*: no certificate with its key in PEM"),
        ("mismatch", "is not that of the certificate"),
        ("encrypted", "the key is encrypted"),
    ],
)
def test_unusable_files_are_named(pki: Pki, tmp_path: Path, content: str | None, why: str) -> None:
    own, key = tmp_path / "own.pem", None
    if content == "nothing":
        own.write_text("nothing")
    elif content is not None:
        own = pki.path("server-cert")
        key = pki.path("client-key")
        if content == "encrypted":
            key = tmp_path / "key.pem"
            key.write_bytes(encrypted(pki.path("server-key")))
    with pytest.raises(ConfigError, match=why):
        server_contexts(TlsServerOptions(own, key))
    with pytest.raises(UsageError, match=why):
        read(
            DataUri.parse("tcp+tls://127.0.0.1:1?want_data=1&ticket=x"),
            pki.trusting(cert_file=own, key_file=key),
        )


def encrypted(key: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


@pytest.mark.parametrize("content", ["", "nothing", "leaf"])
def test_unusable_authorities_are_named(pki: Pki, tmp_path: Path, content: str) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text(pki.path("server-cert").read_text() if content == "leaf" else content)
    with pytest.raises(ConfigError, match=r"ca\.pem: no"):
        server_contexts(TlsServerOptions(pki.path("server"), client_ca_file=ca))


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="key_file goes with a cert_file"):
        TlsOptions(key_file="key.pem")
    with pytest.raises(UsageError, match="ca_file of your own"):
        TlsOptions(check_name=False)
    assert TlsOptions.from_environment({}) == TlsOptions()
    assert TlsServerOptions.from_environment({"SPLITARROW_TLS_KEY": "key.pem"}) is None


def test_addresses_are_checked(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = TlsTransport(pki.trusting(), pki.showing())
    with pytest.raises(UriError, match="has no path"):
        transport.listen(DataUri.parse("tcp+tls://127.0.0.1:0/x"), Limits())
    with pytest.raises(UriError, match="needs a host"):
        transport.connect(DataUri.parse("tcp+tls://:1"), Limits(), 1)
    monkeypatch.delenv("SPLITARROW_TLS_CERT", raising=False)
    with pytest.raises(ConfigError, match="needs a certificate"):
        TlsTransport().listen(DataUri.parse("tcp+tls://127.0.0.1:0"), Limits())
    with (
        closing(transport.listen(DataUri.parse("tcp+tls://127.0.0.1:0"), Limits())) as listener,
        pytest.raises(ConfigError, match=r"cannot listen on tcp\+tls://127.0.0.1"),
    ):
        transport.listen(listener.uri, Limits())


def test_a_refused_client_does_not_count_as_a_failed_session(pki: Pki) -> None:
    with (
        registry.replaced(TlsTransport(pki.trusting("foreign-ca"), pki.showing())),
        splitarrow.serve({"data": TABLE}, listen=["tcp+tls://127.0.0.1:0"]) as server,
    ):
        with pytest.raises(TransportError):
            splitarrow.open(server.uri("data"))
        assert server.stats()["failures"] == 0
