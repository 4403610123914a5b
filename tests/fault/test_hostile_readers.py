"""Hostile readers in processes of their own: the daemon goes on to serve others, within bounds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import kill
from helpers.files import write_file
from helpers.pki import Pki
from helpers.waiting import wait_until
from splitarrow.protocol.uri import DataUri
from splitarrow.testing import Daemon

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
LISTEN = ["tcp://127.0.0.1:0", "shm://", "tcp+tls://127.0.0.1:0", "ucx://127.0.0.1:0"]
TABLE = pa.table({"n": range(200_000)})
ROWS = 10_000
"""In a batch."""
MORE_MEBIBYTES = 200
"""How much an attack may enlarge the daemon."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("data")
    pki = Pki(folder)
    path = write_file(folder / "a.arrow", TABLE.to_batches(max_chunksize=ROWS))
    server = Daemon(
        {"a": path},
        listen=LISTEN,
        control="grpc+tls://127.0.0.1:0",
        tls_cert=pki.path("server-cert"),
        tls_key=pki.path("server-key"),
        environment={"SPLITARROW_TLS_CA": str(pki.path("ca"))},
        handshake_seconds=1,
        max_leased="4MiB",
        lease_seconds=0.5,
    )
    try:
        server.start()
        yield server
    finally:
        kill(server)


@contextmanager
def attacking(name: str, uri: str) -> Generator[None]:
    """Run an attack, and keep its process until the end of the context."""
    command = [sys.executable, "-m", "helpers.hostile_reader", name, uri]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "done\n"
            yield
        finally:
            process.kill()


@contextmanager
def unharmed(daemon: Daemon, scheme: str) -> Generator[None]:
    """Check that a second client reads as before, and that the daemon has not grown."""

    def read() -> None:
        with splitarrow.open(daemon.uri("a", scheme), connect_timeout=30) as stream:
            assert stream.read_all() == TABLE

    read()
    process = psutil.Process(daemon.pid)
    before = process.memory_info().rss
    yield
    read()
    assert process.memory_info().rss - before < MORE_MEBIBYTES << 20
    assert "Traceback" not in daemon.log()


def test_leases_of_others_cannot_be_freed(daemon: Daemon) -> None:
    with splitarrow.open(daemon.uri("a", "shm")) as stream, unharmed(daemon, "tcp"):
        batches = [next(stream)]
        with attacking("free_foreign_leases", daemon.uri("a", "shm")):
            batches += stream
    assert pa.Table.from_batches(batches) == TABLE


def test_hoarded_leases_end_with_their_process(daemon: Daemon) -> None:
    with (
        unharmed(daemon, "tcp"),
        attacking("hoard_leases", daemon.uri("a", "shm")),
        splitarrow.open(daemon.uri("a", "tcp")) as stream,
    ):
        assert stream.read_all() == TABLE

    def is_served() -> bool:
        try:
            with splitarrow.open(daemon.uri("a", "shm")) as stream:
                return sum(batch.num_rows for batch in stream) == TABLE.num_rows
        except splitarrow.errors.ExhaustedError:
            return False

    wait_until(is_served, "the end of the leases")


@pytest.mark.parametrize("scheme", ["tcp+tls", "grpc+tls"])
@pytest.mark.long
def test_malformed_records_of_tls_end_their_connection(daemon: Daemon, scheme: str) -> None:
    uri = daemon.control_uri if scheme == "grpc+tls" else daemon.uri("a", scheme)
    with unharmed(daemon, "tcp"), attacking("send_tls_records", uri):
        pass


def test_noise_at_the_ports_of_ucx_ends_its_connection(daemon: Daemon) -> None:
    """The library listens on more ports than that of the URI, once a reader has connected."""
    with splitarrow.open(daemon.uri("a", "ucx")) as stream, unharmed(daemon, "ucx"):
        next(stream)
        others = {DataUri.parse(daemon.uri("a", scheme)).port for scheme in ("tcp", "tcp+tls")}
        others.add(DataUri.parse(daemon.control_uri).port)
        connections = psutil.Process(daemon.pid).net_connections("tcp")
        ports = {each.laddr[1] for each in connections if each.status == psutil.CONN_LISTEN}
        assert DataUri.parse(daemon.uri("a", "ucx")).port in ports
        for port in ports - others:
            with attacking("send_noise", f"tcp://127.0.0.1:{port}"):
                pass
        assert sum(batch.num_rows for batch in stream) == TABLE.num_rows - ROWS
