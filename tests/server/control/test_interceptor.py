"""A stock client gets the exception for each error, with the name of the dataset."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.control_plane import Running, running
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.protocol.limits import Limits

PATH, COMMAND = flight.FlightDescriptor.for_path, flight.FlightDescriptor.for_command


@pytest.fixture
def server(arrow_file: Path, table: pa.Table) -> Iterator[Running]:
    with running({"numbers": arrow_file, "memory": table}) as served:
        yield served


def command(**fields: Any) -> flight.FlightDescriptor:
    return COMMAND(json.dumps(fields).encode())


@pytest.mark.parametrize("method", ["info", "schema", "get"])
def test_an_unknown_name_gets_a_suggestion(server: Running, method: str) -> None:
    with server.client() as client:
        calls = {
            "info": lambda: client.get_flight_info(PATH("nubmers")),
            "schema": lambda: client.get_schema(PATH("nubmers")),
            "get": lambda: client.do_get(flight.Ticket(b"nubmers")).read_all(),
        }
        with pytest.raises(KeyError, match=r"no dataset 'nubmers'.*'numbers'"):
            calls[method]()


@pytest.mark.parametrize(
    ("descriptor", "error", "message"),
    [
        (PATH("a", "b"), pa.ArrowInvalid, "has 2 elements"),
        (PATH(), pa.ArrowInvalid, "has 0 elements"),
        (PATH(""), pa.ArrowInvalid, "the path names no dataset"),
        (PATH("nul\0"), pa.ArrowInvalid, "the path names no dataset"),
        (PATH("../../etc/passwd"), KeyError, "no dataset '../../etc/passwd'"),
        (PATH("/etc/passwd"), KeyError, "no dataset '/etc/passwd'"),
        (PATH("%2e%2e%2fnumbers"), KeyError, "no dataset '%2e%2e%2fnumbers'"),
        (PATH("x" * 5000), KeyError, "a name of 5000 characters"),
        (COMMAND(b"\xff"), pa.ArrowInvalid, "the command is not UTF-8"),
        (COMMAND(b"{"), pa.ArrowInvalid, "the command begins as JSON"),
        (COMMAND(b"{}"), pa.ArrowInvalid, "the command names no dataset"),
        (command(dataset="numbers", colour=1), pa.ArrowInvalid, "unknown fields: colour"),
        (command(dataset="numbers", limit=-1), pa.ArrowInvalid, "limit -1"),
        (command(dataset="numbers", columns=["m"]), KeyError, "no column 'm'.*'n'.*'numbers'"),
        (command(dataset="numbers", columns=["n", "n"]), pa.ArrowInvalid, "twice.*'numbers'"),
    ],
)
def test_invalid_descriptors_are_refused(
    server: Running, descriptor: flight.FlightDescriptor, error: type[Exception], message: str
) -> None:
    with server.client() as client, pytest.raises(error, match=message):
        client.get_flight_info(descriptor)


@pytest.mark.parametrize(
    ("ticket", "error", "message"),
    [
        (b"", pa.ArrowInvalid, "the ticket names no dataset"),
        (b"\xff\xfe", pa.ArrowInvalid, "the ticket is not UTF-8"),
        (
            b'{"dataset": "numbers", "format": "orc"}',
            pa.ArrowInvalid,
            "the format 'orc'; known are arrow",
        ),
        (b'{"dataset": "numbers", "columns": ["m"]}', KeyError, "no column 'm'.*'numbers'"),
        (b"x" * 100_000, pa.ArrowException, "the ticket has 100000 bytes"),
        (b"sa1.secret.secret", flight.FlightUnauthenticatedError, "does not accept signed tickets"),
    ],
)
def test_invalid_tickets_are_refused_without_quoting_them(
    server: Running, ticket: bytes, error: type[Exception], message: str
) -> None:
    with server.client() as client, pytest.raises(error, match=message) as raised:
        client.do_get(flight.Ticket(ticket)).read_all()
    assert "secret" not in str(raised.value)


def test_doexchange_is_refused_with_the_alternatives(server: Running) -> None:
    with server.client() as client:
        refused = pytest.raises(
            pa.ArrowNotImplementedError, match="does not support DoExchange: read with DoGet"
        )
        with refused:
            client.do_exchange(PATH("numbers"))[1].read_chunk()


def test_a_removed_file_is_data_loss(server: Running, arrow_file: Path) -> None:
    arrow_file.unlink()
    with server.client() as client:
        with pytest.raises(pa.ArrowException, match="'numbers'"):
            client.do_get(flight.Ticket(b"numbers")).read_all()
        assert len(list(client.list_flights())) == 2
    assert server.daemon.stats()["failures"] == 1
    assert server.daemon.stats()["streams"] == 0


def test_a_file_that_shrinks_during_a_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "big.arrow"
    table = pa.table({"x": pa.array(np.arange(4_000_000))})
    write_file(path, table, batch_rows=200_000)
    with running({"big": path}) as server, server.client() as client:
        reader = client.do_get(flight.Ticket(b"big"))
        assert reader.read_chunk().data.num_rows == 200_000
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(pa.ArrowException, match="'big'"):
            reader.read_all()


def test_details_of_unexpected_errors_stay_in_the_log(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a detail of the inside")

    monkeypatch.setattr(type(server.daemon.catalog.lookup("numbers")), "open", fail)
    internal = pytest.raises(pa.ArrowException, match="internal error")
    with server.client() as client, internal as raised:
        client.do_get(flight.Ticket(b"numbers")).read_all()
    assert "detail" not in str(raised.value)
    assert "a detail of the inside" in caplog.text


def test_draining_refuses_calls_and_lets_streams_finish(tmp_path: Path) -> None:
    path = tmp_path / "big.arrow"
    table = pa.table({"x": pa.array(np.arange(4_000_000))})
    write_file(path, table, batch_rows=100_000)
    with running({"big": path}) as server, server.client() as client:
        reader = client.do_get(flight.Ticket(b"big"))
        batches = [reader.read_chunk().data]
        server.drain()
        with pytest.raises(flight.FlightUnavailableError, match="the server is draining"):
            client.get_flight_info(PATH("big"))
        batches += [chunk.data for chunk in reader]
        assert pa.Table.from_batches(batches) == table


def test_a_read_in_progress_does_not_let_other_calls_in(server: Running) -> None:
    with server.client() as client, server.channel() as channel:
        hold = pb.Action(type="hold", body=b"numbers").SerializeToString()
        held = channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")(hold)
        wait_until(lambda: server.daemon.context.reads, "the read")
        server.drain()
        with pytest.raises(flight.FlightUnavailableError, match="the server is draining"):
            list(client.list_flights())
        held.cancel()


def test_cutting_ends_running_streams(tmp_path: Path) -> None:
    path = tmp_path / "big.arrow"
    table = pa.table({"x": pa.array(np.arange(4_000_000))})
    write_file(path, table, batch_rows=100_000)
    with running({"big": path}) as server, server.client() as client:
        reader = client.do_get(flight.Ticket(b"big"))
        assert reader.read_chunk().data.num_rows == 100_000
        server.cut()
        with pytest.raises(pa.ArrowException):
            reader.read_all()
        with pytest.raises(flight.FlightUnavailableError):
            client.get_flight_info(PATH("big"))


def test_calls_over_the_limit_are_refused(table: pa.Table) -> None:
    with running({"a": table}, limits=Limits(calls=1)) as server, server.channel() as channel:
        watching = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=20)
        assert next(watching) == b"\x08\x01"
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as raised:
            check(b"", timeout=10)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watching.cancel()


@pytest.mark.parametrize("method", ["DoPut", "Handshake"])
def test_a_silent_client_is_disconnected(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"idle_seconds": 0.05, "handshake_seconds": 0.05}
    gate = threading.Event()

    def silence() -> Iterator[bytes]:
        gate.wait()
        yield from ()

    held = running(writable=tmp_path, **settings)
    with held as server, server.channel() as channel:
        converse = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")
        call = converse(silence(), timeout=20)
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        gate.set()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
