"""Who may do what: tokens in headers and handshakes, grants, tickets of one principal."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

from splitarrow.errors import ConfigError
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.server.auth.guard import Guard
from splitarrow.server.auth.tickets import TicketOffice
from splitarrow.server.auth.tokens import TokenFile

from .conftest import Running, bearer, running
from .test_put import put

PATH = flight.FlightDescriptor.for_path
CANARY = "canary-token-of-anna"
TOKENS = f"""
[[tokens]]
name = "anna"
token = "{CANARY}"
datasets = ["flights", "scores"]
write = ["scores"]

[[tokens]]
name = "berta"
token = "secret-token-of-berta"
datasets = ["trips"]

[[tokens]]
name = "root"
token = "secret-token-of-root"
datasets = ["*"]
write = ["*"]
"""
ANNA, BERTA, ROOT = map(bearer, (CANARY, "secret-token-of-berta", "secret-token-of-root"))


@pytest.fixture
def rights(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A guard and an office, as arguments of `running`."""
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS)
    path.chmod(0o600)
    office = TicketOffice()
    yield {"guard": Guard(TokenFile(path)), "office": office}
    office.close()


@pytest.fixture
def server(tmp_path: Path, table: pa.Table, rights: dict[str, Any]) -> Iterator[Running]:
    datasets = {"flights": table, "trips": table.slice(10)}
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    with running(datasets, writable=uploads, upload_bytes=1 << 20, **rights) as served:
        yield served


def test_without_a_token_there_is_nothing(server: Running, table: pa.Table) -> None:
    wrong = bearer("secret-token-of-nobody")
    with server.client() as client:
        for options in (flight.FlightCallOptions(), wrong):
            for ask in (
                lambda o: list(client.list_flights(options=o)),
                lambda o: client.get_flight_info(PATH("flights"), o),
                lambda o: client.get_schema(PATH("flights"), o),
                lambda o: client.do_get(flight.Ticket(b"flights"), o).read_all(),
                lambda o: put(client, "scores", table, o),
                lambda o: list(client.do_action(flight.Action("status", b""), o)),
                lambda o: list(client.list_actions(o)),
            ):
                with pytest.raises((flight.FlightError, OSError), match="token"):
                    ask(options)


def test_only_what_may_be_read_is_seen(server: Running) -> None:
    with server.client() as client:
        for options, names in ((ANNA, [b"flights"]), (BERTA, [b"trips"])):
            assert [
                info.descriptor.path[0] for info in client.list_flights(options=options)
            ] == names
        with pytest.raises(flight.FlightUnauthorizedError, match="'anna' may not read 'trips'"):
            client.get_flight_info(PATH("trips"), ANNA)
        with pytest.raises(flight.FlightUnauthorizedError, match="'anna' may not read 'absent'"):
            client.get_flight_info(PATH("absent"), ANNA)
        with pytest.raises(KeyError, match="no dataset 'scores'") as raised:
            client.get_flight_info(PATH("scores"), ANNA)
        assert "trips" not in str(raised.value)


def test_a_ticket_is_good_once_and_for_one(server: Running, table: pa.Table) -> None:
    def ticket(options: flight.FlightCallOptions) -> flight.Ticket:
        return client.get_flight_info(PATH("flights"), options).endpoints[0].ticket

    with server.client() as client:
        mine = ticket(ANNA)
        assert client.do_get(mine, ANNA).read_all() == table
        with pytest.raises(flight.FlightUnauthenticatedError, match="was used already"):
            client.do_get(mine, ANNA).read_all()
        with pytest.raises(flight.FlightUnauthorizedError, match=r"for somebody else.*'flights'"):
            client.do_get(ticket(ANNA), ROOT).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError, match="takes signed tickets only"):
            client.do_get(flight.Ticket(b"flights"), ANNA).read_all()


