"""When the read of one endpoint continues over a new connection, and when it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest

from helpers.waiting import wait_until
from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.dataset import endpoints
from splitarrow.client.dataset.endpoints import Replica, ResumableEndpoint
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.client.rpc.info import DatasetInfo, Endpoint
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    DeniedError,
    ExhaustedError,
    SplitArrowError,
    remote_error,
)
from splitarrow.protocol.request import Request

BATCH = pa.record_batch({"n": [1, 2, 3]})


class Channel:
    address = "grpc://a:1"


class Reader:
    """An endpoint that returns one batch, and then an error or the end."""

    schema = BATCH.schema
    transport = "tcp"
    bytes_received = 0
    footer_metadata: ClassVar = {b"k": b"v"}

    def __init__(self, error: SplitArrowError | None) -> None:
        self._items: Iterator[pa.RecordBatch | None] = iter((BATCH, None))
        self._error = error

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._items)
        if batch is not None:
            return batch
        if self._error is not None:
            raise self._error
        raise StopIteration

    def cancel(self) -> None: ...
    def close(self) -> None: ...


class Server:
    """A server that answers attempts to connect in turn; the last answer repeats."""

    def __init__(self, *answers: SplitArrowError | Reader, version: str = "7") -> None:
        self.answers = list(answers)
        self.version = version
        self.connects = 0
        self.channels: list[Any] = []
        self.describes = 0
        self.described: list[Request] = []

    def describe(self, request: Request) -> DatasetInfo:
        self.describes += 1
        self.described.append(request)
        endpoint = Endpoint(b"ticket", ())
        return DatasetInfo("d", 3, None, BATCH.schema, "table", self.version, (endpoint,))

    def open_endpoint(self, *arguments: Any) -> Reader:
        self.connects += 1
        self.channels.append(arguments[0])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, SplitArrowError):
            raise answer
        return answer

    def endpoint(self, attempts: int = 3) -> ResumableEndpoint:
        channel = cast(FlightChannel, Channel())
        first = Endpoint(b"ticket", ())
        replica = Replica(channel, self.describe, Request("d"), self.version, None, first)
        return ResumableEndpoint(
            [replica], "d", ReadPlan(StreamOptions(), resume_attempts=attempts)
        )


Start = Callable[..., Server]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Start:
    def start(*answers: SplitArrowError | Reader, version: str = "7") -> Server:
        started = Server(*answers, version=version)
        monkeypatch.setattr(endpoints, "open_endpoint", started.open_endpoint)
        return started

    return start


LOST = ConnectionLostError("lost")
EXPIRED = remote_error("UNAUTHENTICATED", "the ticket expired")


def test_a_broken_connection_is_resumed_with_a_new_ticket(server: Start) -> None:
    running = server(Reader(LOST), Reader(None))
    endpoint = running.endpoint()
    assert [endpoint.next(), endpoint.next(), endpoint.next()] == [BATCH, BATCH, None]
    assert (running.connects, running.describes, endpoint.resumed) == (2, 1, 1)
    assert endpoint.footer_metadata == {b"k": b"v"}


def test_a_read_is_resumed_at_another_server_first(server: Start) -> None:
    started = server(Reader(LOST), Reader(None))
    channels = [cast(FlightChannel, Channel()), cast(FlightChannel, Channel())]
    first = Endpoint(b"ticket", ())
    replicas = [
        Replica(channel, started.describe, Request("d"), "7", None, endpoint)
        for channel, endpoint in zip(channels, (first, None), strict=True)
    ]
    endpoint = ResumableEndpoint(replicas, "d", ReadPlan(StreamOptions()))
    assert endpoint.next() == endpoint.next() == BATCH
    assert started.channels == channels


@pytest.mark.parametrize(
    ("request_", "shard", "rest"),
    [
        (Request("d"), None, Request("d", version="7", offset=3)),
        (Request("d"), 2, Request("d", version="7", offset=3, shard=2)),
        (Request("d", shard=1), None, Request("d", version="7", offset=3, shard=1)),
        (Request("d", offset=5), None, Request("d", version="7", offset=8)),
        (
            Request("d", rows=(10, 20), shard=1),
            None,
            Request("d", version="7", offset=3, rows=(10, 20), shard=1),
        ),
    ],
)
def test_the_rest_is_that_of_the_same_rows(
    server: Start, request_: Request, shard: int | None, rest: Request
) -> None:
    running = server(Reader(LOST), Reader(None))
    channel, first = cast(FlightChannel, Channel()), Endpoint(b"ticket", ())
    replica = Replica(channel, running.describe, request_, "7", shard, first)
    endpoint = ResumableEndpoint([replica], "d", ReadPlan(StreamOptions()))
    while endpoint.next() is not None:
        pass
    assert running.described == [rest]


def test_a_dataset_without_a_version_is_not_resumed(server: Start) -> None:
    running = server(Reader(LOST), Reader(None), version="")
    endpoint = running.endpoint()
    assert endpoint.next() == BATCH
    with pytest.raises(ConnectionLostError):
        endpoint.next()
    assert (running.connects, running.describes) == (1, 0)


def test_a_dataset_without_a_version_is_opened_once(server: Start) -> None:
    for error in (ConnectError("refused"), EXPIRED):
        running = server(error, version="")
        with pytest.raises(type(error)):
            running.endpoint().open()
        assert (running.connects, running.describes) == (1, 0)


def test_a_read_is_not_resumed_at_a_server_that_refused(server: Start) -> None:
    running = server(Reader(ExhaustedError("too many")), Reader(None))
    endpoint = running.endpoint()
    assert endpoint.next() == BATCH
    with pytest.raises(ExhaustedError):
        endpoint.next()
    assert (running.connects, running.describes) == (1, 0)


def test_a_server_that_refuses_is_not_tried_again(server: Start) -> None:
    running = server(ExhaustedError("too many"))
    with pytest.raises(ExhaustedError):
        running.endpoint().open()
    assert (running.connects, running.describes) == (1, 0)


def test_a_server_that_refuses_a_resumed_read_is_not_tried_again(server: Start) -> None:
    running = server(Reader(LOST), ExhaustedError("too many"))
    endpoint = running.endpoint()
    assert endpoint.next() == BATCH
    with pytest.raises(ExhaustedError):
        endpoint.next()
    assert (running.connects, running.describes) == (2, 1)


def test_a_refused_ticket_is_renewed_once(server: Start) -> None:
    running = server(EXPIRED, Reader(None))
    endpoint = running.endpoint()
    assert [endpoint.next(), endpoint.next()] == [BATCH, None]
    assert (running.connects, running.describes) == (2, 1)

    running = server(EXPIRED)
    with pytest.raises(DeniedError, match="the ticket expired"):
        running.endpoint().open()
    assert (running.connects, running.describes) == (2, 1)


def test_a_renewed_ticket_counts_against_one_attempt_only(server: Start) -> None:
    running = server(EXPIRED, ConnectError("refused"))
    with pytest.raises(ConnectError):
        running.endpoint().open()
    assert running.connects == 2


def test_cancelling_ends_a_reconnect(server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitarrow.client.dataset.endpoints.FIRST_PAUSE_SECONDS", 1000.0)
    monkeypatch.setattr("splitarrow.client.dataset.endpoints.MAX_PAUSE_SECONDS", 1000.0)
    running = server(Reader(LOST), ConnectError("refused"))
    endpoint = running.endpoint(attempts=100)
    assert endpoint.next() == BATCH
    errors: list[SplitArrowError] = []

    def read() -> None:
        try:
            endpoint.next()
        except SplitArrowError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: endpoint.transport == "", "a lost connection")
    endpoint.cancel()
    thread.join(30)
    assert not thread.is_alive()
    (error,) = errors
    assert isinstance(error, ClosedError)
    assert running.connects == 1


def test_cancelling_while_a_connection_is_made_closes_it(server: Start) -> None:
    running = server(Reader(LOST), Reader(None))
    endpoint = running.endpoint()
    assert endpoint.next() == BATCH
    describe = running.describe

    def cancel_and_describe(request: Request) -> DatasetInfo:
        endpoint.cancel()
        return describe(request)

    object.__setattr__(endpoint._replicas.current, "describe", cancel_and_describe)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ClosedError):
        endpoint.next()
    assert endpoint.resumed == 0
