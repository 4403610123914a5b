"""A daemon that drains finishes the reads of several parts that have begun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file, write_shards
from helpers.waiting import wait_until
from splitarrow.errors import SplitArrowError, TransportError, UnavailableError
from splitarrow.server.reads import LINGER_SECONDS
from splitarrow.testing import Daemon

PARTS = 6
ROWS = 1000
CONTROL = "grpc://127.0.0.1:0"
EXIT_SECONDS = 15.0
"""The longest time of an exit that waits for nothing: less than the default of `drain_seconds`."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of several small parts, which a server sends at once."""
    folder = tmp_path / "parts"
    starts = range(0, PARTS * ROWS, ROWS)
    write_shards(folder, [pa.table({"n": range(first, first + ROWS)}) for first in starts])
    return folder


def row_numbers(batches: list[pa.RecordBatch]) -> list[int | None]:
    return [n for batch in batches for n in batch["n"].to_pylist()]


ALL_ROWS = list(range(PARTS * ROWS))


def start(daemon: StartDaemon, folder: Path, **options: object) -> Daemon:
    return daemon({"d": folder}, control=CONTROL, **options)


def wait_draining(running: Daemon) -> None:
    """Wait until a daemon refuses new reads."""

    def refuses() -> bool:
        try:
            with splitarrow.connect(running.control_uri, connect_timeout=1.0):
                return False
        except (UnavailableError, TransportError):
            return True

    wait_until(refuses, "a refusal")


@pytest.mark.parametrize(
    ("transport", "workers"),
    [
        ("tcp", 1),
        ("tcp", 2),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("shm", "flight")),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("shm", "flight")),
    ],
)
def test_a_read_that_has_begun_gets_all_its_parts(
    daemon: StartDaemon, folder: Path, tmp_path: Path, transport: str, workers: int
) -> None:
    listen = ["tcp://127.0.0.1:0", f"shm://{tmp_path}/socket"]
    running = start(daemon, folder, listen=listen, workers=workers)
    with splitarrow.connect(running.control_uri) as client:
        with client.read("d", parallel=1, transport=transport, resume_attempts=0) as stream:
            batches = [next(stream)]
            running.send_signal()
            wait_draining(running)
            # All parts that were requested have been sent: only the hold keeps the server.
            time.sleep(LINGER_SECONDS + 0.5)
            assert running.is_running
            batches += stream
        assert row_numbers(batches) == ALL_ROWS
    assert running.wait(timeout=EXIT_SECONDS) == 0


