"""Two principals of one server: what one does takes nothing from the other, and changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from helpers.control_plane import PATH, Running, bearer, put, running
from helpers.waiting import wait_until
from splitarrow.client.connect import connect
from splitarrow.errors import SplitArrowError
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.request import Request
from splitarrow.server.auth.access_control import AccessControl, Authenticator
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.server.auth.token_file import TokenFile

BIG = pa.table({"x": pa.array(np.arange(4_000_000))})
SMALL = pa.table({"x": range(1000)})
ANNA, BERTA, NOBODY, ROOT = (
    f"token-of-{name}-0123" for name in ("anna", "berta", "nobody", "root")
)
TOKENS = f"""
[[tokens]]
name = "anna"
token = "{ANNA}"
datasets = ["shared", "annas*"]
write = ["annas*", "?", "[!a-z]*"]
[[tokens]]
name = "berta"
token = "{BERTA}"
datasets = ["shared", "bertas*"]
write = ["bertas*"]
[[tokens]]
name = "nobody"
token = "{NOBODY}"
[[tokens]]
name = "root"
token = "{ROOT}"
datasets = ["*"]
write = ["*"]
"""
Serve = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    return tmp_path / "uploads"


@pytest.fixture
def serve(tmp_path: Path, writable: Path) -> Serve:
    """Start servers with the tokens of `TOKENS`, one after the other."""
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    path.write_text(TOKENS)

    def start(**settings: Any) -> AbstractContextManager[Running]:
        access = AccessControl(Authenticator(TokenFile(path)), TicketSigner())
        return running({"shared": BIG}, access=access, writable=writable, **settings)

    return start


def act(client: Any, action: str, body: Any = b"", token: str = ANNA) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    (result,) = client.do_action(flight.Action(action, data), bearer(token))
    return result.body.to_pybytes()


def status(client: Any, token: str) -> Any:
    return json.loads(act(client, "status", token=token))


def get_info(client: Any, name: str, token: str) -> Any:
    request = json.dumps({"dataset": name, "batch_rows": 1000}).encode()
    return client.get_flight_info(flight.FlightDescriptor.for_command(request), bearer(token))


@contextmanager
def stream_over_do_get(server: Running, token: str) -> Generator[None]:
    """Read a stream that stays unfinished. It ends by a disconnect."""
    with server.client() as client:
        ticket = get_info(client, "shared", token).endpoints[0].ticket
        reader = client.do_get(ticket, bearer(token))
        reader.read_chunk()
        yield
        reader.cancel()


@contextmanager
def stream_over_tcp(server: Running, token: str) -> Generator[None]:
    """Read a stream that stays unfinished. It ends by a disconnect."""
    with (
        connect(server.uri, token) as client,
        client.read("shared", batch_rows=1000, transport="tcp", prefetch_bytes=0) as stream,
    ):
        next(iter(stream))
        yield


@contextmanager
def upload(server: Running, token: str) -> Generator[None]:
    """Upload a dataset and do not finish. It ends by a disconnect."""
    name = {ANNA: "annas", BERTA: "bertas"}[token]
    gate = threading.Event()
    schema = pb.FlightData(data_header=SMALL.schema.serialize()[8:].to_pybytes())
    schema.flight_descriptor.CopyFrom(
        pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=[name])
    )

    def messages() -> Iterator[bytes]:
        yield schema.SerializeToString()
        gate.wait()

    store = Path(str(server.daemon.settings.writable))
    before = len(list(store.iterdir()))
    with closing(server.channel()) as channel:
        method = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        call: Any = method(messages(), metadata=(("authorization", f"Bearer {token}"),))
        try:
            wait_until(lambda: len(list(store.iterdir())) > before or call.done())
            if call.done():
                raise AssertionError(call.details())
            yield
        finally:
            call.cancel()
            gate.set()
    wait_until(lambda: len(list(store.iterdir())) == before)


@dataclass(frozen=True)
class Limit:
    """A limit that each principal has for itself."""

    use: Callable[[Running, str], AbstractContextManager[None]]
    """Uses one of what is limited while the context lasts."""
    available: tuple[int, int]
    """How many Anna may use alone, and how many Berta may use then."""
    refusal: str
    settings: dict[str, Any]


STREAMS = "'anna' has reached its limit of 2 concurrent streams"
LIMITS = {
    "streams over DoGet": Limit(
        stream_over_do_get, (2, 2), STREAMS, {"max_streams_per_principal": 2}
    ),
    "streams over tcp": Limit(stream_over_tcp, (2, 2), STREAMS, {"max_streams_per_principal": 2}),
    "uploads": Limit(
        upload,
        (4, 2),
        "'anna' has 4 running uploads, which is its limit",
        {"limits": Limits(uploads=4)},
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_holds_for_each_principal_by_itself(serve: Serve, name: str) -> None:
    limit = LIMITS[name]
    refused = (pa.ArrowException, SplitArrowError, AssertionError)
    with serve(**limit.settings) as server:
        with ExitStack() as used:
            for _ in range(limit.available[0]):
                used.enter_context(limit.use(server, ANNA))
            with pytest.raises(refused, match=limit.refusal), limit.use(server, ANNA):
                pass
            for _ in range(limit.available[1]):
                used.enter_context(limit.use(server, BERTA))
            with pytest.raises(refused, match="'berta'"), limit.use(server, BERTA):
                pass
        wait_until(lambda: not server.daemon.stats()["streams"])
        with ExitStack() as again:  # what ended by a disconnect is free again
            for _ in range(limit.available[0]):
                again.enter_context(limit.use(server, ANNA))


def test_the_filters_of_one_principal_do_not_wait_for_those_of_the_other(serve: Serve) -> None:
    def count(client: splitarrow.Client) -> int:
        (rows,) = client.count_rows("shared", filter="x < 10", timeout=20).values()
        return sum(rows)

    def read(client: splitarrow.Client, transport: str) -> int:
        options: Any = {"transport": transport, "stall_timeout": 20}
        with client.read("shared", filter="x < 10", **options) as stream:
            return stream.read_all().num_rows

    uses = [count, partial(read, transport="flight"), partial(read, transport="tcp")]
    with (
        serve(filter_threads=1) as server,
        connect(server.uri, ANNA) as anna,
        connect(server.uri, BERTA) as berta,
        ThreadPoolExecutor(len(uses)) as threads,
    ):
        slots = server.daemon.context.read_slots
        slot: Any = slots.slot_for(Request("shared", filter="AAAA"), "anna")._limiter
        server.portal.call(slot.acquire_on_behalf_of, slot)
        waiting = [threads.submit(use, anna) for use in uses]
        try:
            wait_until(lambda: slot.statistics().tasks_waiting == len(uses), seconds=10)
            assert [use(berta) for use in uses] == [10] * len(uses)
        finally:
            server.portal.call(slot.release_on_behalf_of, slot)
        assert [each.result() for each in waiting] == [10] * len(uses)


def test_the_leases_of_one_principal_outlive_those_of_the_other(serve: Serve) -> None:
    def read(token: str) -> Any:
        client = stack.enter_context(connect(server.uri, token))
        return client.read("shared", transport="shm", batch_rows=1_000_000)

    with serve(listen=("shm://",)) as server, ExitStack() as stack, read(ANNA) as own:
        table = own.read_all()
        held = server.daemon.stats()["leases"]
        assert held
        with read(BERTA) as other:
            theirs = other.read_all()
            assert theirs == BIG
            assert server.daemon.stats()["leases"] == 2 * held
            del theirs
        wait_until(lambda: server.daemon.stats()["leases"] == held)
        assert table == BIG
        del table


def test_bytes_that_one_principal_gives_up_are_free_for_the_other(
    serve: Serve, writable: Path
) -> None:
    size = pa.table({"x": range(10_000)})
    with serve(writable_bytes=120_000) as server, server.client() as client:
        with connect(server.uri, BERTA) as berta:
            berta.put_shard("bertas", size, job="one", ordinal=0)
        with pytest.raises(pa.ArrowException, match="bytes are available"):
            put(client, "annas", size, bearer(ANNA))
    with serve(writable_bytes=120_000) as server, server.client() as client:
        # What is staged survives a restart, and still counts.
        with pytest.raises(pa.ArrowException, match="bytes are available"):
            put(client, "annas", size, bearer(ANNA))
        with connect(server.uri, BERTA) as berta:
            assert berta.publish("bertas", job="one", ordinals=[0]).rows == 10_000
            berta.drop("bertas")
        put(client, "annas", size, bearer(ANNA))


@dataclass
class Bertas:
    """What belongs to Berta, and what Anna does with it."""

    server: Running
    client: Any
    ticket: flight.Ticket
    info: flight.FlightInfo
    """A read that has not begun."""
    running: flight.FlightInfo
    """A read that runs."""
    stream: int
    """The number of the stream that runs."""

    def act(self, action: str, body: Any) -> Any:
        return act(self.client, action, body)

    def renew_endpoint(self) -> Any:
        endpoint = pb.FlightInfo.FromString(self.info.serialize()).endpoint[0]
        body = pb.RenewFlightEndpointRequest(endpoint=endpoint).SerializeToString()
        return self.act("RenewFlightEndpoint", body)

    def cancel(self, info: flight.FlightInfo) -> None:
        request = pb.CancelFlightInfoRequest(info=pb.FlightInfo.FromString(info.serialize()))
        answer = self.act("CancelFlightInfo", request.SerializeToString())
        found = pb.CancelFlightInfoResult.FromString(answer).status
        if found == pb.CANCEL_STATUS_NOT_CANCELLABLE:
            raise flight.FlightUnauthorizedError("not cancellable")

    def stage(self) -> None:
        with connect(self.server.uri, ANNA) as client:
            client.put_shard("bertas-staged", SMALL, job="one", ordinal=0)

    def view(self) -> Any:
        """Return what Berta sees, and the files on the disk."""
        store = Path(str(self.server.daemon.settings.writable))
        files = sorted((str(path), path.stat().st_size) for path in store.rglob("*"))
        seen = status(self.client, BERTA)
        numbers = [each["stream"] for each in seen["streams"]]
        return files, seen["datasets"], numbers


PUBLISH = {"dataset": "bertas-staged", "job": "one", "ordinals": [0], "shards_total": 1}
READ, WRITE, TICKET = (
    "may not read 'bertas'",
    "may not write 'bertas",
    "issued to another principal",
)
ATTEMPTS: dict[str, tuple[Callable[[Bertas], Any], str]] = {
    "plan": (lambda b: get_info(b.client, "bertas", ANNA), READ),
    "schema": (lambda b: b.client.get_schema(PATH("bertas"), bearer(ANNA)), READ),
    "read": (lambda b: b.client.do_get(b.ticket, bearer(ANNA)).read_all(), TICKET),
    "renew": (lambda b: b.act("renew", b.ticket.ticket), TICKET),
    "renew an endpoint": (Bertas.renew_endpoint, TICKET),
    "cancel before": (lambda b: b.cancel(b.info), "not cancellable"),
    "cancel while": (lambda b: b.cancel(b.running), "not cancellable"),
    "cancel a number": (
        lambda b: b.act("cancel", {"stream": b.stream}),
        "no stream .* of the caller",
    ),
    "count": (lambda b: b.act("count", {"dataset": "bertas"}), READ),
    "ranges": (lambda b: b.act("ranges", {"dataset": "bertas"}), READ),
    "hold": (lambda b: b.act("hold", b"bertas"), READ),
    "put": (lambda b: put(b.client, "bertas", SMALL, bearer(ANNA)), WRITE),
    "stage": (Bertas.stage, WRITE),
    "publish": (lambda b: b.act("publish", PUBLISH), WRITE),
    "discard": (lambda b: b.act("discard", {"dataset": "bertas-staged", "job": "one"}), WRITE),
    "drop": (lambda b: b.act("drop", b"bertas"), WRITE),
    "reload": (lambda b: b.act("reload", b""), "act on the whole server"),
}


def test_a_principal_cannot_use_change_or_see_what_belongs_to_another(serve: Serve) -> None:
    with serve() as server, server.client() as client, connect(server.uri, BERTA) as berta:
        put(client, "bertas", BIG.slice(0, 1_000_000), bearer(BERTA))
        berta.put_shard("bertas-staged", SMALL, job="one", ordinal=0)
        running_info, info = (get_info(client, "bertas", BERTA) for _ in range(2))
        reader = client.do_get(running_info.endpoints[0].ticket, bearer(BERTA))
        first = reader.read_chunk().data
        (stream,) = status(client, BERTA)["streams"]
        ticket = info.endpoints[0].ticket
        bertas = Bertas(server, client, ticket, info, running_info, stream["stream"])
        before = bertas.view()
        for name, (attempt, refusal) in ATTEMPTS.items():
            with pytest.raises(
                (pa.ArrowException, OSError, KeyError, SplitArrowError), match=refusal
            ):
                attempt(bertas)
            assert bertas.view() == before, name
        # Everything of Berta still works.
        assert first.num_rows + reader.read_all().num_rows == 1_000_000
        assert client.do_get(ticket, bearer(BERTA)).read_all().num_rows == 1_000_000
        assert berta.publish("bertas-staged", job="one", ordinals=[0]).rows == 1000


def test_status_shows_what_the_grants_of_the_caller_cover(serve: Serve, writable: Path) -> None:
    with serve(listen=("tcp://127.0.0.1:0", "shm://")) as server, server.client() as client:
        put(client, "bertas", BIG.slice(0, 500_000), bearer(BERTA))
        client.do_get(
            get_info(client, "bertas", BERTA).endpoints[0].ticket, bearer(BERTA)
        ).read_all()
        with stream_over_do_get(server, BERTA):
            seen = {token: status(client, token) for token in (ANNA, BERTA, NOBODY, ROOT)}
            names = {
                token: [info.descriptor.path for info in client.list_flights(b"", bearer(token))]
                for token in seen
            }
        anna, berta, nobody, root = seen.values()
        assert root["stats"]["streams_total"] == 2
        assert root["stats"]["connections_total"] == 0
        assert len(root["listen"]) == 2
        assert berta["stats"].keys() == {"streams", "streams_total", "rows", "bytes_sent"}
        assert berta["stats"]["streams_total"] == 2
        assert berta["stats"]["rows"] > 500_000
        assert (anna["stats"]["streams"], anna["stats"]["streams_total"]) == (1, 1)
        assert anna["stats"]["rows"] < 500_000
        assert anna["sent"].keys() == {"shared"}
        assert nobody == {
            "version": splitarrow.__version__,
            "uptime_seconds": nobody["uptime_seconds"],
            "time": nobody["time"],
            "advertised": {},
            "draining": False,
            "datasets": [],
            "sent": {},
            "streams": [],
            "stats": {"streams": 0, "streams_total": 0, "rows": 0, "bytes_sent": 0},
        }
        assert [len(each) for each in names.values()] == [1, 2, 0, 2]
        for each in (anna, berta, nobody):
            assert "bertas" not in json.dumps(each) or each is berta
            assert "shm://" not in json.dumps(each)
