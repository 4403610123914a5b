"""A channel of gRPC to one server: what each call carries, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from splitarrow import TlsOptions
from splitarrow.client.rpc import channel as module
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.client.uris import parse_control_uri
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    DeniedError,
    RemoteError,
    SplitArrowError,
    UsageError,
)
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.grpc_usage import GRPC_USAGE

SERVICE = "/arrow.flight.protocol.FlightService/"


class Failure(grpc.RpcError):
    """An error as gRPC raises it."""

    def __init__(self, status: grpc.StatusCode, details: str = "") -> None:
        self.code = lambda: status
        self.details = lambda: details


DENIED = Failure(grpc.StatusCode.PERMISSION_DENIED, "not you, good-token")
LATE = Failure(grpc.StatusCode.DEADLINE_EXCEEDED)
REFUSED = Failure(grpc.StatusCode.UNAVAILABLE, "failed to connect: Connection refused")


class Opened:
    """A channel of gRPC, and what was done with it."""

    def __init__(self, target: str, options: Any, credentials: Any) -> None:
        self.target, self.options, self.credentials = target, dict(options), credentials
        self.calls: list[Any] = []
        self.closed = self.cancelled = 0
        self.failure: Failure | None = None
        self.unary_unary = self._make(lambda: b"response")
        self.unary_stream = self._make(self._respond)
        self.stream_stream = self._make(self._respond)

    def _make(self, respond: Callable[[], Any]) -> Any:
        def find_method(path: str) -> Any:
            def call(message: Any, **options: Any) -> Any:
                self.calls.append((path.removeprefix(SERVICE), message, options))
                if self.failure is not None:
                    raise self.failure
                return respond()

            return call

        return find_method

    def _respond(self) -> Any:
        return _Responses([b"one", b"two"], self)

    def close(self) -> None:
        self.closed += 1


class _Responses(list[bytes]):
    def __init__(self, items: list[bytes], opened: Opened) -> None:
        super().__init__(items)
        self._opened = opened

    def cancel(self) -> None:
        self._opened.cancelled += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    """The channels of gRPC that were opened, none of which reaches anything."""
    found: list[Opened] = []

    def open_insecure(target: str, options: Any) -> Opened:
        found.append(Opened(target, options, None))
        return found[-1]

    def open_secure(target: str, credentials: Any, options: Any) -> Opened:
        found.append(Opened(target, options, credentials))
        return found[-1]

    monkeypatch.setattr(grpc, "insecure_channel", open_insecure)
    monkeypatch.setattr(grpc, "secure_channel", open_secure)
    return found


@pytest.fixture
def channel(opened: list[Opened]) -> Iterator[FlightChannel]:
    made = FlightChannel(parse_control_uri("grpc://host:1"), " good-token ", None, 7.0)
    yield made
    made.close()


METADATA = [("splitarrow-host", "host"), ("authorization", "Bearer good-token")]


def test_every_call_carries_the_host_and_the_token(
    channel: FlightChannel, opened: list[Opened]
) -> None:
    assert channel.call_unary("GetFlightInfo", b"m") == b"response"
    assert list(channel.call_stream("ListFlights", b"m")) == [b"one", b"two"]
    assert list(channel.call_stream("ListFlights", b"m", timeout=3.0)) == [b"one", b"two"]
    assert list(channel.do_get(b"t", 2.0)) == [b"one", b"two"]
    assert list(channel.do_get(b"t")) == [b"one", b"two"]
    messages = iter([b"m"])
    assert list(channel.do_put(messages)) == [b"one", b"two"]
    channel.hold_dataset("däta")
    plain: dict[str, Any] = {"metadata": METADATA}
    assert opened[0].calls == [
        ("GetFlightInfo", b"m", {**plain, "timeout": 7.0}),
        ("ListFlights", b"m", {**plain, "timeout": 7.0}),
        ("ListFlights", b"m", {**plain, "timeout": 3.0}),
        ("DoGet", b"t", {"metadata": [*METADATA, ("splitarrow-keep-alive", "2000")]}),
        ("DoGet", b"t", plain),
        ("DoPut", messages, plain),
        ("DoAction", flight.Action(type="hold", body="däta".encode()).SerializeToString(), plain),
    ]


@pytest.mark.parametrize(
    ("host", "target", "metadata"),
    [
        ("::1", "[::1]:9", [("splitarrow-host", "::1")]),
        ("a.b", "a.b:9", [("splitarrow-host", "a.b")]),
        ("hôte", "hôte:9", []),
    ],
)
def test_hosts_are_named_as_grpc_and_http_need_them(
    opened: list[Opened], host: str, target: str, metadata: Any
) -> None:
    channel = FlightChannel(DataUri("grpc", host, 9), None, None, 1.0)
    channel.call_unary("GetFlightInfo", b"")
    assert opened[0].target == target
    assert opened[0].calls[0][2]["metadata"] == metadata
    channel.close()


def test_a_channel_has_connections_of_its_own_and_messages_up_to_2_gib(
    channel: FlightChannel, opened: list[Opened]
) -> None:
    options = opened[0].options
    for direction in ("receive", "send"):
        assert options.pop(f"grpc.max_{direction}_message_length") == (1 << 31) - 1
    assert options.pop("grpc.use_local_subchannel_pool") == 1
    assert options == {
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 10_000,
        "grpc.max_reconnect_backoff_ms": 2000,
        "grpc.keepalive_time_ms": 30_000,
        "grpc.keepalive_timeout_ms": 3_500,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
    }


@pytest.mark.parametrize("token", ["", " ", "line\nbreak", "tökèn", "\x7f"])
def test_a_token_that_no_header_can_carry_is_refused(opened: list[Opened], token: str) -> None:
    with pytest.raises(UsageError, match=r"the token (must be printable ASCII|has a newline)"):
        FlightChannel(parse_control_uri("grpc://host:1"), token, None, 1.0)
    assert opened == []


@pytest.mark.parametrize("call", ["call_unary", "call_stream"])
def test_a_failed_call_names_the_dataset_and_hides_the_token(
    channel: FlightChannel, opened: list[Opened], call: str
) -> None:
    opened[0].failure = DENIED
    with pytest.raises(DeniedError, match=r"^not you, …$") as caught:
        list(getattr(channel, call)("GetFlightInfo", b"", dataset="d"))
    assert caught.value.stream == "d"


def test_a_closed_channel_calls_nothing(channel: FlightChannel, opened: list[Opened]) -> None:
    for _ in range(2):
        channel.close()
    assert opened[0].closed == 2
    calls: list[Callable[[], Any]] = [
        lambda: channel.call_unary("GetFlightInfo", b""),
        lambda: list(channel.call_stream("ListFlights", b"")),
        lambda: channel.do_get(b""),
        lambda: channel.do_put(iter([])),
        lambda: channel.hold_dataset("d"),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the client of grpc://host:1 is closed"):
            call()
    assert opened[0].calls == []


def test_calls_that_a_close_ends_are_not_lost_connections(channel: FlightChannel) -> None:
    lost = Failure(grpc.StatusCode.CANCELLED)
    assert not isinstance(channel.convert_error(lost), ClosedError)
    assert isinstance(channel.convert_error(lost, closed=True), ClosedError)
    channel.close()
    assert isinstance(channel.convert_error(lost, "d"), ClosedError)
    assert channel.convert_error(lost, "d").stream == "d"


def test_a_hold_ends_with_its_call(channel: FlightChannel, opened: list[Opened]) -> None:
    hold = channel.hold_dataset("d")
    assert opened[0].cancelled == 0
    hold.release()
    assert opened[0].cancelled == 1


def test_a_forked_process_leaves_the_calls_of_its_parent_alone(
    channel: FlightChannel, opened: list[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = channel.hold_dataset("d")
    with monkeypatch.context() as patch:
        patch.setattr(GRPC_USAGE, "is_blocked", True)
        hold.release()
        with pytest.raises(UsageError, match="forked while its parent used gRPC"):
            channel.call_unary("GetFlightInfo", b"")
        with pytest.raises(UsageError, match="forked while its parent used gRPC"):
            FlightChannel(parse_control_uri("grpc://host:1"), None, None, 1.0)
        channel.close()
    assert len(opened) == 1
    assert (opened[0].closed, opened[0].cancelled) == (0, 0)


def test_a_process_uses_grpc_until_its_channels_are_closed(
    opened: list[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    users: list[object] = []
    usage = SimpleNamespace(
        add=users.append, discard=users.remove, is_blocked=False, check_process=lambda: None
    )
    monkeypatch.setattr(module, "GRPC_USAGE", usage)
    channel = FlightChannel(parse_control_uri("grpc://host:1"), None, None, 1.0)
    assert users == [channel]
    channel.close()
    assert users == []


class TestConnections:
    """Checks of a connection when a client is opened."""

    @pytest.fixture
    def listener(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What is found at an address: the last item, which tests replace."""
        found: list[Any] = [None]
        monkeypatch.setattr(module, "explain_listener", lambda uri: found[-1] and f"{found[-1]}")
        return found

    def test_a_connection_is_one_call_with_a_time_limit(
        self, channel: FlightChannel, opened: list[Opened]
    ) -> None:
        channel.check_connection(2.5)
        ((method, message, options),) = opened[0].calls
        assert (method, message, options["timeout"]) == ("ListActions", b"", 2.5)

    def test_a_server_that_does_not_respond_cannot_be_connected_to(
        self, channel: FlightChannel, opened: list[Opened]
    ) -> None:
        opened[0].failure = LATE
        with pytest.raises(ConnectError, match=r"to grpc://host:1: no response within 2\.5 s; che"):
            channel.check_connection(2.5)

    def test_what_listens_instead_is_named(
        self, channel: FlightChannel, opened: list[Opened], listener: list[Any]
    ) -> None:
        opened[0].failure = REFUSED
        with pytest.raises(ConnectError, match="the connection was refused"):
            channel.check_connection(1.0)
        listener.append("a teapot")
        with pytest.raises(ConnectError, match=r"^cannot connect to grpc://host:1: a teapot"):
            channel.check_connection(1.0)

    @pytest.mark.parametrize(
        "failure", [DENIED, Failure(grpc.StatusCode.UNIMPLEMENTED, "no such action")]
    )
    def test_other_errors_are_raised_as_they_are(
        self,
        channel: FlightChannel,
        opened: list[Opened],
        listener: list[Any],
        failure: Failure,
    ) -> None:
        listener.append("a teapot")
        opened[0].failure = failure
        with pytest.raises(SplitArrowError) as caught:
            channel.check_connection(1.0)
        assert isinstance(caught.value, RemoteError)
        assert "teapot" not in str(caught.value)


