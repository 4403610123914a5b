"""Tokens in headers and handshakes, grants, and the tickets of a principal."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.control_plane import CANARY, TOKENS, Running, bearer, put, running
from helpers.waiting import wait_until
from splitarrow.client.connect import connect
from splitarrow.errors import ConfigError, DeniedError
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.server.auth.access_control import AccessControl, Authenticator
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.server.auth.token_file import TokenFile

PATH = flight.FlightDescriptor.for_path
ANNA, BERTA, ROOT = map(bearer, (CANARY, "secret-token-of-berta", "secret-token-of-root"))


@pytest.fixture
def access(tmp_path: Path) -> AccessControl:
    """Access control with the tokens of `TOKENS`. The daemon closes it."""
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS)
    path.chmod(0o600)
    return AccessControl(Authenticator(TokenFile(path)), TicketSigner())


@pytest.fixture
def server(tmp_path: Path, table: pa.Table, access: AccessControl) -> Iterator[Running]:
    datasets = {"flights": table, "trips": table.slice(10)}
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    with running(datasets, writable=uploads, upload_bytes=1 << 20, access=access) as served:
        yield served


def test_every_method_needs_a_token(server: Running, table: pa.Table) -> None:
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


def test_a_principal_sees_only_datasets_that_it_may_read(server: Running) -> None:
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


def test_a_signed_ticket_has_its_expiry_in_the_description(server: Running) -> None:
    before = time.time()
    with server.client() as client:
        (endpoint,) = client.get_flight_info(PATH("flights"), ANNA).endpoints
    expires = endpoint.expiration_time.cast(pa.timestamp("s")).value
    assert before + 299 <= expires <= time.time() + 301


def test_a_ticket_is_good_once_and_for_its_principal(server: Running, table: pa.Table) -> None:
    def ticket(options: flight.FlightCallOptions) -> flight.Ticket:
        return client.get_flight_info(PATH("flights"), options).endpoints[0].ticket

    with server.client() as client:
        mine = ticket(ANNA)
        assert client.do_get(mine, ANNA).read_all() == table
        with pytest.raises(flight.FlightUnauthenticatedError, match="was already used"):
            client.do_get(mine, ANNA).read_all()
        with pytest.raises(
            flight.FlightUnauthorizedError, match=r"to another principal.*'flights'"
        ):
            client.do_get(ticket(ANNA), ROOT).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError, match="requires a signed ticket"):
            client.do_get(flight.Ticket(b"flights"), ANNA).read_all()


def test_random_access_works_with_signed_tickets_and_needs_a_grant(
    server: Running, table: pa.Table
) -> None:
    with connect(server.uri, CANARY) as client:
        (rows,) = client.count_rows("flights").values()
        assert sum(rows) == table.num_rows
        with client.read("flights", batches=(1, 3)) as stream:
            assert stream.read_all() == table.slice(rows[0], sum(rows[1:3]))
        with pytest.raises(DeniedError, match="'anna' may not read 'trips'"):
            client.count_rows("trips")
        with pytest.raises(DeniedError, match="'anna' may not read 'trips'"):
            client.list_lengths("trips", "n")
    with server.client() as client, pytest.raises(flight.FlightUnauthorizedError):
        list(client.do_action(flight.Action("count", b'{"dataset": "trips"}'), ANNA))
    lengths = flight.Action("lengths", b'{"dataset": "trips", "columns": ["n"]}')
    with server.client() as client, pytest.raises(flight.FlightUnauthorizedError):
        list(client.do_action(lengths, ANNA))
    with server.client() as client, pytest.raises(flight.FlightUnauthorizedError):
        list(client.do_action(flight.Action("ranges", b'{"dataset": "trips"}'), ANNA))
    order = flight.Action("announce", b'{"dataset": "trips", "reader": "r", "shards": []}')
    with server.client() as client, pytest.raises(flight.FlightUnauthorizedError):
        list(client.do_action(order, ANNA))


def test_writing_needs_a_grant(server: Running, table: pa.Table) -> None:
    with server.client() as client:
        assert put(client, "scores", table, ANNA)["rows"] == 3000
        with pytest.raises(flight.FlightUnauthorizedError, match="'anna' may not write 'other'"):
            put(client, "other", table, ANNA)
        with pytest.raises(flight.FlightUnauthorizedError, match="'berta' may not write 'scores'"):
            list(client.do_action(flight.Action("drop", b"scores"), BERTA))
        for options in (ANNA, BERTA):  # the globs of berta match the name "*"
            with pytest.raises(flight.FlightUnauthorizedError, match="act on the whole server"):
                list(client.do_action(flight.Action("reload", b""), options))
        list(client.do_action(flight.Action("reload", b""), ROOT))
        list(client.do_action(flight.Action("drop", b"scores"), ANNA))


def test_a_password_is_exchanged_for_a_token(server: Running) -> None:
    with server.client() as client:
        header = client.authenticate_basic_token("anna", CANARY)
        assert header == (b"authorization", f"Bearer {CANARY}".encode())
        options = flight.FlightCallOptions(headers=[header])
        assert client.get_flight_info(PATH("flights"), options).total_records == 3000
        with pytest.raises(flight.FlightUnauthenticatedError, match="does not know the token"):
            client.authenticate_basic_token("anna", "guess")


class TokenHandler(flight.ClientAuthHandler):
    """Sends a token in the handshake, and the response with each call."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self.token = token

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(self.token)
        self.token = incoming.read()

    def get_token(self) -> Any:
        return self.token


