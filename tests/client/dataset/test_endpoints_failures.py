"""At which server, and how often, the read of one endpoint is tried again when servers fail."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.dataset import endpoints
from splitarrow.client.dataset.endpoints import Replica, ResumableEndpoint
from splitarrow.client.rpc.info import DatasetInfo, Endpoint
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    DeniedError,
    ExhaustedError,
    InvalidDataError,
    RemoteError,
    SplitArrowError,
    remote_error,
)
from splitarrow.protocol.request import Request

BATCH = pa.record_batch({"n": [1, 2, 3]})
SCHEMA = BATCH.schema
REQUEST = Request("d")
LOST = ConnectionLostError("lost")
DOWN = ConnectError("down")
REFUSED = ExhaustedError("too many")
EXPIRED = remote_error("UNAUTHENTICATED", "the ticket expired")


class Part:
    """A connection that delivers some batches, and then fails or ends."""

    transport = "tcp"
    footer_metadata = None

    def __init__(
        self, batches: int = 1, error: SplitArrowError | None = None, schema: pa.Schema = SCHEMA
    ) -> None:
        self._left = batches
        self._error = error
        self.schema = schema
        self.bytes_received = 10
        self.calls: list[str] = []

    def __next__(self) -> pa.RecordBatch:
        if self._left:
            self._left -= 1
            return BATCH
        raise StopIteration if self._error is None else self._error

    def cancel(self) -> None:
        self.calls.append("cancel")

    def close(self) -> None:
        self.calls.append("close")


class Servers:
    """Servers that answer attempts to connect in turn, in the order in which they are tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = list(answers)
        self.tried: list[str] = []
        self.tickets: list[bytes] = []
        self.requests: list[Request] = []
        self.unreachable: set[str] = set()
        self.described_version = "7"
        self.described_parts = 1
        monkeypatch.setattr(endpoints, "open_endpoint", self.open_endpoint)
        monkeypatch.setattr(endpoints, "FIRST_PAUSE_SECONDS", 0.0)

    def describe(self, request: Request) -> DatasetInfo:
        self.requests.append(request)
        parts = (Endpoint(b"new", ()),) * self.described_parts
        return DatasetInfo("d", 3, None, SCHEMA, "table", self.described_version, parts)

    def open_endpoint(self, channel: Any, endpoint: Endpoint, plan: ReadPlan, name: str) -> Any:
        assert name == "d"
        self.tried.append(channel.address)
        self.tickets.append(endpoint.ticket)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, SplitArrowError):
            raise answer
        return answer

    def endpoint(
        self,
        addresses: str = "a",
        *,
        attempts: int = 3,
        version: str = "7",
        has_ticket: bool = True,
        request: Request = REQUEST,
        shard: int | None = None,
        **options: Any,
    ) -> ResumableEndpoint:
        ticket = Endpoint(b"first", ()) if has_ticket else None
        channels: list[Any] = [SimpleNamespace(address=address) for address in addresses]
        replicas = [
            Replica(channel, self.describe, request, version, shard, ticket) for channel in channels
        ]
        plan = ReadPlan(StreamOptions(), resume_attempts=attempts)
        return ResumableEndpoint(replicas, "d", plan, unreachable=self.unreachable, **options)


def rows_of(endpoint: ResumableEndpoint) -> int:
    """Read an endpoint to its end."""
    while endpoint.next() is not None:
        pass
    return endpoint.rows


def test_an_endpoint_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch, part := Part(2))
    endpoint = servers.endpoint()
    assert (endpoint.transport, endpoint.bytes_received, endpoint.footer_metadata) == ("", 0, None)
    assert endpoint.channel.address == "a"
    endpoint.open(first=True)
    endpoint.open()
    assert (endpoint.transport, endpoint.bytes_received, endpoint.schema) == ("tcp", 10, SCHEMA)
    assert rows_of(endpoint) == 6
    assert (servers.tried, servers.tickets, servers.requests) == (["a"], [b"first"], [])
    assert (endpoint.resumed, part.calls) == (0, [])
    endpoint.close()
    assert part.calls == ["close"]
    with pytest.raises(ClosedError, match="the stream was cancelled"):
        endpoint.next()