class TestTls:
    """Channels to servers with certificates."""

    def test_the_names_of_certificates_are_always_checked(
        self, opened: list[Opened], tmp_path: Path
    ) -> None:
        options = TlsOptions(ca_file=tmp_path / "ca", check_name=False)
        with pytest.raises(UsageError, match="set server_name in place of check_name=False"):
            FlightChannel(parse_control_uri("grpc+tls://host:1"), None, options, 1.0)
        assert opened == []

    def test_certificates_are_read_from_their_files(
        self, opened: list[Opened], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda *pems: pems)
        for name in ("ca", "cert", "key"):
            (tmp_path / name).write_text(name)
        ca, cert, key = (tmp_path / name for name in ("ca", "cert", "key"))
        for options, expected in (
            (TlsOptions(), (None, None, None)),
            (TlsOptions(ca_file=ca), (b"ca", None, None)),
            (TlsOptions(cert_file=cert), (None, b"cert", b"cert")),
            (TlsOptions(str(ca), cert, key), (b"ca", b"key", b"cert")),
        ):
            FlightChannel(parse_control_uri("grpc+tls://host:1"), None, options, 1.0).close()
            assert opened[-1].credentials == expected
            assert "grpc.ssl_target_name_override" not in opened[-1].options

    def test_a_certificate_may_have_another_name(self, opened: list[Opened]) -> None:
        options = TlsOptions(server_name="other")
        for _ in range(2):
            FlightChannel(parse_control_uri("grpc+tls://host:1"), None, options, 1.0).close()
            assert opened[-1].options["grpc.ssl_target_name_override"] == "other"
        FlightChannel(parse_control_uri("grpc://host:1"), None, options, 1.0).close()
        assert "grpc.ssl_target_name_override" not in opened[-1].options
        assert opened[-1].credentials is None

    def test_the_environment_applies_without_options(
        self, opened: list[Opened], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "ca").write_text("ca")
        monkeypatch.setattr(grpc, "ssl_channel_credentials", lambda *pems: pems)
        monkeypatch.setenv("SPLITARROW_TLS_CA", str(tmp_path / "ca"))
        monkeypatch.setenv("SPLITARROW_TLS_SERVER_NAME", "other")
        FlightChannel(parse_control_uri("grpc+tls://host:1"), None, None, 1.0).close()
        assert opened[-1].options["grpc.ssl_target_name_override"] == "other"
        assert opened[-1].credentials == (b"ca", None, None)

    def test_a_file_that_cannot_be_read_is_named(self, opened: list[Opened]) -> None:
        options = TlsOptions(ca_file="/nonexistent/ca")
        with pytest.raises(UsageError, match="cannot read /nonexistent/ca: No such file"):
            FlightChannel(parse_control_uri("grpc+tls://host:1"), None, options, 1.0)


