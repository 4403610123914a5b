"""tcp+tls: which certificates are trusted, and the error for each problem."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.pki import Pki, TlsWithDefaults
from splitarrow.errors import (
    ConfigError,
    ConnectError,
    NotAPeerError,
    TransportError,
    UriError,
    UsageError,
)
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import registry, tcp
from splitarrow.transport.base import ConnectOptions, ListenOptions
from splitarrow.transport.registry import find_transport
from splitarrow.transport.tls import TlsChannel, TlsListener, TlsTransport
from splitarrow.transport.tls_options import (
    TlsOptions,
    TlsServerOptions,
    build_client_context,
    build_server_context,
    load_client_context,
    load_server_context,
)

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
        registry.override_transport(TlsWithDefaults(server=options)),
        splitarrow.serve({"data": TABLE}, listen=["tcp+tls://127.0.0.1:0"]) as server,
    ):
        yield DataUri.parse(server.uri("data"))


def read(uri: DataUri, options: TlsOptions, timeout: float = 10) -> pa.Table:
    """Read a table with some options, as `splitarrow.open` does."""
    with (
        registry.override_transport(TlsWithDefaults(options)),
        splitarrow.open(str(uri), connect_timeout=timeout) as stream,
    ):
        return stream.read_all()


def test_a_trusted_server_is_read_from(pki: Pki) -> None:
    with serving(pki.make_server_options()) as uri:
        assert read(uri, pki.make_client_options()).equals(TABLE)
        assert read(uri.replace(host="localhost"), pki.make_client_options()).equals(TABLE)


def test_certificate_and_key_in_two_files(pki: Pki) -> None:
    options = TlsServerOptions(pki.path("server-cert"), pki.path("server-key"))
    with serving(options) as uri:
        assert read(uri, pki.make_client_options()).equals(TABLE)


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
    with serving(pki.make_server_options()) as uri:
        channel = find_transport(uri).connect(uri, ConnectOptions(tls=pki.make_client_options()))
        channel.close()


@pytest.mark.parametrize(
    ("certificate", "ca", "why"),
    [
        ("server", "foreign-ca", "unable to get local issuer certificate"),
        ("elsewhere", "ca", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
def test_an_untrusted_server_is_refused(pki: Pki, certificate: str, ca: str, why: str) -> None:
    with serving(pki.make_server_options(certificate)) as uri:
        with pytest.raises(ConnectError, match=f"is not trusted: .*{why}") as caught:
            read(uri, pki.make_client_options(ca))
        assert uri.address in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ca", ["ca", "foreign-ca"])
def test_an_expired_certificate_is_named_first(pki: Pki, ca: str) -> None:
    with (
        serving(pki.make_server_options("expired")) as uri,
        pytest.raises(
            ConnectError, match=r"server expired on \d{4}-\d\d-\d\d \d\d:\d\d UTC; renew it"
        ),
    ):
        read(uri, pki.make_client_options(ca))


def test_the_system_s_authorities_do_not_include_ours(pki: Pki) -> None:
    with (
        serving(pki.make_server_options()) as uri,
        pytest.raises(ConnectError, match="not trusted"),
    ):
        read(uri, TlsOptions())


def test_the_name_may_differ_from_the_host(pki: Pki) -> None:
    name = "elsewhere.example"
    with serving(pki.make_server_options("elsewhere")) as uri:
        assert read(uri, pki.make_client_options(server_name=name)).equals(TABLE)
        assert read(uri.replace(extra=(("server_name", name),)), pki.make_client_options()).equals(
            TABLE
        )
        assert read(uri, pki.make_client_options(check_name=False)).equals(TABLE)
        with pytest.raises(ConnectError, match="Hostname mismatch"):
            read(uri, pki.make_client_options(server_name="other.example"))
        with pytest.raises(ConnectError, match="cannot connect to tcp"):
            read(uri, pki.make_client_options(server_name=".bad"))


def test_a_name_that_cannot_be_right_leaves_no_socket(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[socket.socket] = []

    def connect(*arguments: Any) -> socket.socket:
        connected.append(tcp.connect_socket(*arguments))
        return connected[-1]

    monkeypatch.setattr("splitarrow.transport.tls.connect_socket", connect)
    options = pki.make_client_options(server_name=".bad")
    with serving(pki.make_server_options()) as uri, pytest.raises(ConnectError):
        TlsTransport().connect(uri, ConnectOptions(tls=options))
    assert [sock.fileno() for sock in connected] == [-1]


def test_clients_present_certificates(pki: Pki) -> None:
    with serving(pki.make_server_options(client_ca="ca")) as uri:
        good = pki.make_client_options(cert_file=pki.path("client"))
        assert read(uri, good).equals(TABLE)
        with pytest.raises(ConnectError, match="requires a client certificate"):
            read(uri, pki.make_client_options())
        with pytest.raises(ConnectError, match="does not trust the certificate authority"):
            read(uri, pki.make_client_options(cert_file=pki.path("stranger")))
        assert read(uri, good).equals(TABLE)


async def test_a_refusal_is_clear_in_an_async_client_too(pki: Pki) -> None:
    with (
        serving(pki.make_server_options(client_ca="ca")) as uri,
        registry.override_transport(TlsWithDefaults(pki.make_client_options())),
        pytest.raises(ConnectError, match="requires a client certificate"),
    ):
        async with splitarrow.aio.open(str(uri)):
            pass


def test_the_error_of_a_plain_client_recommends_tls(
    pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "splitarrow")
    with serving(pki.make_server_options()) as uri:
        plain = uri.replace(scheme="tcp", ticket=CANARY.encode())
        with pytest.raises(
            NotAPeerError, match=r"requires TLS: use a URI that begins with tcp\+tls://"
        ):
            splitarrow.open(str(plain))
    assert "uses plain tcp" in caplog.text + str([r.__dict__ for r in caplog.records])
    assert CANARY not in str([record.__dict__ for record in caplog.records])


def test_the_error_for_a_plain_server_names_plain_tcp(pki: Pki) -> None:
    with splitarrow.serve({"data": TABLE}) as server:
        uri = DataUri.parse(server.uri("data")).replace(scheme="tcp+tls")
        with pytest.raises(NotAPeerError, match="does it use plain tcp"):
            read(uri, pki.make_client_options())


@contextmanager
def serve_once(answer: Callable[[socket.socket], None]) -> Generator[DataUri]:
    """Serve one client with `answer`."""

    def run() -> None:
        with closing(listener.accept()[0]) as sock:
            try:
                answer(sock)
            except OSError:
                pass  # the client disconnects, as the test expects

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        port = listener.getsockname()[1]
        yield DataUri.parse(f"tcp+tls://127.0.0.1:{port}?want_data=0x10000000001&ticket=data")
        thread.join()


def test_a_server_of_another_protocol_is_refused(pki: Pki) -> None:
    def answer(sock: socket.socket) -> None:
        sock.recv(1)
        sock.sendall(b"SSH-2.0-x\r\n")

    with (
        serve_once(answer) as uri,
        pytest.raises(NotAPeerError, match=r"does not use TLS: it answered b'SSH-2.0-x"),
    ):
        read(uri, pki.make_client_options())


def test_a_silent_server_is_bounded(pki: Pki) -> None:
    def answer(sock: socket.socket) -> None:
        while sock.recv(4096):
            pass

    with (
        serve_once(answer) as uri,
        pytest.raises(ConnectError, match=r"no TLS handshake within 0.3 s"),
    ):
        read(uri, pki.make_client_options(), timeout=0.3)


def test_an_older_server_is_refused(pki: Pki) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.path("server"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def answer(sock: socket.socket) -> None:
        context.wrap_socket(sock, server_side=True).close()

    with serve_once(answer) as uri, pytest.raises(ConnectError, match=r"TLS.* 1\.3"):
        read(uri, pki.make_client_options())


def test_an_older_client_is_refused(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context(cafile=pki.path("ca"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    caplog.set_level(logging.DEBUG, "splitarrow")
    with (
        serving(pki.make_server_options()) as uri,
        socket.create_connection(("127.0.0.1", uri.port)) as sock,
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")
    assert "does not support TLS 1.3" in str([r.__dict__ for r in caplog.records])


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_silent_client_does_not_delay_others(pki: Pki, begun: bytes) -> None:
    with (
        serving(pki.make_server_options()) as uri,
        socket.create_connection(("127.0.0.1", uri.port)) as idle,
    ):
        idle.sendall(begun)
        for _ in range(3):
            assert read(uri, pki.make_client_options()).equals(TABLE)


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\x16\x03\x01\xff\xff" * 9]
)
def test_noise_is_refused_and_closed(pki: Pki, noise: bytes) -> None:
    with serving(pki.make_server_options()) as uri:
        with socket.create_connection(("127.0.0.1", uri.port)) as sock:
            sock.sendall(noise)
            sock.settimeout(10)
            try:
                assert len(sock.recv(100)) <= 7  # nothing, or an alert
            except ConnectionResetError:
                pass
        assert read(uri, pki.make_client_options()).equals(TABLE)


class RawClient:
    """A TLS client of another implementation, after its handshake."""

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


def test_other_tls_clients_see_a_proper_end(pki: Pki) -> None:
    uri = DataUri.parse("tcp+tls://127.0.0.1:0")
    with (
        closing(TlsListener(uri, ListenOptions(), pki.make_server_options())) as listener,
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
    """Return the serial number of a listener's certificate."""
    with closing(RawClient(listener, ca)) as client:
        certificate = client.tls.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def test_changed_certificates_are_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pki = Pki(tmp_path)
    clock = Clock()
    uri = DataUri.parse("tcp+tls://127.0.0.1:0")
    options = TlsServerOptions(pki.path("server-cert"), pki.path("server-key"))
    with closing(TlsListener(uri, ListenOptions(), options, clock=clock)) as listener:
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
        assert len([r for r in caplog.records if "keeping the old ones" in r.getMessage()]) == 1
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
        ("nothing", r"own\.pem and \S+own\.pem contain no certificate and key in PEM"),
        ("mismatch", r"client-key\S* does not belong to the certificate in \S+server-cert"),
        ("encrypted", r"the key in \S+key\.pem is encrypted; use a key without"),
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
        load_server_context(TlsServerOptions(own, key))
    with pytest.raises(UsageError, match=why):
        read(
            DataUri.parse("tcp+tls://127.0.0.1:1?want_data=1&ticket=x"),
            pki.make_client_options(cert_file=own, key_file=key),
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
    with pytest.raises(ConfigError, match=r"ca\.pem contains no certificate"):
        load_server_context(TlsServerOptions(pki.path("server"), client_ca_file=ca))


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="key_file needs a cert_file"):
        TlsOptions(key_file="key.pem")
    with pytest.raises(UsageError, match="needs a ca_file"):
        TlsOptions(check_name=False)
    assert TlsOptions.from_environment({}) == TlsOptions()
    assert TlsServerOptions.from_environment({"SPLITARROW_TLS_KEY": "key.pem"}) is None


