"""Listeners, with stubs in place of the library, of workers and of the guard of the port."""

from __future__ import annotations

import errno
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.ucx_header import Header, read_numbers
from splitarrow.errors import ConfigError, TransportError, UriError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.tags import BodyType
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.base import ListenOptions
from splitarrow.transport.port_guard import make_address
from splitarrow.transport.ucx import endpoint as addresses
from splitarrow.transport.ucx import transport
from splitarrow.transport.ucx.context import Reach
from splitarrow.transport.ucx.ffi import OK, ffi
from splitarrow.transport.ucx.transport import UcxListener
from splitarrow.transport.ucx.worker import on_connection_request

FAILED = Header.UCS_ERR_NO_MEMORY
WANT = (1 << 40) + 5
URI = DataUri("ucx", "127.0.0.1", 0, want_data=WANT)


class Channel:
    """A channel that records what it is made of."""

    failure: OSError | None = None

    def __init__(self, link: Any, limits: Limits, **options: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.link, self.limits, self.options = link, limits, options


class World:
    """Takes the places of the library, of workers and of the guard, and records their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, descriptor: int) -> None:
        self.descriptor = descriptor
        self.events: Any = SimpleNamespace(connection_requests=deque[str]())
        self.workers: list[Any] = []
        self.failures: list[Exception] = []
        self.statuses: dict[str, int] = {}
        self.calls: list[Any] = []
        self.work = 0
        self.can_wait = [True]
        self.guards: list[Any] = []
        self.client: tuple[str, int] = ("10.1.2.3", 4321)
        self.checked: list[Any] = []
        self.progressed = 0
        self.address = b""
        monkeypatch.setattr(transport, "ucp", self)
        monkeypatch.setattr(transport, "Worker", self.make_worker)
        monkeypatch.setattr(transport, "PortGuard", self.make_guard)
        monkeypatch.setattr(transport, "UcxServerChannel", Channel)
        monkeypatch.setattr(transport, "has_peer_settings", lambda: True)
        monkeypatch.setattr(transport, "accept_endpoint", self.accept)

    def make_worker(self, limit: int, **options: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        number = len(self.workers)
        worker = SimpleNamespace(
            handle=f"worker {number}",
            limit=limit,
            options=options,
            descriptor=self.descriptor,
            lock=threading.RLock(),
            events=self.events,
            callback_argument=ffi.cast("void *", 64),
            progress=self.progress,
            arm_for=lambda wakeup: self.can_wait.pop(0) if len(self.can_wait) > 1 else True,
            destroy=lambda: self.calls.append(f"destroy {number}"),
            close_endpoint=lambda endpoint: self.calls.append(("close", endpoint)),
        )
        self.workers.append(worker)
        return worker

    def progress(self) -> bool:
        self.progressed += 1
        self.work -= 1
        return self.work >= 0

    def make_guard(self, port: int, **options: Any) -> Any:
        guard = SimpleNamespace(
            port=port,
            options=options,
            check_if_due=lambda channels: self.checked.append(channels),
            seconds_to_check=2.5,
            close=lambda: self.calls.append("close guard"),
        )
        self.guards.append(guard)
        return guard

    def accept(self, worker: Any, request: str) -> tuple[int, Any]:
        status = self.statuses.get(request, OK)
        return status, f"endpoint of {request}" if status == OK else None

    def ucp_listener_create(self, handle: Any, params: Any, created: Any) -> int:
        self.address = bytes(ffi.buffer(params.sockaddr.addr, params.sockaddr.addrlen))
        assert params.conn_handler.cb == on_connection_request
        assert int(ffi.cast("uintptr_t", params.conn_handler.arg)) == 64
        assert (handle, read_numbers(params)) == (
            self.workers[-1].handle,
            {
                "field_mask": Header.UCP_LISTENER_PARAM_FIELD_SOCK_ADDR
                | Header.UCP_LISTENER_PARAM_FIELD_CONN_HANDLER
            },
        )
        created[0] = ffi.cast("ucp_listener_h", 4096)
        return self.statuses.get("create", OK)

    def ucp_listener_query(self, handle: Any, attributes: Any) -> int:
        assert attributes.field_mask == Header.UCP_LISTENER_ATTR_FIELD_SOCKADDR
        packed = addresses.pack_address("127.0.0.1", 5678)
        ffi.buffer(ffi.addressof(attributes.sockaddr))[: len(packed)] = packed
        return self.statuses.get("query", OK)

    def ucp_listener_reject(self, handle: Any, request: str) -> int:
        self.calls.append(f"reject {request}")
        return OK

    def ucp_listener_destroy(self, handle: Any) -> None:
        self.calls.append(("destroy listener", int(ffi.cast("uintptr_t", handle))))

    def ucp_conn_request_query(self, request: str, attributes: Any) -> int:
        assert attributes.field_mask == Header.UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR
        packed = addresses.pack_address(*self.client)
        ffi.buffer(ffi.addressof(attributes.client_address))[: len(packed)] = packed
        return self.statuses.get("client", OK)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield World(monkeypatch, ours.fileno())


def test_a_listener_binds_its_port(world: World) -> None:
    options = ListenOptions(handshake_seconds=1.5, max_waiting=7)
    made = UcxListener(URI.replace(port=1234), options)
    assert world.address == addresses.pack_address("127.0.0.1", 1234)
    assert made.uri == URI.replace(port=5678)
    assert made.request_tags == {WANT: BodyType.PACKED}
    (worker,) = world.workers
    assert (worker.limit, worker.options) == (0, {"reach": Reach.LOOPBACK})
    (guard,) = world.guards
    assert (guard.port, guard.options) == (
        *(5678, {"handshake_seconds": 1.5, "max_connections": 7, "keeps_alive": True}),
    )
    assert made.fileno() >= 0
    made.close()
    made.close()
    assert made.fileno() == -1
    assert world.calls[:3] == ["close guard", ("destroy listener", 4096), "destroy 0"]
    assert not made.reject()
    assert made.accept() is None


def test_the_default_address_is_the_loopback_and_port_8817(world: World) -> None:
    made = UcxListener(DataUri("ucx", want_data=WANT), ListenOptions())
    assert world.address == addresses.pack_address("127.0.0.1", 8817)
    made.close()
    made = UcxListener(DataUri("ucx", "0.0.0.0", 0, want_data=WANT), ListenOptions())
    assert world.workers[-1].options == {"reach": Reach.HOST}
    made.close()


@pytest.mark.parametrize(
    ("changes", "query", "maps", "offers"),
    [
        ({}, "", True, True),
        ({}, "", False, False),
        ({}, "body=packed", True, False),
        ({}, "body=remote", True, True),
        ({"stream": "metadata"}, "", True, False),
        ({"stream": "body"}, "", True, True),
    ],
)
def test_remote_bodies_are_offered(
    world: World, changes: dict[str, Any], query: str, maps: bool, offers: bool
) -> None:
    extra = (tuple(query.split("=")),) if query else ()
    uri = DataUri.parse(str(URI.replace(extra=extra)))
    if changes:
        uri = uri.replace(stream=type(uri.stream)(changes["stream"]))
    made = UcxListener(uri, ListenOptions(map_file=(lambda file: None) if maps else None))
    assert (made.uri.remote_handle is not None) is offers
    assert len(made.request_tags) == 1 + offers
    world.events.connection_requests.append("a")
    channel: Any = made.accept()
    assert channel.options["offers_remote_bodies"] is offers
    assert (channel.options["map_file"] is not None) is maps
    made.close()


def test_users_with_other_settings_get_no_remote_bodies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "has_peer_settings", lambda: False)
    made = UcxListener(URI, ListenOptions(map_file=lambda file: None))
    assert made.uri.remote_handle is None
    made.close()


def test_the_remote_handle_of_the_address_is_kept(world: World) -> None:
    options = ListenOptions(map_file=lambda file: None)
    made = UcxListener(URI.replace(remote_handle=b"12345678"), options)
    assert made.uri.remote_handle == b"12345678"
    made.close()
    made = UcxListener(URI.replace(want_data=None), options)
    assert made.uri.remote_handle is not None
    assert made.uri.remote_handle[-2:] == b"\xff\xff"
    made.close()
    with pytest.raises(UriError, match="7 bytes"):
        UcxListener(URI.replace(remote_handle=b"1234567"), ListenOptions())


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (TransportError("no worker"), "127.0.0.1:0: no worker"),
        (OSError(errno.EMFILE, "Too many open files"), "127.0.0.1:0: Too many open files"),
        (OSError("odd"), "127.0.0.1:0: odd"),
        (ValueError("strange"), "127.0.0.1:0: strange"),
    ],
)
def test_a_listener_without_a_worker_is_an_error(
    world: World, failure: Exception, why: str
) -> None:
    world.failures = [failure]
    with pytest.raises(ConfigError, match=f"cannot listen on ucx://{why}"):
        UcxListener(URI, ListenOptions())


@pytest.mark.parametrize(
    ("step", "calls"),
    [("create", ["destroy 0"]), ("query", [("destroy listener", 4096), "destroy 0"])],
)
def test_a_listener_that_cannot_bind_frees_everything(
    world: World, step: str, calls: list[Any]
) -> None:
    world.statuses[step] = FAILED
    with pytest.raises(ConfigError, match="out of memory"):
        UcxListener(URI, ListenOptions())
    assert world.calls == calls


# Clients.


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_clients_are_accepted_in_their_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reaches = {"10.1.2.3": Reach.HOST, "10.9.9.9": Reach.NETWORK}
    monkeypatch.setattr(transport, "find_reach", reaches.__getitem__)
    limits = Limits(metadata_bytes=777)
    uri = URI.replace(host="0.0.0.0", extra=(("busy_poll", "200"),))
    made = UcxListener(uri, ListenOptions(limits=limits))
    assert made.accept() is None
    assert not is_readable(made.fileno())
    world.events.connection_requests.extend(["a", "b"])
    first: Any = made.accept()
    world.client = ("10.9.9.9", 1)
    second: Any = made.accept()
    assert made.accept() is None
    assert [each.link.endpoint for each in (first, second)] == ["endpoint of a", "endpoint of b"]
    assert [each.link.peer for each in (first, second)] == ["10.1.2.3:4321", "10.9.9.9:1"]
    assert [each.link.reach for each in (first, second)] == list(reaches.values())
    assert (first.link.spin_seconds, first.limits) == (2e-4, limits)
    assert first.link.worker is world.workers[1]
    assert [(each.limit, each.options) for each in world.workers[1:]] == [
        (777, {"reach": reach}) for reach in reaches.values()
    ]
    known = world.checked[-1]
    assert dict(known) == {
        make_address("10.1.2.3", 4321): first,
        make_address("10.9.9.9", 1): second,
    }
    assert world.calls == []
    made.close()


def test_a_client_without_an_address_is_accepted(world: World) -> None:
    made = UcxListener(URI, ListenOptions())
    world.statuses["client"] = FAILED
    world.events.connection_requests.append("a")
    channel: Any = made.accept()
    assert (channel.link.peer, channel.link.reach) == ("?:0", Reach.NETWORK)
    assert len(world.checked[-1]) == 0
    made.close()


def test_a_client_that_has_left_is_skipped(world: World) -> None:
    made = UcxListener(URI, ListenOptions())
    world.events.connection_requests.extend(["gone", "b"])
    world.statuses["gone"] = FAILED
    channel: Any = made.accept()
    assert channel.link.endpoint == "endpoint of b"
    assert world.calls == ["destroy 1"]
    made.close()


@pytest.mark.parametrize(
    ("failure", "number"),
    [
        (TransportError("few descriptors"), errno.ENOBUFS),
        (OSError(errno.EMFILE, "x"), errno.EMFILE),
    ],
)
def test_a_client_is_turned_away_without_a_worker(
    world: World, failure: Exception, number: int
) -> None:
    made = UcxListener(URI, ListenOptions())
    world.events.connection_requests.append("a")
    world.failures = [failure]
    with pytest.raises(OSError, match=r"few descriptors|x") as caught:
        made.accept()
    assert caught.value.errno == number
    assert world.calls == ["reject a"]
    made.close()


def test_a_client_is_turned_away_without_a_channel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Channel, "failure", OSError(errno.EMFILE, "Too many open files"))
    made = UcxListener(URI, ListenOptions())
    world.events.connection_requests.append("a")
    with pytest.raises(OSError, match="Too many open files"):
        made.accept()
    assert world.calls == [("close", "endpoint of a"), "destroy 1"]
    made.close()


def test_waiting_clients_are_rejected(world: World) -> None:
    made = UcxListener(URI, ListenOptions())
    assert made.reject() is False
    world.events.connection_requests.extend(["a", "b", "c"])
    assert made.reject() is True
    assert world.calls == ["reject a"]
    made.close()
    assert world.calls[1:] == [
        *("close guard", "reject b", "reject c", ("destroy listener", 4096), "destroy 0"),
    ]


def test_a_listener_works_until_it_can_wait(world: World) -> None:
    made = UcxListener(URI, ListenOptions())
    world.progressed, world.work, world.can_wait = 0, 2, [False, True]
    pauses: list[bool] = []
    delays: list[int] = []
    wakeup: Any = made._wakeup
    wakeup.reset_pause, wakeup.set, set_ = lambda: pauses.append(True), delays.append, wakeup.set
    assert made.accept() is None
    assert (world.progressed, len(pauses)) == (4, 2)
    assert delays == [2_500_000_001]  # until the guard checks the port again
    world.workers[0].arm_for = lambda wakeup: set_(1) or True
    assert made.accept() is None
    assert len(delays) == 1  # a shorter pause stays
    made.close()


def test_a_client_that_arrives_meanwhile_is_accepted(world: World) -> None:
    made = UcxListener(URI, ListenOptions())
    requests = world.events.connection_requests
    world.workers[0].progress = lambda: requests.append("late") if not requests else True
    assert made.reject() is True
    assert world.calls == ["reject late"]
    made.close()
