"""A daemon with few descriptors: a flood of one listener leaves the others working."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import kill
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.errors import ExhaustedError, TransportError
from splitarrow.protocol.uri import DataUri
from splitarrow.testing import Daemon

DESCRIPTORS = 256
CLIENTS = 300
LISTEN = ["tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a time limit for handshakes of 1 s."""
    path = write_file(tmp_path_factory.mktemp("data") / "a.arrow", pa.table({"n": range(1000)}))
    control = "grpc://127.0.0.1:0"
    server = Daemon({"a": path}, listen=LISTEN, control=control, handshake_seconds=1)
    try:
        server.start(wait=False)
        # Python takes longer to start than this call.
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        server.wait_ready()
        yield server
    finally:
        kill(server)


@pytest.fixture
def flood() -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        stack.callback(lambda: [each.close() for each in sockets])
        yield sockets


def connect_all(sockets: list[socket.socket], family: int, address: object) -> None:
    """Connect many clients that say nothing."""
    for _ in range(CLIENTS):
        client = socket.socket(family)
        client.settimeout(1)
        sockets.append(client)
        with suppress(OSError):  # the backlog is full, or the server has closed it
            client.connect(address)  # type: ignore[arg-type]


def serves(daemon: Daemon, scheme: str) -> bool:
    """Return whether a reader gets the dataset over a transport."""
    try:
        if scheme == "flight":
            with splitarrow.connect(daemon.control_uri, connect_timeout=2) as client:
                return client.read("a", transport="flight").read_all().num_rows == 1000
        with splitarrow.open(daemon.uri("a", scheme), connect_timeout=5, stall_timeout=5) as stream:
            return stream.read_all().num_rows == 1000
    except (TransportError, ExhaustedError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("flooded", ["tcp", "shm", "ucx", "flight"])
def test_a_flood_of_one_listener_leaves_the_others_working(
    daemon: Daemon, flood: list[socket.socket], flooded: str
) -> None:
    address = DataUri.parse(daemon.control_uri if flooded == "flight" else daemon.uri("a", flooded))
    if flooded == "shm":
        connect_all(flood, socket.AF_UNIX, address.path)
    else:
        connect_all(flood, socket.AF_INET, (address.host, address.port))
    others = {"tcp", "shm", "ucx", "flight"} - {flooded}
    if flooded in ("tcp", "shm"):
        assert {scheme for scheme in others if serves(daemon, scheme)} == others
    else:  # A library accepts the clients. Those that are too many are disconnected soon.
        for scheme in others:
            wait_until(lambda scheme=scheme: serves(daemon, scheme), scheme)
    # The flooded one recovers while the clients stay, because they say nothing.
    wait_until(lambda: serves(daemon, flooded), f"{flooded} to serve again")
    assert len(os.listdir(f"/proc/{daemon.pid}/fd")) < DESCRIPTORS
    # Each read that `serves` begins in vain is a line of its own.
    lines = [line for line in daemon.log().splitlines() if '"dataset"' not in line]
    assert sum(map(len, lines)) < 20_000
