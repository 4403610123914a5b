"""Connecting and the diagnosis, step by step, with stubs in place of the library and of workers."""

from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.clock import Clock
from helpers.ucx_header import Header
from splitarrow.errors import ConnectError, TransportError, UriError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.base import ConnectOptions, Diagnosis, ListenOptions
from splitarrow.transport.ucx import endpoint as addresses
from splitarrow.transport.ucx import transport
from splitarrow.transport.ucx.context import Reach
from splitarrow.transport.ucx.ffi import IN_PROGRESS, OK, version
from splitarrow.transport.ucx.links import IDLE_LINKS, ServerKey
from splitarrow.transport.ucx.transport import UcxTransport
from splitarrow.transport.ucx.uri import RemoteTags

FAILED = Header.UCS_ERR_NO_MEMORY
WANT, FREE = (1 << 40) + 5, (1 << 40) + 6
HANDLE = b"\1\0\0\0\0\0\0\xff"
URI = DataUri("ucx", "127.0.0.1", 8817, want_data=WANT, free_data=FREE)
OFFER = URI.replace(remote_handle=HANDLE)
TAGS = RemoteTags(WANT, WANT ^ (0xFF << 56 | 1), FREE)


class World:
    """Takes the places of workers, endpoints and channels, and records what is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures: list[Exception] = []
        self.workers: list[Any] = []
        self.calls: list[Any] = []
        self.addresses: list[bytes] = []
        self.waits: list[float] = []
        self.status = self.connected = OK
        self.lanes = ["tcp/eth0", "cma/memory"]
        self.channels: list[Any] = []
        self.channel_failure: Exception | None = None
        monkeypatch.setattr(transport, "Worker", self.make_worker)
        monkeypatch.setattr(transport, "connect_endpoint", self.connect)
        monkeypatch.setattr(transport, "list_lanes", lambda endpoint: self.lanes)
        monkeypatch.setattr(transport, "_wait_for_connection", self.wait)
        monkeypatch.setattr(transport, "UcxReaderChannel", self.make_channel)

    def make_worker(self, limit: int, **options: bool) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        worker = SimpleNamespace(
            limit=limit,
            options=options,
            close_endpoint=lambda endpoint: self.calls.append(("close", endpoint)),
            destroy=lambda: self.calls.append("destroy"),
        )
        self.workers.append(worker)
        return worker

    def connect(self, worker: Any, sockaddr: bytes) -> tuple[int, Any]:
        self.addresses.append(sockaddr)
        return self.status, "endpoint" if self.status == OK else None

    def wait(self, worker: Any, created: Any, timeout: float) -> int:
        assert created == "endpoint"
        self.waits.append(timeout)
        return self.connected

    def make_channel(self, *arguments: Any) -> Any:
        if self.channel_failure is not None:
            raise self.channel_failure
        self.channels.append(arguments)
        return "channel"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def connect(uri: DataUri = URI, **options: Any) -> Any:
    return UcxTransport().connect(uri, ConnectOptions(**options))


def test_a_connection_is_made(world: World) -> None:
    limits = Limits(metadata_bytes=77)
    uri = OFFER.replace(extra=(("busy_poll", "200"),))
    assert connect(uri, limits=limits, timeout=2.5) == "channel"
    ((link, its_limits, tags, allocator, device, key),) = world.channels
    assert (link.endpoint, link.peer, link.reach, link.spin_seconds) == (
        *("endpoint", "127.0.0.1:8817", Reach.LOOPBACK, 2e-4),
    )
    assert (its_limits, tags) == (limits, TAGS)
    assert (allocator, device, key) == (ConnectOptions().allocator, None, None)
    assert (world.waits, world.calls) == ([2.5], [])
    assert world.addresses == [addresses.pack_address("127.0.0.1", 8817)]
    (worker,) = world.workers
    assert (worker.limit, worker.options) == (77, {"plain": False, "reach": Reach.LOOPBACK})


def test_the_peer_may_be_any_program_and_anywhere(world: World) -> None:
    connect(DataUri("ucx", "192.0.2.1", want_data=WANT))
    assert world.workers[0].options == {"plain": True, "reach": Reach.NETWORK}
    assert world.addresses == [addresses.pack_address("192.0.2.1", 8817)]  # the default port
    assert world.waits == [10]
    assert world.channels[0][2] is None


def test_only_servers_that_may_expect_it_get_a_second_stream_on_a_connection(
    world: World,
) -> None:
    connect(OFFER, reuse=True)
    connect(URI, reuse=True)
    key = ServerKey(addresses.pack_address("127.0.0.1", 8817), WANT, HANDLE)
    assert [arguments[5] for arguments in world.channels] == [key, None]


def test_idle_connections_end_where_a_new_one_finds_no_descriptors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = [True, False]
    monkeypatch.setattr(IDLE_LINKS, "close", lambda: idle.pop(0))
    world.failures = [TransportError("too few descriptors")]
    assert connect() == "channel"
    world.failures = [TransportError("too few descriptors")]
    with pytest.raises(ConnectError, match="too few descriptors"):
        connect()
    assert idle == []


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (TransportError("no worker"), "no worker"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (OSError("odd"), "odd"),
        (ValueError("strange"), "strange"),
    ],
)
def test_a_connection_without_a_worker_is_an_error(
    world: World, failure: Exception, why: str
) -> None:
    world.failures = [failure]
    with pytest.raises(ConnectError, match=f"cannot connect to ucx://127.0.0.1:8817: {why}"):
        connect()
    assert world.calls == []


@pytest.mark.parametrize(
    ("status", "connected", "why", "calls"),
    [
        (FAILED, OK, "out of memory", ["destroy"]),
        (OK, FAILED, "out of memory", [("close", "endpoint"), "destroy"]),
        (OK, IN_PROGRESS, "no answer within 0.5 s", [("close", "endpoint"), "destroy"]),
    ],
)
def test_a_connection_that_fails_frees_everything(
    world: World, status: int, connected: int, why: str, calls: list[Any]
) -> None:
    world.status, world.connected = status, connected
    with pytest.raises(ConnectError, match=why):
        connect(timeout=0.5)
    assert world.calls == calls
    assert len(world.waits) == (status == OK)


@pytest.mark.parametrize(
    ("failure", "error", "why"),
    [
        (OSError(errno.EMFILE, "Too many open files"), ConnectError, "8817: Too many open files"),
        (OSError("odd"), ConnectError, "8817: odd"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_a_channel_that_cannot_be_made_frees_everything(
    world: World, failure: Any, error: type[BaseException], why: str
) -> None:
    world.channel_failure = failure
    with pytest.raises(error, match=why):
        connect()
    assert world.calls == [("close", "endpoint"), "destroy"]


# Remote bodies.


@pytest.mark.parametrize(
    ("uri", "body", "lanes", "tags"),
    [
        (OFFER, None, ["cma/memory"], TAGS),
        (OFFER, "remote", ["cma/memory"], TAGS),
        (OFFER, "packed", ["cma/memory"], None),
        (OFFER, None, ["tcp/eth0"], None),
        (OFFER, None, [], None),
        (URI, None, ["cma/memory"], None),
        (OFFER.replace(free_data=None), None, ["cma/memory"], None),
    ],
)
def test_remote_bodies_are_requested_where_they_can_be_read(
    uri: DataUri, body: str | None, lanes: list[str], tags: RemoteTags | None
) -> None:
    assert transport._remote_tags(uri, body, lanes) == tags
    metadata_only = uri.replace(stream=type(uri.stream)("metadata"))
    assert transport._remote_tags(metadata_only, body, lanes) is None


@pytest.mark.parametrize("uri", [URI, OFFER.replace(free_data=None)])
def test_required_remote_bodies_have_to_be_offered(uri: DataUri) -> None:
    with pytest.raises(UriError, match="body=remote needs a remote_handle and free_data"):
        transport._remote_tags(uri, "remote", ["cma/memory"])


@pytest.mark.parametrize(
    ("lanes", "named"), [(["tcp/eth0", "self/memory"], "tcp/eth0, self/memory"), ([], "unknown")]
)
def test_required_remote_bodies_have_to_be_readable(lanes: list[str], named: str) -> None:
    with pytest.raises(ConnectError, match=f"the lanes are {named}$"):
        transport._remote_tags(OFFER, "remote", lanes)


# Waiting for a connection.


class Waiting:
    """Takes the places of the library, of a worker, of the clock and of `select`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.clock = Clock(100.0)
        self.polled: list[float] = []
        self.freed: list[Any] = []
        self.arms = True
        self.work = 0
        self.events = SimpleNamespace(error=OK)
        self.descriptor = 7
        self.flushed = IN_PROGRESS
        monkeypatch.setattr(transport, "ucp", self)
        monkeypatch.setattr(transport, "get_status", lambda request: self.flushed)
        monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=self.clock))
        poll = SimpleNamespace(register=self.register, poll=self.poll)
        monkeypatch.setattr(transport, "select", SimpleNamespace(poll=lambda: poll, POLLIN=1))

    def register(self, descriptor: int, events: int) -> None:
        assert (descriptor, events) == (7, 1)

    def poll(self, milliseconds: float) -> None:
        self.polled.append(milliseconds)
        self.clock.now += 0.25

    def ucp_ep_flush_nbx(self, created: Any, param: Any) -> str:
        assert created == "endpoint"
        return "request"

    def ucp_request_check_status(self, request: Any) -> int:
        return self.statuses.pop(0) if self.statuses else IN_PROGRESS

    def ucp_request_free(self, request: Any) -> None:
        self.freed.append(request)

    def progress(self) -> bool:
        self.work -= 1
        return self.work >= 0

    def arm(self) -> bool:
        return self.arms

    def wait(self, timeout: float) -> int:
        worker: Any = self
        return transport._wait_for_connection(worker, "endpoint", timeout)


