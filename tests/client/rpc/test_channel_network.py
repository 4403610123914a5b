"""A channel over networks that are slow, forget connections, or have dead addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

import splitarrow
from helpers.proxy import proxy
from splitarrow.errors import ConnectError, ConnectionLostError
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.uri import DataUri

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/unshare").exists(),
    reason="creating namespaces needs root and unshare",
)


@pytest.fixture
def server() -> Iterator[splitarrow.Server]:
    tables = {"n": pa.table({"n": [1, 2, 3]})}
    with splitarrow.serve(tables, control="grpc://127.0.0.1:0") as running:
        yield running


def port(server: splitarrow.Server) -> int:
    return DataUri.parse(server.control_uri or "").port or 0


def test_a_handshake_may_take_as_long_as_connect_timeout(server: splitarrow.Server) -> None:
    with proxy(port(server)) as slow:
        slow.delay = 0.7  # longer than gRPC waits before it retries
        splitarrow.connect(f"grpc://127.0.0.1:{slow.port}").close()
        slow.delay = 10.0
        with pytest.raises(ConnectError, match=r"does not respond|no response within"):
            splitarrow.connect(f"grpc://127.0.0.1:{slow.port}", connect_timeout=0.2)


def test_planning_is_repeated_over_a_new_connection(server: splitarrow.Server) -> None:
    with proxy(port(server)) as cutting:
        cutting.inspect = lambda number, data: number == 0 and b'"dataset": "n"' in data
        with splitarrow.connect(f"grpc://127.0.0.1:{cutting.port}") as client:
            assert client.info("n").rows == 3
        assert cutting.accepted == 2


def test_an_action_is_not_repeated(server: splitarrow.Server) -> None:
    with proxy(port(server)) as cutting:
        cutting.inspect = lambda number, data: b"status" in data
        address = f"grpc://127.0.0.1:{cutting.port}"
        with splitarrow.connect(address) as client, pytest.raises(ConnectionLostError):
            client.status()
        assert cutting.accepted == 1


@pytest.mark.slow
def test_a_client_that_pings_often_keeps_its_connection(server: splitarrow.Server) -> None:
    options = [
        ("grpc.keepalive_time_ms", 50),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{port(server)}", options) as channel:
        method = channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")
        action = flight.Action(type="hold", body=b"n").SerializeToString()
        with pytest.raises(grpc.RpcError) as caught:
            list(method(action, timeout=3.5))  # gRPC pings once in a second
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # pyright: ignore


NAMESPACE = """
ip link set lo up
for last in 1 2 3; do ip addr add 10.9.0.$last/32 dev lo; done
ip route replace local 10.9.0.1 dev lo src 10.9.0.2 table local
mount --bind "$1" /etc/hosts
shift
exec "$@"
"""
"""A client at 10.9.0.2 and a server at 10.9.0.1. Nothing answers at 10.9.0.99."""
HOSTS = """
127.0.0.1 localhost
10.9.0.99 two.test
10.9.0.1 two.test
fd09::99 six.test
10.9.0.1 six.test
"""
PROGRAM = """
import subprocess, time
import pyarrow as pa, splitarrow

listeners = {"listen": ["tcp://10.9.0.1:0"], "control": "grpc://10.9.0.1:0", "insecure": True}
with splitarrow.serve({"n": pa.table({"n": [1, 2, 3]})}, **listeners) as server:
"""
ADDRESSES = """
    subprocess.run("ip route add 10.9.0.0/24 dev lo; ip addr add fd09::1/64 dev lo", shell=True)
    port = server.control_uri.rpartition(":")[2]
    for name in ("two.test", "six.test"):
        with splitarrow.connect(f"grpc://{name}:{port}") as client:
            assert client.info("n").rows == 3
"""
FORGET = """
    with splitarrow.connect(server.control_uri) as client:
        client.read("n").read_all()
        change = "ip route replace local 10.9.0.1 dev lo src 10.9.0.3 table local"
        subprocess.run(f"{change}; ip addr del 10.9.0.2/32 dev lo", shell=True, check=True)
        started = time.monotonic()
        assert client.info("n").rows == 3
        seconds = time.monotonic() - started
        assert 1 < seconds < 5, seconds
"""


def run_in_namespace(tmp_path: Path, program: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(HOSTS)
    command = ["unshare", "--net", "--mount", "sh", "-ec", NAMESPACE, "sh", str(hosts)]
    subprocess.run([*command, sys.executable, "-c", PROGRAM + program], check=True, timeout=60)


@needs_root
@pytest.mark.slow
def test_a_dead_address_of_a_name_is_skipped(tmp_path: Path) -> None:
    run_in_namespace(tmp_path, ADDRESSES)


@needs_root
@pytest.mark.slow
@pytest.mark.long
def test_a_forgotten_connection_is_replaced_within_5_s(tmp_path: Path) -> None:
    run_in_namespace(tmp_path, FORGET)