def test_a_server_takes_its_options_from_the_environment() -> None:
    names = {"CERT": "cert.pem", "KEY": "key.pem", "CLIENT_CA": "ca.pem"}
    variables = {f"SPLITARROW_TLS_{name}": file for name, file in names.items()}
    assert TlsServerOptions.from_environment(variables) == TlsServerOptions(
        "cert.pem", "key.pem", "ca.pem"
    )
    variables = {"SPLITARROW_TLS_CERT": "cert.pem", "SPLITARROW_TLS_KEY": ""}
    assert TlsServerOptions.from_environment(variables) == TlsServerOptions("cert.pem")


def test_a_client_takes_its_options_from_the_environment() -> None:
    names = {"CA": "ca.pem", "CERT": "cert.pem", "KEY": "key.pem", "SERVER_NAME": "name"}
    variables = {f"SPLITARROW_TLS_{name}": value for name, value in names.items()}
    assert TlsOptions.from_environment(variables) == TlsOptions(
        "ca.pem", "cert.pem", "key.pem", "name"
    )
    del variables["SPLITARROW_TLS_CERT"]  # a key alone belongs to nothing
    assert TlsOptions.from_environment(variables) == TlsOptions("ca.pem", server_name="name")
    assert TlsOptions().check_name


def test_addresses_are_checked(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = TlsWithDefaults(pki.make_client_options(), pki.make_server_options())
    with pytest.raises(UriError, match="has no path"):
        transport.listen(DataUri.parse("tcp+tls://127.0.0.1:0/x"), ListenOptions())
    with pytest.raises(UriError, match="needs a host"):
        transport.connect(DataUri.parse("tcp+tls://:1"), ConnectOptions(timeout=1))
    monkeypatch.delenv("SPLITARROW_TLS_CERT", raising=False)
    with pytest.raises(ConfigError, match="needs a certificate"):
        TlsTransport().listen(DataUri.parse("tcp+tls://127.0.0.1:0"), ListenOptions())
    with (
        closing(
            transport.listen(DataUri.parse("tcp+tls://127.0.0.1:0"), ListenOptions())
        ) as listener,
        pytest.raises(ConfigError, match=r"cannot listen on tcp\+tls://127.0.0.1"),
    ):
        transport.listen(listener.uri, ListenOptions())


def test_a_refused_client_does_not_count_as_a_failed_session(pki: Pki) -> None:
    with (
        registry.override_transport(
            TlsWithDefaults(pki.make_client_options("foreign-ca"), pki.make_server_options())
        ),
        splitarrow.serve({"data": TABLE}, listen=["tcp+tls://127.0.0.1:0"]) as server,
    ):
        with pytest.raises(TransportError):
            splitarrow.open(server.uri("data"))
        assert server.stats()["failures"] == 0


def test_contexts_require_tls_1_3_and_the_right_name(pki: Pki) -> None:
    client = build_client_context(pki.make_client_options())
    server = build_server_context(pki.make_server_options())
    strict = build_server_context(pki.make_server_options(client_ca="ca"))
    unnamed = build_client_context(pki.make_client_options(check_name=False))
    for context in (client, server, strict, unnamed):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert [each.verify_mode for each in (client, unnamed, server, strict)] == [
        ssl.CERT_REQUIRED,
        ssl.CERT_REQUIRED,
        ssl.CERT_NONE,
        ssl.CERT_REQUIRED,
    ]
    assert (client.check_hostname, unnamed.check_hostname) == (True, False)
    assert not client.hostname_checks_common_name
    assert (server.num_tickets, strict.num_tickets) == (0, 0)  # a server sends nothing first
    assert client.cert_store_stats()["x509_ca"] == strict.cert_store_stats()["x509_ca"] == 1


def test_equal_options_share_a_context(pki: Pki) -> None:
    one, two = pki.make_client_options(), pki.make_client_options()
    assert load_client_context(one) is load_client_context(two)
    assert load_client_context(one).current() is load_client_context(two).current()
    assert load_client_context(one) is not load_client_context(
        pki.make_client_options(server_name="other")
    )