@pytest.mark.parametrize("status", [OK, FAILED])
def test_a_connection_may_be_known_at_once(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    waiting = Waiting(monkeypatch)
    waiting.flushed = status
    assert waiting.wait(1) == status
    assert (waiting.polled, waiting.freed) == ([], [])


def test_a_connection_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, IN_PROGRESS, IN_PROGRESS, OK)
    waiting.work = 3
    assert waiting.wait(1) == OK
    assert waiting.polled == [1000, 750]
    assert (waiting.freed, waiting.work) == (["request"], -3)


def test_a_wait_for_a_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch)
    assert waiting.wait(0.5) == IN_PROGRESS
    assert (waiting.polled, waiting.freed) == ([500, 250], ["request"])
    refused = Waiting(monkeypatch, IN_PROGRESS, FAILED)
    assert refused.wait(1) == FAILED
    assert refused.freed == ["request"]
    broken = Waiting(monkeypatch)
    broken.events.error = FAILED
    assert broken.wait(1) == FAILED
    assert (broken.polled, broken.freed) == ([], ["request"])


def test_a_worker_with_work_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, IN_PROGRESS, OK)
    waiting.arms = False
    assert waiting.wait(1) == OK
    assert waiting.polled == []


# The diagnosis.


def test_the_traits_of_the_scheme() -> None:
    traits = UcxTransport.traits
    assert (traits.default_port, traits.leases_memory, traits.descriptors) == (8817, True, 18)
    assert (traits.location_rank, traits.local_only, traits.encrypted) == (40, False, False)


