"""The calls that the client of one control plane makes, over a channel that needs no server."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.dataset import client as module
from splitarrow.client.dataset.client import Client
from splitarrow.client.tokens import FixedToken
from splitarrow.errors import ConnectError, UsageError
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.tls_options import TlsOptions

SCHEMA = pa.schema([("n", pa.int64())])
PLAN = ReadPlan(StreamOptions())


def describe(parts: int, version: str = "7", ordinals: list[int] | None = None) -> bytes:
    """Return a FlightInfo."""
    endpoints = [
        flight.FlightEndpoint(
            ticket=flight.Ticket(ticket=b"t%d" % index),
            app_metadata=b"" if ordinals is None else b'{"ordinal": %d}' % ordinals[index],
        )
        for index in range(parts)
    ]
    return flight.FlightInfo(
        schema=SCHEMA.serialize().to_pybytes(),
        endpoint=endpoints,
        app_metadata=json.dumps({"dataset": "d", "version": version}).encode(),
    ).SerializeToString()


class Channel:
    """A channel that records calls, and answers as a test says."""

    made: ClassVar[list[Channel]] = []
    failure: ClassVar[Exception | None] = None
    plans_by_do_get = False

    def __init__(self, uri: DataUri, *arguments: Any) -> None:
        self.address = uri.address
        self.arguments = arguments
        self.info = describe(1)
        self.results: list[bytes] = []
        self.calls: list[tuple[Any, ...]] = []
        self.timeouts: list[float | None] = []
        self.closed = 0
        self.made.append(self)

    def check_connection(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        if self.failure is not None:
            raise self.failure

    def call_unary(self, method: str, message: bytes, *, dataset: str) -> bytes:
        self.calls.append((method, message, dataset))
        if method == "GetSchema":
            schema = SCHEMA.serialize().to_pybytes()
            return flight.SchemaResult(schema=schema).SerializeToString()
        return self.info

    def call_stream(
        self, method: str, message: bytes, *, dataset: str | None = None, timeout: Any = None
    ) -> Iterator[bytes]:
        self.calls.append((method, message, dataset))
        self.timeouts.append(timeout)
        if method == "ListFlights":
            return iter([self.info, self.info])
        return iter([flight.Result(body=body).SerializeToString() for body in self.results])

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Channel]:
    """The channels that were made."""
    Channel.made, Channel.failure = [], None
    monkeypatch.setattr(module, "FlightChannel", Channel)
    return Channel.made


def connect(**options: Any) -> tuple[Client, Any]:
    client = Client("grpc://a:1", **options)
    return client, client.channel


def test_a_client_connects_once_and_closes_its_channel(made: list[Channel]) -> None:
    tls = TlsOptions()
    client, channel = connect(token="t", tls=tls, connect_timeout=0.5, timeout=0.25)
    assert (channel.arguments, channel.timeouts) == ((FixedToken("t"), tls, 0.25, 0.5), [0.5])
    with client as entered:
        assert entered is client
        assert client.uri == "grpc://a:1"
    assert channel.closed == 1
    copy = pickle.loads(pickle.dumps(client))
    assert made[1:] == [copy.channel]
    assert (made[1].arguments, made[1].timeouts) == ((FixedToken("t"), tls, 0.25, 0.5), [0.5])
    Channel.failure = ConnectError("away")
    with pytest.raises(ConnectError, match="away"):
        connect()
    assert [each.closed for each in made] == [1, 0, 1]
    assert (made[2].arguments, made[2].timeouts) == ((None, None, 30.0, 10.0), [10.0])


@pytest.mark.parametrize(("token", "shown"), [("secret", "with a token"), (None, "without a tok")])
def test_a_client_shows_its_address_but_not_its_token(token: str | None, shown: str) -> None:
    client, _ = connect(token=token)
    for text in (repr(client), client._repr_html_()):
        assert "grpc://a:1" in text
        assert shown in text
        assert "secret" not in text
        assert "client[NAME] is one dataset" in text


@pytest.mark.parametrize(("glob", "expression"), [(None, b""), ("d*", b"d*"), ("ü", "ü".encode())])
def test_datasets_are_listed_by_a_pattern(glob: str | None, expression: bytes) -> None:
    client, channel = connect()
    assert [info.name for info in client.datasets(glob)] == ["d", "d"]
    ((method, message, dataset),) = channel.calls
    assert (method, dataset) == ("ListFlights", None)
    assert flight.Criteria.FromString(message).expression == expression


def test_datasets_are_described_by_request_and_by_name() -> None:
    client, channel = connect()
    assert client.describe(Request("d", limit=3)).version == "7"
    assert client.schema("d") == SCHEMA
    (info, message, named), (schema, other, also_named) = channel.calls
    assert (info, schema, named, also_named) == ("GetFlightInfo", "GetSchema", "d", "d")
    descriptor = flight.FlightDescriptor.FromString(message)
    assert descriptor.type == flight.FlightDescriptor.CMD
    assert json.loads(descriptor.cmd) == {"dataset": "d", "limit": 3}
    descriptor = flight.FlightDescriptor.FromString(other)
    assert (descriptor.type, list(descriptor.path)) == (flight.FlightDescriptor.PATH, ["d"])


def test_actions_return_the_body_of_their_result() -> None:
    client, channel = connect()
    assert client.act("sleep") == b""
    channel.results = [b'{"streams": 0}', b"more"]
    assert client.act("sleep", b"body", dataset="d") == b'{"streams": 0}'
    assert client.status() == {"streams": 0}
    client.drop("d")
    client.discard("ü", "j")
    actions = [
        (action.type, action.body, dataset)
        for _, message, dataset in channel.calls
        for action in [flight.Action.FromString(message)]
    ]
    assert {method for method, _, _ in channel.calls} == {"DoAction"}
    assert actions == [
        ("sleep", b"", None),
        ("sleep", b"body", "d"),
        ("status", b"", None),
        ("drop", b"d", "d"),
        ("discard", '{"dataset": "ü", "job": "j"}'.encode(), "ü"),
    ]
    for call in (client.drop, client.schema, client.info, lambda name: client.discard(name, "j")):
        with pytest.raises(UsageError):
            call("")


@pytest.mark.parametrize(
    ("requested", "reported", "sent"), [(None, "7", "7"), ("5", "7", "5"), (None, "", None)]
)
def test_rows_are_counted_in_one_version_by_ordinal(
    requested: str | None, reported: str, sent: str | None
) -> None:
    client, channel = connect()
    channel.info = describe(3, reported, [4, 6, 8])
    channel.results = [b'{"shard": 2, "rows": [1]}', b'{"shard": 0, "rows": [2, 3]}']
    assert client.count_rows("d", version=requested, timeout=2.5) == {4: [2, 3], 8: [1]}
    action = flight.Action.FromString(channel.calls[-1][1])
    assert action.type == "count"
    assert Request.parse(action.body) == Request("d", version=sent)
    assert channel.timeouts[-1] == 2.5


def plan(client: Client, shards: list[int] | None = None, **request: Any) -> list[Any]:
    selected = None if shards is None else frozenset(shards)
    schema, endpoints = client._plan_endpoints(Request("d", **request), selected, PLAN)
    assert schema == SCHEMA
    return [
        (replica.shard, replica.endpoint and replica.endpoint.ticket, replica.request, each._limit)
        for each in endpoints
        for replica in [each._replicas.current]
    ]


def test_the_parts_of_a_dataset_are_read_in_the_version_that_was_described() -> None:
    client, channel = connect()
    request = Request("d", limit=5)
    assert plan(client, limit=5) == [(None, b"t0", request, 5)]
    channel.info = describe(2)
    tickets = [Request(f"t{index}", version="7").ticket() for index in range(2)]
    assert plan(client, limit=5) == [(0, tickets[0], request, 5), (1, tickets[1], request, 5)]
    # The server would apply the limit to all shards.
    assert plan(client, [1], limit=5) == [(1, tickets[1], Request("d"), None)]
    assert json.loads(flight.FlightDescriptor.FromString(channel.calls[-1][1]).cmd) == {
        "dataset": "d"
    }


@pytest.mark.parametrize(("parts", "shard"), [(1, None), (2, 0)])
def test_the_ticket_for_batches_of_a_shard_is_requested_later(
    parts: int, shard: int | None
) -> None:
    client, channel = connect()
    channel.info = describe(parts)
    request = Request("d", limit=5, batches=(0, 1), version="7")
    for _ in range(2):
        found = plan(client, [0], limit=5, batches=(0, 1), version="7")
        assert found == [(shard, None, request, 5)]
    ((_, message, _),) = channel.calls
    cmd = json.loads(flight.FlightDescriptor.FromString(message).cmd)
    assert cmd == {"dataset": "d", "version": "7"}
    assert plan(client, batches=(0, 1))[0][1] is not None


def test_uploads_check_their_arguments_before_they_call() -> None:
    client, channel = connect()
    table = pa.table({"n": [1]})
    for wrong in (
        lambda: client.put("", table),
        lambda: client.put_shard("", table, job="j", ordinal=0),
        lambda: client.publish("", job="j", ordinals=[0]),
    ):
        with pytest.raises(UsageError, match="cannot request ''"):
            wrong()
    for name in ("append", "", None, True, ["replace"]):
        value: Any = name
        with pytest.raises(UsageError, match=r"if_exists is .*; expected error, replace"):
            client.put("d", table, if_exists=value)
    assert channel.calls == []


def test_a_publication_is_an_action() -> None:
    client, channel = connect()
    result = {"dataset": "d", "version": 2, "snapshot": "j", "shards": 1, "rows": 3, "bytes": 9}
    channel.results = [json.dumps(result).encode()]
    assert client.publish("d", job="j", ordinals=[1, 0], properties={"k": "v"}).version == 2
    ((_, message, dataset),) = channel.calls
    action = flight.Action.FromString(message)
    assert (action.type, dataset) == ("publish", "d")
    assert json.loads(action.body) == {
        "dataset": "d",
        "job": "j",
        "ordinals": [0, 1],
        "shards_total": 2,
        "snapshot": "j",
        "mode": "overwrite",
        "properties": {"k": "v"},
    }
