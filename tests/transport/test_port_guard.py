"""The guard of a port whose connections a library accepts."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from helpers.clock import Clock
from splitarrow.transport import port_guard
from splitarrow.transport.port_guard import PortGuard, make_address


class Port:
    """A port with connections that nobody looks after."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.number = self.listener.getsockname()[1]
        self.clients: list[socket.socket] = []
        self.servers: list[socket.socket] = []

    def connect(self) -> tuple[bytes, int]:
        """Add a connection, and return the address of its client."""
        self.clients.append(socket.create_connection(("127.0.0.1", self.number)))
        self.servers.append(self.listener.accept()[0])
        return make_address(*self.clients[-1].getsockname())

    @property
    def open(self) -> list[bool]:
        """Whether each client is still connected."""
        return [not self._has_ended(client) for client in self.clients]

    @staticmethod
    def _has_ended(client: socket.socket) -> bool:
        client.setblocking(False)
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    for sock in (port.listener, *port.clients, *port.servers):
        sock.close()


def test_silent_peers_are_disconnected_in_time_and_accepted_ones_are_not(port: Port) -> None:
    clock = Clock()
    guard = PortGuard(port.number, handshake_seconds=10, clock=clock)
    accepted = {port.connect()}
    port.connect()
    assert guard.check_if_due(accepted) == 0
    clock.now += 6
    port.connect()
    assert guard.check_if_due(accepted) == 0
    clock.now += 4
    assert guard.check_if_due(accepted) == 1
    assert port.open == [True, False, True]
    port.servers[1].close()  # as a library does when its peer has left
    clock.now += 6
    assert guard.check_if_due(accepted) == 1
    assert port.open == [True, False, False]
    guard.close()


def test_a_descriptor_that_is_closed_meanwhile_is_no_connection(port: Port) -> None:
    guard = PortGuard(port.number, handshake_seconds=10, clock=Clock())
    port.connect()
    descriptor = port.servers[0].fileno()
    assert guard._peer(descriptor) == make_address(*port.clients[0].getsockname())
    port.servers[0].close()
    assert guard._peer(descriptor) is None
    guard.close()


def test_a_descriptor_that_is_closed_meanwhile_is_not_disconnected(port: Port) -> None:
    guard = PortGuard(port.number, handshake_seconds=10, clock=Clock())
    connection = port_guard._Connection(1 << 20, 1, port.connect())
    guard._disconnect(connection)
    assert port.open == [True]
    guard.close()


def test_its_descriptors_are_not_inherited(port: Port) -> None:
    guard = PortGuard(port.number, handshake_seconds=10, clock=Clock())
    port.connect()
    for _ in range(2):
        guard.check_if_due(set())
        assert not os.get_inheritable(guard._slot)
        duplicate = guard._duplicate(port.servers[0].fileno())
        assert duplicate is not None
        assert not os.get_inheritable(guard._slot)
        guard._release(duplicate)
    guard.close()


def test_too_many_peers_are_disconnected(port: Port) -> None:
    clock = Clock()
    guard = PortGuard(port.number, max_connections=2, clock=clock)
    for _ in range(2):
        port.connect()
        port.connect()
        clock.now += 1
        guard.check_if_due()
    assert port.open == [False, False, True, True]
    guard.close()


def _fill_descriptors() -> Iterator[socket.socket]:
    try:
        while True:
            yield socket.socket()
    except OSError as error:
        assert error.errno == errno.EMFILE  # noqa: PT017


def test_it_works_without_free_descriptors(port: Port) -> None:
    clock = Clock()
    guard = PortGuard(port.number, handshake_seconds=1, clock=clock)
    port.connect()
    guard.check_if_due()
    clock.now += 1
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(sock.fileno() for sock in (*port.clients, *port.servers))
    try:
        # Every number below the limit is in use, or is taken here.
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        fillers = list(_fill_descriptors())
        assert guard.check_if_due() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for filler in fillers:
        filler.close()
    assert port.open == [False]
    guard.close()


def test_a_check_is_due_in_a_quarter_of_a_second(port: Port) -> None:
    clock = Clock()
    guard = PortGuard(port.number, handshake_seconds=10, clock=clock)
    assert guard.seconds_to_check == 0
    guard.check_if_due()
    assert guard.seconds_to_check == 0.25
    guard.close()
    guard.close()