def test_a_closed_or_cancelled_endpoint_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch, Part())
    for end in (ResumableEndpoint.cancel, ResumableEndpoint.close):
        endpoint = servers.endpoint()
        end(endpoint)
        with pytest.raises(ClosedError, match="the stream was cancelled") as caught:
            endpoint.open()
        assert caught.value.stream == "d"
    assert servers.tried == []
    endpoint = servers.endpoint()
    endpoint.open()
    endpoint.cancel()
    assert servers.answers[0].calls == ["cancel"]


def test_the_rest_is_requested_after_the_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Part(2, LOST), Part(0, LOST), Part(1)]
    servers = Servers(monkeypatch, *parts)
    request = Request("d", ("n",), version="7")
    endpoint = servers.endpoint(request=request, shard=4, limit=20)
    assert rows_of(endpoint) == 9
    rest = replace(request, shard=4, offset=6, limit=14)
    assert servers.requests == [rest, rest]
    assert servers.tickets == [b"first", b"new", b"new"]
    assert (endpoint.resumed, endpoint.bytes_received) == (2, 30)
    assert [part.calls for part in parts] == [["close"], ["close"], []]


def test_a_request_without_rows_so_far_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch, Part())
    request = Request("d", version="5")
    assert rows_of(servers.endpoint(request=request, has_ticket=False)) == 3
    servers.described_version = ""
    assert rows_of(servers.endpoint(request=request, has_ticket=False, version="", limit=9)) == 0
    assert servers.requests == [Request("d", version="7"), Request("d", version="5", limit=9)]


@pytest.mark.parametrize("change", [{"described_version": "8"}, {"described_parts": 2}])
def test_rows_of_another_version_are_never_appended(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    servers = Servers(monkeypatch, Part(1, LOST))
    vars(servers).update(change)
    endpoint = servers.endpoint()
    endpoint.next()
    with pytest.raises(RemoteError, match="'d' changed after 3 rows were read, and the") as caught:
        endpoint.next()
    assert (caught.value.code, caught.value.stream) == ("FAILED_PRECONDITION", "d")
    assert (servers.tried, len(servers.requests)) == (["a"], 1)


def test_a_server_without_the_version_says_that_the_dataset_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = remote_error("FAILED_PRECONDITION", "no version 7")
    servers = Servers(monkeypatch, Part(1, LOST), gone)
    endpoint = servers.endpoint("ab")
    endpoint.next()
    with pytest.raises(RemoteError, match="'d' changed after 3 rows were read"):
        endpoint.next()
    assert servers.tried == ["a", "b", "a"]


@pytest.mark.parametrize("field", [("m", pa.int64()), ("n", pa.float64())])
def test_a_schema_that_changes_is_refused(
    monkeypatch: pytest.MonkeyPatch, field: tuple[str, Any]
) -> None:
    other = Part(1, schema=pa.schema([field]))
    servers = Servers(monkeypatch, Part(1, LOST), other)
    endpoint = servers.endpoint()
    endpoint.next()
    with pytest.raises(InvalidDataError, match="the schema changed during the read"):
        endpoint.next()
    assert other.calls == ["close"]
    assert endpoint.transport == ""


@pytest.mark.parametrize(
    ("addresses", "first", "error", "tried"),
    [
        ("a", True, DOWN, "a"),  # A server that was never reached is not awaited.
        ("a", True, LOST, "aaa"),
        ("a", False, DOWN, "aaaa"),
        ("ab", True, DOWN, "ababa"),
        ("ab", False, DOWN, "abababa"),
    ],
)
def test_servers_that_cannot_be_reached_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    addresses: str,
    first: bool,
    error: SplitArrowError,
    tried: str,
) -> None:
    servers = Servers(monkeypatch, error)
    endpoint = servers.endpoint(addresses)
    with pytest.raises(type(error)):
        endpoint.open(first=first)
    assert "".join(servers.tried) == tried
    assert servers.unreachable == set(addresses)
    assert endpoint.resumed == 0


def test_a_server_that_responds_again_counts_as_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch, DOWN, Part())
    endpoint = servers.endpoint()
    endpoint.open()
    assert (servers.unreachable, endpoint.resumed) == (set(), 1)
    servers.unreachable.add("a")
    servers.endpoint("abc").open()
    assert servers.tried == ["a", "a", "b"]  # The one that failed lately would come last.