def test_the_diagnosis_names_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UcxTransport, "_local_lanes", lambda self: ["cma/memory", "tcp/lo"])
    monkeypatch.setattr(transport, "list_performance_hints", lambda lanes: [f"of {lanes[0]}"])
    detail = f"UCX {version()}; lanes on this host: cma/memory, tcp/lo"
    assert UcxTransport().diagnose() == Diagnosis(detail=detail, hints=["of cma/memory"])

    def fail(self: UcxTransport) -> list[str]:
        raise ConnectError("no way")

    monkeypatch.setattr(UcxTransport, "_local_lanes", fail)
    assert UcxTransport().diagnose() == Diagnosis(
        detail=f"UCX {version()}: no way", hints=["no way"]
    )


def test_the_lanes_of_this_host_are_those_of_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    address = OFFER.replace(port=1234)

    class Listener:
        uri = address

        def __init__(self, uri: DataUri, options: ListenOptions) -> None:
            calls.append((uri.host, uri.port, uri.want_data, options.map_file is not None))

        def accept(self) -> None:
            return None

        def close(self) -> None:
            calls.append("close")

    def connect(self: UcxTransport, uri: DataUri, options: ConnectOptions) -> Any:
        calls.append((uri, options.timeout))
        return SimpleNamespace(lanes=["a/b"], abort=lambda: calls.append("abort"))

    before = threading.active_count()
    monkeypatch.setattr(transport, "UcxListener", Listener)
    monkeypatch.setattr(UcxTransport, "connect", connect)
    assert UcxTransport()._local_lanes() == ["a/b"]
    listen = ("127.0.0.1", 0, 1 << 40, True)
    assert calls == [listen, (address, 5), "abort", "close"]
    assert threading.active_count() == before


def test_a_connection_is_accepted_and_kept() -> None:
    calls: list[str] = []
    done = threading.Event()

    def receive() -> list[Any]:
        calls.append("receive")
        if len(calls) == 3:
            done.set()
        return []

    channel = SimpleNamespace(receive_some=receive, abort=lambda: calls.append("abort"))
    answers: list[Any] = [None, channel]
    listener: Any = SimpleNamespace(accept=lambda: answers.pop(0))
    transport._accept_one(listener, done)
    assert calls == ["receive"] * 3 + ["abort"]
    assert answers == []


@pytest.mark.parametrize("error", [OSError("broken"), TransportError("broken")])
def test_the_other_end_reports_a_failed_connection(error: Exception) -> None:
    calls: list[str] = []

    def receive() -> list[Any]:
        raise error

    channel = SimpleNamespace(receive_some=receive, abort=lambda: calls.append("abort"))
    listener: Any = SimpleNamespace(accept=lambda: channel)
    transport._accept_one(listener, threading.Event())
    assert calls == ["abort"]