def test_a_flooded_port_admits_fewer_clients_until_it_is_calm(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def record(listener: socket.socket, share: float) -> None:
        assert listener.getsockname()[1] == port.number
        shares.append(share)

    monkeypatch.setattr(port_guard, "set_admitted_share", record)
    clock = Clock()
    guard = PortGuard(port.number, max_connections=1, clock=clock)
    for _ in range(3):
        port.connect()
    assert guard.check_if_due() == 2
    assert guard.seconds_to_check == pytest.approx(0.1)
    clock.now += 1
    assert guard.check_if_due() == 2  # the library has not closed them yet
    for sock in (*port.clients, *port.servers):
        sock.close()
    while shares[-1] < 1:
        clock.now += 1
        guard.check_if_due()
    assert shares[:4] == [0.25, 0.0625, 0.078125, 0.09765625]
    assert guard.seconds_to_check == pytest.approx(0.25)
    guard.close()


@pytest.mark.parametrize(
    ("handshake_seconds", "pause"),
    [(None, 0.25), (10, 0.25), (1, 0.25), (0.8, 0.2), (0.2, 0.05), (0.1, 0.05)],
)
def test_a_short_time_for_handshakes_is_checked_more_often(
    port: Port, handshake_seconds: float | None, pause: float
) -> None:
    guard = PortGuard(port.number, handshake_seconds=handshake_seconds, clock=Clock())
    guard.check_if_due()
    assert guard.seconds_to_check == pytest.approx(pause)
    guard.close()


def test_checks_take_a_fiftieth_of_the_time_at_most(port: Port) -> None:
    class Slow(Clock):
        """A clock that goes on while a check runs."""

        def __call__(self) -> float:
            self.now += 0.5
            return self.now

    clock = Slow(100.0)
    guard = PortGuard(port.number, clock=clock)
    guard.check_if_due()
    first = guard._next_check - clock.now
    assert first >= 50 * 0.5 - 1
    assert guard.check_if_due() == 0
    assert guard._next_check - clock.now == first - 0.5  # it was not due
    guard.close()


def test_a_check_that_is_not_due_changes_nothing(port: Port) -> None:
    clock = Clock()
    guard = PortGuard(port.number, max_connections=0, clock=clock)
    guard.check_if_due()
    port.connect()
    clock.now += 0.125
    assert (guard.check_if_due(), port.open) == (0, [True])
    assert guard.seconds_to_check == 0.125
    clock.now += 0.125
    assert (guard.check_if_due(), port.open) == (1, [False])
    clock.now += 100
    assert guard.seconds_to_check == 0
    guard.close()


def test_the_share_of_a_flooded_port_has_a_least_value(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(port_guard, "set_admitted_share", lambda _, share: shares.append(share))
    clock = Clock()
    guard = PortGuard(port.number, max_connections=0, clock=clock)
    guard.check_if_due()
    assert shares == []  # nothing changes in the calm
    port.connect()
    for _ in range(8):
        clock.now += 1
        assert guard.check_if_due() == 1
    assert shares == [4.0**-n for n in range(1, 7)]
    guard.close()


def test_a_port_without_limits_is_left_alone(port: Port) -> None:
    clock = Clock()
    guard = PortGuard(port.number, clock=clock)
    for _ in range(3):
        port.connect()
        clock.now += 1000
        assert guard.check_if_due() == 0
    assert port.open == [True] * 3
    guard.close()


def test_a_filter_is_set_on_the_listener_and_not_on_its_successor(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(port_guard, "set_admitted_share", lambda _, share: shares.append(share))
    clock = Clock()
    guard = PortGuard(port.number, max_connections=0, clock=clock)
    port.connect()
    descriptor = port.listener.detach()
    try:
        with socket.socket() as other:
            assert guard.check_if_due() == 1
            assert shares == [0.25]
            os.dup2(other.fileno(), descriptor, inheritable=False)
            clock.now += 1
            guard.check_if_due()
            assert shares == [0.25]
    finally:
        os.close(descriptor)
    clock.now += 1
    guard.check_if_due()  # there is no such descriptor any more
    guard.close()


def test_a_kernel_without_filters_is_no_error(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(listener: socket.socket, share: float) -> None:
        raise OSError(errno.ENOPROTOOPT, "no filters")

    monkeypatch.setattr(port_guard, "set_admitted_share", refuse)
    guard = PortGuard(port.number, max_connections=0, clock=Clock())
    port.connect()
    assert guard.check_if_due() == 1
    guard.close()


def test_other_sockets_are_examined_once(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    guard = PortGuard(port.number, clock=clock)
    examined: list[int] = []
    original = guard._peer

    def examine(descriptor: int) -> Any:
        examined.append(descriptor)
        return original(descriptor)

    monkeypatch.setattr(guard, "_peer", examine)
    port.connect()
    pipe = os.pipe()
    mine, others = port.servers[0].fileno(), {port.clients[0].fileno(), port.listener.fileno()}
    guard.check_if_due()
    assert {mine, *others} <= set(examined)
    assert not {*pipe, guard._slot, guard._null} & set(examined)
    assert len(set(examined)) == len(examined)
    del examined[:]
    clock.now += 1
    guard.check_if_due()
    assert examined == [mine]
    for descriptor in pipe:
        os.close(descriptor)
    guard.close()


def test_a_descriptor_that_another_socket_has_now_is_not_disconnected(port: Port) -> None:
    guard = PortGuard(port.number, clock=Clock())
    peer = port.connect()
    descriptor = port.servers[0].fileno()
    inode = os.fstat(descriptor).st_ino
    guard._disconnect(port_guard._Connection(descriptor, inode + 1, peer))
    assert port.open == [True]
    guard._disconnect(port_guard._Connection(descriptor, inode, peer))
    assert port.open == [False]
    guard.close()


def fill(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16))


def drain(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        while sock.recv(1 << 16):
            pass


def test_a_guard_has_two_descriptors_and_returns_them(port: Port) -> None:
    guard = PortGuard(port.number, clock=Clock())
    own = [Path(f"/proc/self/fd/{each}") for each in (guard._slot, guard._null)]
    assert [each.exists() for each in own] == [True, True]
    port.connect()
    guard.check_if_due()
    guard.close()
    assert (guard._slot, guard._null) == (-1, -1)
    assert [each.exists() for each in own] == [False, False]


@pytest.mark.parametrize(
    ("host", "other", "equal"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("127.0.0.1", "127.0.0.2", False),
    ],
)
def test_an_address_is_equal_however_it_is_written(host: str, other: str, equal: bool) -> None:
    assert (make_address(host, 7) == make_address(other, 7)) == equal
    assert make_address(host, 7) != make_address(host, 8)


def test_connections_inherit_the_detection_of_hosts_that_are_gone(port: Port) -> None:
    guard = PortGuard(port.number, keeps_alive=True)
    guard.check_if_due()
    port.connect()
    (server,) = port.servers
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    idle, interval, count, silence = (
        server.getsockopt(socket.IPPROTO_TCP, option) for option in port_guard._KEEP_ALIVE
    )
    assert idle + interval * count < 60
    assert silence < 60_000
    guard.close()
