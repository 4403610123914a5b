"""The calls and connections of one client address at the control plane, and calls that it ends."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2
from pyarrow import flight

from helpers.control_plane import Running, running
from helpers.ending_peers import start_readers
from helpers.files import write_file, write_parquet
from helpers.waiting import wait_until
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.protocol.uri import DataUri
from splitarrow.testing import Daemon

SERVICE = "/arrow.flight.protocol.FlightService"


def hold(channel: grpc.Channel) -> Any:
    """Start a call that runs until it is cancelled."""
    action = b"\x0a\x04hold\x12\x01a"  # type and body of an Action
    return channel.unary_stream(f"{SERVICE}/DoAction")(action)


def watch(channel: grpc.Channel) -> Any:
    """Start a health check that runs until it is cancelled."""
    request = health_pb2.HealthCheckRequest().SerializeToString()
    return channel.unary_stream("/grpc.health.v1.Health/Watch")(request)


def is_refused(server: Running) -> bool:
    """Return whether a new call gets RESOURCE_EXHAUSTED."""
    with server.client() as client:
        try:
            list(client.list_actions())
        except (flight.FlightError, pa.ArrowException) as error:
            problem = "the address 127.0.0.1 has reached its limit of 2 concurrent calls; retry"
            return problem in str(error)
    return False


@pytest.mark.parametrize("start", [hold, watch])
def test_one_address_has_a_limited_number_of_calls(table: pa.Table, start: Any) -> None:
    with (
        running({"a": table}, max_calls_per_address=2) as server,
        server.channel() as channel,
    ):
        calls: list[Any] = []

        def holds_two() -> bool:
            # The probe is a call itself. If it came before the second call, that was refused.
            calls[:] = [call for call in calls if not call.done()]
            calls.extend(start(channel) for _ in range(2 - len(calls)))
            return is_refused(server) and not any(call.done() for call in calls)

        wait_until(holds_two)
        with pytest.raises(grpc.RpcError) as caught:
            next(start(channel))
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()
        wait_until(lambda: not is_refused(server))
        calls[1].cancel()


def test_one_address_has_a_limited_number_of_connections(table: pa.Table) -> None:
    with running({"a": table}, max_connections_per_address=2) as server, ExitStack() as stack:
        first, second, third = (
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(3)
        )
        for each in (first, second, third):
            each.setblocking(False)
        wait_until(lambda: any(has_ended(each) for each in (first, second, third)))
        assert [has_ended(each) for each in (first, second, third)].count(True) == 1


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("data")
    wide, big = pa.table({f"c{n}": [n] for n in range(5000)}), pa.table({"n": range(1 << 21)})
    lists = pa.table({"n": [[1, 2]] * 20_000})
    datasets = {
        "lists": write_parquet(folder / "lists.parquet", lists, row_group_size=1000),
        "wide": write_file(folder / "wide.arrow", wide),
        "big": write_file(folder / "big.arrow", big, batch_rows=1 << 18),
    }
    with Daemon(datasets, control="grpc://127.0.0.1:0") as server:
        yield server


LENGTHS = pb.Action(type="lengths", body=b'{"dataset": "lists", "columns": ["n"]}')


@pytest.mark.parametrize(
    ("method", "message"),
    [("ListFlights", b""), ("DoAction", LENGTHS.SerializeToString())],
    ids=["listing", "lengths"],
)
def test_calls_that_are_cancelled_while_a_thread_works_for_them(
    daemon: Daemon, method: str, message: bytes
) -> None:
    uri = DataUri.parse(daemon.control_uri)
    with grpc.insecure_channel(f"{uri.host}:{uri.port}") as channel:
        call = channel.unary_stream(f"{SERVICE}/{method}")
        responses = list(call(message, timeout=20))
        began = time.monotonic()
        assert list(call(message, timeout=20)) == responses
        seconds = time.monotonic() - began
        for number in range(40):  # at all points of the work
            calls = [call(message) for _ in range(4)]
            time.sleep(seconds * (number % 10) / 8)
            for each in calls:
                each.cancel()
        assert list(call(message, timeout=20)) == responses
    assert "Traceback" not in daemon.log()


def test_a_killed_client_of_do_get_is_not_a_failure_of_the_server(daemon: Daemon) -> None:
    readers = start_readers([("flight", daemon.control_uri, "big", "between batches")] * 10)
    readers.kill()
    readers.communicate()
    with flight.FlightClient(daemon.control_uri) as client:

        def stats() -> dict[str, int]:
            (result,) = client.do_action(flight.Action("status", b""))
            return json.loads(result.body.to_pybytes())["stats"]

        wait_until(lambda: stats()["streams"] == 0, "the end of the streams")
        assert stats()["failures"] == 0
    assert "Traceback" not in daemon.log()
    assert "call failed" not in daemon.log()