def test_rows_reset_the_number_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch, *[Part(1, LOST) for _ in range(5)], Part(1))
    assert rows_of(servers.endpoint(attempts=1)) == 18
    servers = Servers(monkeypatch, Part(1, LOST), Part(0, LOST), Part(1))
    endpoint = servers.endpoint(attempts=1)
    with pytest.raises(ConnectionLostError):
        rows_of(endpoint)
    assert endpoint.resumed == 1


@pytest.mark.parametrize(
    ("addresses", "has_ticket", "tried"),
    [("a", True, "aa"), ("a", False, "a"), ("ab", True, "aab"), ("ab", False, "ab")],
)
def test_only_a_ticket_that_may_have_expired_is_renewed(
    monkeypatch: pytest.MonkeyPatch, addresses: str, has_ticket: bool, tried: str
) -> None:
    servers = Servers(monkeypatch, EXPIRED)
    with pytest.raises(DeniedError, match="the ticket expired"):
        servers.endpoint(addresses, has_ticket=has_ticket).open()
    assert "".join(servers.tried) == tried
    assert servers.unreachable == set()  # It has responded.


@pytest.mark.parametrize("begins", [True, False])
def test_a_server_that_refuses_is_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    first: list[Any] = [Part(1, REFUSED)] if begins else [REFUSED]
    servers = Servers(monkeypatch, *first, Part(1, LOST), Part(1))
    endpoint = servers.endpoint("ab")
    assert rows_of(endpoint) == 6 + 3 * begins
    assert (servers.tried, endpoint.resumed) == (["a", "b", "b"], 2)
    servers = Servers(monkeypatch, *first, REFUSED)
    with pytest.raises(ExhaustedError, match="too many"):
        rows_of(servers.endpoint("ab"))


def test_without_attempts_every_failure_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (DOWN, LOST, REFUSED, EXPIRED):
        servers = Servers(monkeypatch, error)
        with pytest.raises(type(error)) as caught:
            servers.endpoint("ab", attempts=0).open()
        assert caught.value is error
        assert servers.tried == ["a"]


def test_the_error_of_a_shard_names_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(monkeypatch, Part(1, ConnectionLostError("lost")), DOWN, REFUSED)
    endpoint = servers.endpoint("ab", ordinal=4)
    endpoint.next()
    with pytest.raises(ExhaustedError) as caught:
        endpoint.next()
    assert caught.value.stream == "d"
    assert caught.value.message == (
        "cannot read shard 4 of 'd' after 3 of its rows; the daemons that hold it failed: "
        "a: too many; b: too many"
    )
    endpoint = Servers(monkeypatch, DOWN).endpoint(ordinal=0)
    with pytest.raises(
        ConnectError, match=r"^cannot read shard 0 of 'd' after 0 of its rows; .* a: d"
    ):
        endpoint.open(first=True)
    endpoint = Servers(monkeypatch, REFUSED, DOWN).endpoint("ab", ordinal=0)
    with pytest.raises(ConnectError, match=r"failed: a: too many; b: down"):
        endpoint.open()
    for error in (REFUSED, EXPIRED):
        endpoint = Servers(monkeypatch, error).endpoint(ordinal=0, attempts=0)
        with pytest.raises(type(error), match=r"^cannot read shard 0"):
            endpoint.open()


def test_a_read_that_fails_because_it_was_cancelled_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cancelling(Part):
        def __next__(self) -> pa.RecordBatch:
            endpoint.cancel()
            raise LOST

    servers = Servers(monkeypatch, part := Cancelling())
    endpoint = servers.endpoint()
    endpoint.open()
    with pytest.raises(ClosedError, match="the stream was cancelled"):
        endpoint.next()
    assert (servers.tried, part.calls) == (["a"], ["cancel"])


def test_a_connection_that_is_made_after_a_cancellation_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = Servers(monkeypatch, part := Part())
    endpoint = servers.endpoint(has_ticket=False)
    describe = servers.describe

    def cancel_and_describe(request: Request) -> DatasetInfo:
        endpoint.cancel()
        return describe(request)

    object.__setattr__(endpoint._replicas.current, "describe", cancel_and_describe)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ClosedError, match="the stream was cancelled"):
        endpoint.open()
    assert part.calls == ["close"]