def test_writing_takes_a_grant_too(server: Running, table: pa.Table) -> None:
    with server.client() as client:
        assert put(client, "scores", table, ANNA)["rows"] == 3000
        with pytest.raises(flight.FlightUnauthorizedError, match="'anna' may not write 'other'"):
            put(client, "other", table, ANNA)
        with pytest.raises(flight.FlightUnauthorizedError, match="'berta' may not write 'scores'"):
            list(client.do_action(flight.Action("drop", b"scores"), BERTA))
        with pytest.raises(flight.FlightUnauthorizedError, match=r"'anna' may not write '\*'"):
            list(client.do_action(flight.Action("reload", b""), ANNA))
        list(client.do_action(flight.Action("drop", b"scores"), ANNA))


def test_a_password_gives_a_token(server: Running) -> None:
    with server.client() as client:
        header = client.authenticate_basic_token("anna", CANARY)
        assert header == (b"authorization", f"Bearer {CANARY}".encode())
        options = flight.FlightCallOptions(headers=[header])
        assert client.get_flight_info(PATH("flights"), options).total_records == 3000
        with pytest.raises(flight.FlightUnauthenticatedError, match="not known here"):
            client.authenticate_basic_token("anna", "guess")


class TokenHandler(flight.ClientAuthHandler):
    """Shows a token in the handshake, and sends what it got with each call."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self.token = token

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(self.token)
        self.token = incoming.read()

    def get_token(self) -> Any:
        return self.token


def test_a_token_may_be_shown_in_a_handshake(server: Running) -> None:
    with server.client() as client:
        client.authenticate(TokenHandler(CANARY.encode()))
        assert client.get_flight_info(PATH("flights")).total_records == 3000
    with server.client() as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="not known here"):
            client.authenticate(TokenHandler(b"guess"))
        with pytest.raises(flight.FlightUnauthenticatedError, match="malformed"):
            client.authenticate(TokenHandler(b"\xff"))


def test_an_open_server_takes_any_greeting(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        client.authenticate(TokenHandler(b"whatever"))
        assert client.get_flight_info(PATH("a")).total_records == 3000
        with pytest.raises(flight.FlightUnauthenticatedError, match="not passwords"):
            client.authenticate_basic_token("anna", "secret")


def test_a_ticket_can_be_renewed_until_it_is_used(server: Running, table: pa.Table) -> None:
    with server.client() as client:
        old = client.get_flight_info(PATH("flights"), ANNA).endpoints[0].ticket
        (result,) = client.do_action(flight.Action("renew", old.ticket), ANNA)
        fresh = flight.Ticket(result.body.to_pybytes())
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(old, ANNA).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.do_action(flight.Action("renew", old.ticket), ANNA))
        assert client.do_get(fresh, ANNA).read_all() == table


def test_an_endpoint_can_be_renewed(server: Running, table: pa.Table) -> None:
    with server.client() as client:
        info = client.get_flight_info(PATH("flights"), ANNA)
        old = pb.FlightInfo.FromString(info.serialize()).endpoint[0]
        body = pb.RenewFlightEndpointRequest(endpoint=old).SerializeToString()
        (result,) = client.do_action(flight.Action("RenewFlightEndpoint", body), ANNA)
        new = pb.FlightEndpoint.FromString(result.body.to_pybytes())
        assert new.location == old.location
        assert new.ticket != old.ticket
        assert client.do_get(flight.Ticket(new.ticket.ticket), ANNA).read_all() == table


def cancelled(client: Any, info: Any, options: Any) -> int:
    body = pb.CancelFlightInfoRequest(info=pb.FlightInfo.FromString(info.serialize()))
    action = flight.Action("CancelFlightInfo", body.SerializeToString())
    (result,) = client.do_action(action, options)
    return pb.CancelFlightInfoResult.FromString(result.body.to_pybytes()).status


def test_a_flight_can_be_cancelled_before_it_is_read(server: Running) -> None:
    with server.client() as client:
        info = client.get_flight_info(PATH("flights"), ANNA)
        assert cancelled(client, info, ANNA) == pb.CANCEL_STATUS_CANCELLED
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(info.endpoints[0].ticket, ANNA).read_all()
        assert cancelled(client, info, ANNA) == pb.CANCEL_STATUS_NOT_CANCELLABLE


def test_a_flight_can_be_cancelled_while_it_is_read(rights: dict[str, Any]) -> None:
    big = pa.table({"x": pa.array(range(8_000_000))})
    with (
        running({"flights": big}, **rights) as server,
        server.client() as client,
    ):
        infos = [client.get_flight_info(PATH("flights"), ANNA) for _ in range(2)]
        readers = [client.do_get(info.endpoints[0].ticket, ANNA) for info in infos]
        wait_for_streams(client, 2)
        assert cancelled(client, infos[0], ROOT) == pb.CANCEL_STATUS_NOT_CANCELLABLE
        assert cancelled(client, infos[0], ANNA) == pb.CANCEL_STATUS_CANCELLED
        with pytest.raises(pa.ArrowException, match=r"cancelled.*'flights'"):
            readers[0].read_all()
        assert readers[1].read_all() == big


def wait_for_streams(client: Any, count: int) -> list[dict[str, Any]]:
    waiting = threading.Event()
    while True:
        (result,) = client.do_action(flight.Action("status", b""), ROOT)
        streams = json.loads(result.body.to_pybytes())["streams"]
        if len(streams) == count:
            return streams
        waiting.wait(0.005)


def test_no_token_or_ticket_in_logs_and_errors(
    server: Running, caplog: pytest.LogCaptureFixture, table: pa.Table
) -> None:
    told: list[str] = []
    with server.client() as client, caplog.at_level(logging.DEBUG):
        info = client.get_flight_info(PATH("flights"), ANNA)
        ticket = info.endpoints[0].ticket
        for ask in (
            lambda: client.do_get(ticket, BERTA).read_all(),
            lambda: client.do_get(ticket, ANNA).read_all(),
            lambda: client.get_flight_info(PATH("trips"), ANNA),
            lambda: put(client, "../x", table, ROOT),
            lambda: client.get_flight_info(PATH("flights"), bearer(CANARY + "x")),
            lambda: client.authenticate(TokenHandler(CANARY.encode() + b"\xff")),
            lambda: list(client.do_action(flight.Action("renew", CANARY.encode()), ANNA)),
        ):
            with pytest.raises((pa.ArrowException, flight.FlightError)) as raised:
                ask()
            told.append(str(raised.value))
        (status,) = client.do_action(flight.Action("status", b""), ANNA)
        told.append(status.body.to_pybytes().decode())
    text = "\n".join([caplog.text, *map(str, map(vars, caplog.records)), *told])
    assert CANARY not in text
    assert ticket.ticket.decode() not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_open_server_stays_on_loopback(host: str) -> None:
    listen = f"grpc://{host}:0"
    with (
        pytest.raises(ConfigError, match="everybody on the network could read"),
        running(control=listen),
    ):
        pass
    with running(control=listen, insecure=True) as server, server.channel() as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10) == b"\x08\x01"


def test_a_port_that_is_taken_is_told() -> None:
    with running() as server:
        taken = pytest.raises(ConfigError, match="the port is taken")
        with taken, running(control=server.uri):
            pass


def test_rpc_errors_are_grpc_errors(server: Running) -> None:
    with server.channel() as channel:
        info = channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo")
        with pytest.raises(grpc.RpcError) as raised:
            info(b"\xff\xff", metadata=(("authorization", f"Bearer {CANARY}"),), timeout=10)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = channel.unary_unary("/arrow.flight.protocol.FlightService/Unknown")
        with pytest.raises(grpc.RpcError) as raised:
            unknown(b"", timeout=10)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
