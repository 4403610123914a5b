"""The emulated link itself, against plain sockets."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.waiting import wait_until
from network.link import CLIENT, DEAD, SERVER, SERVER_V6, Link

pytestmark = pytest.mark.network_short

PORT = 7000


class EchoServer:
    """Echoes what each connection sends, after `pause` seconds."""

    def __init__(self, link: Link, address: str = SERVER) -> None:
        self.pause = 0.0
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with link.inside("server"):
            self._listener = socket.create_server((address, PORT), family=family)
        self._link, self._address = link, address
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def connect(self, timeout: float = 10.0) -> socket.socket:
        """Connect from the client's namespace."""
        with self._link.inside("client"):
            found = socket.create_connection((self._address, PORT), timeout)
        self._sockets.append(found)
        return found

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(peer)
            self._threads.append(threading.Thread(target=self._echo, args=(peer,)))
            self._threads[-1].start()

    def _echo(self, peer: socket.socket) -> None:
        try:
            while data := peer.recv(1 << 16):
                time.sleep(self.pause)
                peer.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was not connected any more
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


@pytest.fixture
def echo(link: Link) -> Iterator[EchoServer]:
    server = EchoServer(link)
    yield server
    server.close()


def ask(connection: socket.socket, question: bytes = b"?" * 50) -> bytes:
    connection.sendall(question)
    answer = b""
    while len(answer) < len(question):
        answer += connection.recv(1 << 16)
    return answer


@pytest.mark.parametrize("delay_ms", [20, 100])
def test_a_round_trip_takes_the_delay(link: Link, echo: EchoServer, delay_ms: float) -> None:
    link.set(delay_ms=delay_ms)
    connection = echo.connect()
    times: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        ask(connection)
        times.append(time.perf_counter() - begin)
    assert delay_ms / 1e3 <= min(times) < delay_ms / 1e3 + 0.05


@pytest.mark.parametrize("pause", [0.0, 0.15])
def test_round_trips_count_dependencies_and_no_pauses(
    link: Link, echo: EchoServer, pause: float
) -> None:
    link.set(delay_ms=40)
    echo.pause = pause
    with link.capture() as capture:
        connection = echo.connect()
        ask(connection)
        ask(connection)
        middle = time.monotonic()
        ask(connection)
    assert capture.round_trips() == 4
    assert capture.round_trips(begin=middle) == 1
    assert capture.connections() == 1
    assert capture.connections(begin=middle) == 0
    assert capture.payload() == capture.payload(to_client=False) == 150


def test_the_rate_limits_each_direction(link: Link, echo: EchoServer) -> None:
    link.set(rate_mbit=40, queue_bytes=1 << 20)
    connection = echo.connect()
    data = random.Random(1).randbytes(2_000_000)
    sender = threading.Thread(target=connection.sendall, args=(data,))
    begin = time.perf_counter()
    sender.start()
    received = bytearray()
    while len(received) < len(data):
        received += connection.recv(1 << 16)
    seconds = time.perf_counter() - begin
    sender.join()
    assert received == data
    # 0.4 s in each direction, of which almost all is at the same time.
    assert 0.4 <= seconds < 2


@pytest.mark.parametrize("address", [SERVER, SERVER_V6])
def test_tcp_survives_random_loss(link: Link, address: str) -> None:
    """Segments that the kernel passes together are lost one by one."""
    server = EchoServer(link, address)
    link.set(delay_ms=4, loss=0.02)
    try:
        connection = server.connect()
        data = random.Random(1).randbytes(1_000_000)
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        received = bytearray()
        while len(received) < len(data):
            received += connection.recv(1 << 16)
        sender.join()
    finally:
        server.close()
    assert received == data
    stats = link.stats()
    assert min(stats.to_server.lost, stats.to_client.lost) > 3
    assert stats.to_client.packets > 690, "segments count, not what the kernel passes at once"


def send_datagrams(link: Link, count: int, size: int) -> None:
    with link.inside("client"), socket.socket(type=socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(bytes(size), (SERVER, PORT))


def test_the_share_of_lost_packets(link: Link) -> None:
    link.seed(7)
    link.set(loss=0.1, rate_mbit=0)
    send_datagrams(link, 4000, 100)
    wait_until(lambda: sum(link.stats().to_server[i] for i in (0, 3)) >= 4000, "all packets")
    assert 300 < link.stats().to_server.lost < 500


def test_the_queue_is_bounded(link: Link) -> None:
    link.set(rate_mbit=1, queue_bytes=20_000)
    send_datagrams(link, 100, 972)  # 1,000 bytes each
    wait_until(lambda: sum(link.stats().to_server[i] for i in (0, 4)) >= 100, "all packets")
    assert 20 <= link.stats().to_server.packets < 60
    assert link.stats().to_server.overflowed > 40


@pytest.mark.parametrize(
    ("hole", "arrives", "returns"),
    [("to server", False, False), ("to client", True, False), ("both", False, False)],
)
def test_a_black_hole(
    link: Link, echo: EchoServer, hole: str, arrives: bool, returns: bool
) -> None:
    connection = echo.connect()
    ask(connection)
    before = link.stats()
    link.set(hole=hole)
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        ask(connection)
    after = link.stats()
    assert (after.to_server.payload > before.to_server.payload) is arrives
    assert (after.to_client.payload > before.to_client.payload) is returns
    link.set(hole="none")
    connection.settimeout(10)
    assert connection.recv(1) == b"?", "TCP sends again what was lost"


def test_larger_packets_than_the_path_permits_vanish(link: Link, echo: EchoServer) -> None:
    connection = echo.connect()
    link.set(path_mtu=1000)
    assert ask(connection, bytes(500)) == bytes(500)
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        ask(connection, bytes(5000))
    assert link.stats().to_server.oversized > 0
    assert ask(echo.connect(), b"small") == b"small"


def test_forgotten_connections_are_dead_and_new_ones_live(link: Link, echo: EchoServer) -> None:
    connection = echo.connect()
    ask(connection)
    link.forget_connections()
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        ask(connection)
    assert link.stats().to_server.forgotten > 0
    later = echo.connect()
    assert ask(later)
    link.forget_connections()
    later.settimeout(0.3)
    with pytest.raises(TimeoutError):
        ask(later)


def test_nothing_answers_at_a_dead_address(link: Link, echo: EchoServer) -> None:
    with link.inside("client"), pytest.raises(TimeoutError):
        socket.create_connection((DEAD, PORT), timeout=0.3)


def test_congestion_control_and_names(link: Link, echo: EchoServer) -> None:
    link.set_congestion_control("cubic")
    connection = echo.connect()
    assert connection.getsockname()[0] == CLIENT
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert name.rstrip(b"\0") == b"cubic"
    python = link.python(hosts={"several.test": [DEAD, SERVER]})
    found = python.value(
        "import socket\n[each[4][0] for each in socket.getaddrinfo('several.test', 1, type=1)]"
    )
    assert set(found) == {DEAD, SERVER}
    outcome = python("1 / 0")
    assert outcome.error == "ZeroDivisionError"


def test_a_link_ends_with_the_process_that_made_it() -> None:
    code = (
        "from network.link import Link\n"
        "with Link() as link:\n"
        "    sleep = link.popen('server', ['cat'], stdin=-1)\n"
        "    print(link._emulator.pid, sleep.pid, flush=True)\n"
        "    input()\n"
    )
    tests = str(Path(__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": tests},
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        if not pids:
            pytest.skip("this machine cannot emulate a link")
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the end of the link")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
