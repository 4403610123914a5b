"""grpc.health.v1 with its stock client, and reflection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2
from pyarrow import flight

from helpers.control_plane import Running, running
from splitarrow.server.auth.access_control import AccessControl, Authenticator
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.server.auth.token_file import TokenFile

FLIGHT = "arrow.flight.protocol.FlightService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def server(tmp_path: Path, table: pa.Table) -> Iterator[Running]:
    path = tmp_path / "tokens.toml"
    path.write_text('[[tokens]]\nname = "anna"\ntoken = "secret-token-of-anna"\n')
    path.chmod(0o600)
    access = AccessControl(Authenticator(TokenFile(path)), TicketSigner())
    with running({"a": table}, access=access) as served:
        with served.client() as client, pytest.raises(flight.FlightUnauthenticatedError):
            list(client.list_actions())
        yield served


def check(channel: grpc.Channel, service: str) -> int:
    method = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return method(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def watch(channel: grpc.Channel, service: str) -> Iterator[health_pb2.HealthCheckResponse]:
    method = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return method(health_pb2.HealthCheckRequest(service=service), timeout=20)


@pytest.mark.parametrize("service", ["", FLIGHT])
def test_a_health_check_needs_no_token(server: Running, service: str) -> None:
    with server.channel() as channel:
        assert check(channel, service) == SERVING


def test_an_unknown_service_is_not_found(server: Running) -> None:
    with server.channel() as channel:
        with pytest.raises(grpc.RpcError) as raised:
            check(channel, "other")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        assert next(watch(channel, "other")).status == SERVICE_UNKNOWN
        raw = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as raised:
            raw(b"\xff", timeout=10)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_draining_is_reported_to_checks_and_watches() -> None:
    big = pa.table({"x": pa.array(np.arange(8_000_000))})
    with running({"big": big}) as server, server.channel() as channel, server.client() as client:
        watched = watch(channel, FLIGHT)
        assert next(watched).status == SERVING
        reader = client.do_get(flight.Ticket(b'{"dataset": "big", "batch_rows": 10000}'))
        assert reader.read_chunk().data.num_rows == 10000
        server.drain()
        assert [response.status for response in watched] == [NOT_SERVING]
        assert check(channel, "") == NOT_SERVING
        assert reader.read_all().num_rows == big.num_rows - 10000


def test_a_watch_does_not_delay_the_end_of_the_server() -> None:
    with running() as server, server.channel() as channel:
        watched = watch(channel, "")
        assert next(watched).status == SERVING
        ended = threading.Thread(target=server.drain)
        ended.start()
        assert [response.status for response in watched] == [NOT_SERVING]
        ended.join()


def services(server: Running) -> list[str]:
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    with server.channel() as channel:
        return list(ProtoReflectionDescriptorDatabase(channel).get_services())


def test_reflection_is_off_by_default() -> None:
    with running() as server, pytest.raises(grpc.RpcError) as raised:
        services(server)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with running(reflection=True) as server:
        assert {FLIGHT, "grpc.health.v1.Health"} <= set(services(server))