def test_signed_tickets_and_limits_work_the_same(
    daemon: StartDaemon, folder: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(os.urandom(32).hex() + "\n")
    keys.chmod(0o600)
    running = start(daemon, folder, ticket_key_file=keys)
    with splitarrow.connect(running.control_uri) as client:
        with client.read("d", parallel=1, resume_attempts=0) as stream:
            batches = [next(stream)]
            running.send_signal()
            wait_draining(running)
            batches += stream
        assert row_numbers(batches) == ALL_ROWS
    assert running.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_new_reads_are_refused_meanwhile(daemon: StartDaemon, folder: Path, workers: int) -> None:
    running = start(daemon, folder, workers=workers)
    plain = running.uri("d")
    with (
        splitarrow.connect(running.control_uri) as client,
        client.read("d", parallel=1) as stream,
    ):
        next(stream)
        running.send_signal()
        wait_draining(running)
        with pytest.raises(UnavailableError, match="draining"):
            client.read("d")
        with pytest.raises(UnavailableError, match="draining"):
            client.datasets()
        with pytest.raises(UnavailableError, match="draining"):
            splitarrow.open(plain)
        assert sum(batch.num_rows for batch in stream) == (PARTS - 1) * ROWS
    assert running.wait() == 0


@pytest.mark.parametrize("end", ["close", "exhaust", "limit"])
def test_a_read_that_has_ended_does_not_delay_the_exit(
    daemon: StartDaemon, folder: Path, end: str
) -> None:
    running = start(daemon, folder, drain_seconds=60)
    with splitarrow.connect(running.control_uri) as client:
        limit = ROWS + 1 if end == "limit" else None
        stream = client.read("d", parallel=1, limit=limit, shards=range(PARTS))
        next(stream)
        if end == "close":
            stream.close()
        else:
            list(stream)
        started = time.monotonic()
        running.send_signal()
        assert running.wait() == 0
        assert time.monotonic() - started < 30


READ_AND_HANG = """
import sys, time, splitarrow
client = splitarrow.connect(sys.argv[1])
stream = client.read("d", parallel=1)
next(stream)
print("reading", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_reader_does_not_delay_the_exit(daemon: StartDaemon, folder: Path) -> None:
    running = start(daemon, folder, drain_seconds=60)
    command = [sys.executable, "-c", READ_AND_HANG, running.control_uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        running.send_signal()
        wait_draining(running)
        assert running.is_running
        reader.kill()
        started = time.monotonic()
        assert running.wait() == 0
        assert time.monotonic() - started < 30


def test_drain_seconds_bound_a_read_that_does_not_end(daemon: StartDaemon, folder: Path) -> None:
    running = start(daemon, folder, drain_seconds=0.5)
    with (
        splitarrow.connect(running.control_uri) as client,
        client.read("d", parallel=1, resume_attempts=0) as stream,
    ):
        next(stream)
        running.send_signal()
        assert running.wait() == 0
        with pytest.raises((TransportError, UnavailableError)):
            list(stream)


def test_a_stock_flight_client_gets_all_its_parts(daemon: StartDaemon, folder: Path) -> None:
    running = start(daemon, folder)
    with flight.connect(running.control_uri.replace("grpc", "grpc+tcp")) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("d"))
        assert len(info.endpoints) == PARTS
        rows: list[int | None] = []
        for number, endpoint in enumerate(info.endpoints):
            if number == 1:
                running.send_signal()
            rows += client.do_get(endpoint.ticket).read_all()["n"].to_pylist()
        assert rows == ALL_ROWS
    assert running.wait() == 0


def test_a_read_moves_to_a_replica_when_the_drain_ends(
    daemon: StartDaemon, folder: Path, tmp_path: Path
) -> None:
    one, two = (start(daemon, folder, drain_seconds=0.2) for _ in range(2))
    with (
        splitarrow.connect([one.control_uri, two.control_uri]) as client,
        client.read("d", parallel=1) as stream,
    ):
        batches = [next(stream)]
        for _ in range(PARTS - 1):
            if len(batches) == 2:
                one.send_signal()
                assert one.wait() == 0
            batches.append(next(stream))
        assert row_numbers(batches) == ALL_ROWS
        assert next(stream, None) is None


class Link:
    """A port that forwards to another one. While it is held, its client receives nothing."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.flows = threading.Event()
        self.flows.set()

    def run(self) -> None:
        """Serve one client to its end."""
        client, _ = self._listener.accept()
        with self._listener, client, socket.socket() as server, ThreadPoolExecutor(1) as threads:
            # So that the kernel at the server keeps what the client does not receive.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            server.connect(("127.0.0.1", self._server_port))
            threads.submit(forward, client, server)
            forward(server, client, self.flows)


def forward(
    source: socket.socket, target: socket.socket, flows: threading.Event | None = None
) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if flows is not None:
                flows.wait()
            target.sendall(data)
    for sock in (source, target):
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
def test_what_a_flight_client_has_not_received_yet_still_arrives(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    table = pa.table({"n": range(7500)})
    running = start(daemon, write_file(tmp_path / "d.arrow", table.to_batches()))
    link = Link(int(running.control_uri.rpartition(":")[2]))
    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        stack.callback(link.flows.set)
        threads.submit(link.run)
        with flight.connect(f"grpc+tcp://127.0.0.1:{link.port}") as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path("d"))
            link.flows.clear()
            read = threads.submit(lambda: client.do_get(info.endpoints[0].ticket).read_all())
            with splitarrow.connect(running.control_uri) as other:

                def is_sent() -> bool:
                    stats = other.status()["stats"]
                    return stats["streams_total"] == 1 and not stats["streams"]

                wait_until(is_sent, "the end of the stream")
            running.send_signal()
            with pytest.raises(SplitArrowError, match="did not exit"):
                running.wait(3.0)
            link.flows.set()
            assert read.result() == table
    assert running.wait() == 0