def test_a_handshake_accepts_a_token(server: Running) -> None:
    with server.client() as client:
        client.authenticate(TokenHandler(CANARY.encode()))
        assert client.get_flight_info(PATH("flights")).total_records == 3000
    with server.client() as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="does not know the token"):
            client.authenticate(TokenHandler(b"guess"))
        with pytest.raises(flight.FlightUnauthenticatedError, match="must be ASCII"):
            client.authenticate(TokenHandler(b"\xff"))


def test_a_server_without_tokens_accepts_any_handshake(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        client.authenticate(TokenHandler(b"whatever"))
        assert client.get_flight_info(PATH("a")).total_records == 3000
        with pytest.raises(flight.FlightUnauthenticatedError, match="requires no token"):
            client.authenticate_basic_token("anna", "secret")


def test_an_unused_ticket_can_be_renewed(server: Running, table: pa.Table) -> None:
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
        expires = old.expiration_time.seconds
        old.ClearField("expiration_time")
        body = pb.RenewFlightEndpointRequest(endpoint=old).SerializeToString()
        (result,) = client.do_action(flight.Action("RenewFlightEndpoint", body), ANNA)
        new = pb.FlightEndpoint.FromString(result.body.to_pybytes())
        assert new.location == old.location
        assert new.expiration_time.seconds >= expires
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


def test_a_flight_can_be_cancelled_while_it_is_read(access: AccessControl) -> None:
    big = pa.table({"x": pa.array(np.arange(8_000_000))})
    with (
        running({"flights": big}, access=access) as server,
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
    streams: list[dict[str, Any]] = []

    def reached() -> bool:
        (result,) = client.do_action(flight.Action("status", b""), ROOT)
        streams[:] = json.loads(result.body.to_pybytes())["streams"]
        return len(streams) == count

    wait_until(reached, f"the number of streams, {count},")
    return streams


def test_logs_and_errors_contain_no_token_or_ticket(
    server: Running, caplog: pytest.LogCaptureFixture, table: pa.Table
) -> None:
    texts: list[str] = []
    with server.client() as client, caplog.at_level(logging.DEBUG):
        info = client.get_flight_info(PATH("flights"), ANNA)
        ticket = info.endpoints[0].ticket
        client.do_get(ticket, ANNA).read_all()
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
            texts.append(str(raised.value))
        (status,) = client.do_action(flight.Action("status", b""), ANNA)
        texts.append(status.body.to_pybytes().decode())
    text = "\n".join([caplog.text, *map(str, map(vars, caplog.records)), *texts])
    assert CANARY not in text
    assert ticket.ticket.decode() not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_a_server_without_tokens_stays_on_loopback(host: str) -> None:
    listen = f"grpc://{host}:0"
    with (
        pytest.raises(ConfigError, match="everyone on the network could read"),
        running(control=listen),
    ):
        pass
    with running(control=listen, insecure=True) as server, server.channel() as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10) == b"\x08\x01"


def test_a_port_in_use_is_refused() -> None:
    with running() as server:
        taken = pytest.raises(
            ConfigError, match=r"^control: .* by another program; .* --control grpc://"
        )
        with taken, running(control=server.uri):
            pass


def test_malformed_messages_and_unknown_methods_have_grpc_statuses(server: Running) -> None:
    with server.channel() as channel:
        info = channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo")
        with pytest.raises(grpc.RpcError) as raised:
            info(b"\xff\xff", metadata=(("authorization", f"Bearer {CANARY}"),), timeout=10)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = channel.unary_unary("/arrow.flight.protocol.FlightService/Unknown")
        with pytest.raises(grpc.RpcError) as raised:
            unknown(b"", timeout=10)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_who_may_write_everything_cancels_the_streams_of_others(access: AccessControl) -> None:
    table = pa.table({"x": pa.array(np.arange(8_000_000))})
    with running({"flights": table}, access=access) as server, server.client() as client:

        def cancel(number: int, options: flight.FlightCallOptions) -> None:
            body = json.dumps({"stream": number}).encode()
            list(client.do_action(flight.Action("cancel", body), options))

        request = b'{"dataset": "flights", "batch_rows": 1000}'
        info = client.get_flight_info(flight.FlightDescriptor.for_command(request), ANNA)
        reader = client.do_get(info.endpoints[0].ticket, ANNA)
        reader.read_chunk()
        with pytest.raises(KeyError, match="no stream 1 of the caller is running"):
            cancel(1, BERTA)
        cancel(1, ROOT)
        with pytest.raises(pa.ArrowException, match=r"cancelled.*'flights'"):
            reader.read_all()
        with pytest.raises(KeyError, match="no stream 1 is running"):
            cancel(1, ROOT)
        for options, shown in ((ANNA, {"flights"}), (BERTA, set())):
            (result,) = client.do_action(flight.Action("status", b""), options)
            assert json.loads(result.body.to_pybytes())["sent"].keys() == shown