REJECTED = Failure(grpc.StatusCode.UNAUTHENTICATED, "not first, not second, not third")


def test_a_call_that_has_begun_is_not_repeated_with_another_token(opened: list[Opened]) -> None:
    tokens = iter(("first", "second"))
    channel = FlightChannel(parse_control_uri("grpc://host:1"), lambda: next(tokens), None, 7.0)
    (grpc_channel,) = opened

    def respond() -> Iterator[bytes]:
        yield b"one"
        raise REJECTED

    grpc_channel.unary_stream = grpc_channel._make(respond)  # pyright: ignore[reportPrivateUsage]
    received: list[bytes] = []
    with pytest.raises(DeniedError):
        received.extend(channel.call_stream("ListFlights", b""))
    assert len(grpc_channel.calls) == 1
    channel.close()


def test_no_error_quotes_a_token_that_was_sent_lately(opened: list[Opened]) -> None:
    tokens = iter(("first", "second", "third"))
    channel = FlightChannel(parse_control_uri("grpc://host:1"), lambda: next(tokens), None, 7.0)
    opened[0].failure = REJECTED
    with pytest.raises(DeniedError, match="not …, not …, not third"):
        channel.call_unary("GetSchema", b"")
    assert [dict(call[2]["metadata"])["authorization"] for call in opened[0].calls] == [
        "Bearer first",
        "Bearer second",
    ]
    channel.close()
