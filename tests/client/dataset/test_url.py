"""Datasets over HTTP without a control plane: a broken read resumes, and every row arrives once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import anyio
import pyarrow as pa
import pytest

import splitarrow
from helpers.scripted_http import Received, ScriptedServer, chunked, head, scripted_server, text
from helpers.streams import ipc_stream
from splitarrow.client.dataset import endpoints
from splitarrow.errors import (
    ClosedError,
    ConnectionLostError,
    ExhaustedError,
    InvalidDataError,
    NotFoundError,
    RemoteError,
    StallError,
    TransportError,
    UnavailableError,
    UriError,
    UsageError,
)

TABLE = pa.table({"n": list(range(10)), "s": [str(number) for number in range(10)]})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "draw_pause", lambda retry: 0.0)


def respond(request: Received, table: pa.Table = TABLE, version: str = "v1") -> bytes:
    """Return the response to a request that selects by offset and limit."""
    selection = request.selection
    part = table.slice(selection.get("offset", 0), selection.get("limit"))
    body = ipc_stream(part.to_batches(max_chunksize=3), table.schema)
    return chunked(body, 100, rows=part.num_rows, splitarrow_version=version)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(lambda request: [respond(request)]) as started:
        yield started


def read(server: ScriptedServer, **arguments: Any) -> pa.Table:
    with splitarrow.open(f"{server.uri}/trips", **arguments) as stream:
        return stream.read_all()


def test_a_read_selects_by_the_content_of_the_request(server: ScriptedServer) -> None:
    plain: dict[str, Any] = {"columns": ["n"], "limit": 4, "batch_rows": 2, "compression": "lz4"}
    read(server, **plain, rows=(1, 9), version="v1", filter="n >= 0")
    schema, data = server.received
    assert schema.selection == {"limit": 0, "version": "v1"}
    selection = data.selection
    assert selection.pop("substrait")
    assert selection == plain | {"rows": [1, 9], "version": "v1"}


@pytest.mark.parametrize(
    "step", [pytest.param(61, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
def test_a_read_resumes_wherever_it_is_cut(server: ScriptedServer, step: int) -> None:
    whole = respond(Received("POST", "/", {}, b"{}"))
    schema_end = len(chunked(ipc_stream([], TABLE.schema)[:-8], 100, splitarrow_version="v1"))
    resumed = 0
    for position in range(0, len(whole), step):
        cuts = iter([position])
        server.script = lambda request, cuts=cuts: [respond(request)[: next(cuts, None)]]
        try:
            with splitarrow.open(f"{server.uri}/trips") as stream:
                assert isinstance(stream, splitarrow.DatasetStream)
                assert stream.read_all().equals(TABLE)
                resumed += stream.resumed
        except TransportError:
            assert position < schema_end
    assert resumed > (len(whole) - schema_end) // step - 3


def test_a_resumed_read_keeps_its_version_limit_and_selection(server: ScriptedServer) -> None:
    def script(request: Received) -> Iterable[bytes]:
        response = respond(request)
        return [response if "offset" in request.selection else response[: len(response) * 3 // 4]]

    server.script = script
    with splitarrow.open(f"{server.uri}/trips", limit=8, columns=["n", "s"]) as stream:
        assert stream.read_all().equals(TABLE.slice(0, 8))
        assert isinstance(stream, splitarrow.DatasetStream)
        assert stream.resumed == 1
    first, second = server.received
    offset = second.selection["offset"]
    assert 0 < offset < 8
    expected = {"limit": 8 - offset, "offset": offset, "version": "v1"}
    assert second.selection == first.selection | expected


def test_resuming_ends(server: ScriptedServer) -> None:
    server.script = lambda request: [respond(request)[:-60]] if not cut(request) else []
    with pytest.raises(ConnectionLostError):
        read(server, resume_attempts=2)
    assert len(server.received) == 1 + 2
    server.received.clear()
    with pytest.raises(ConnectionLostError):
        read(server, resume_attempts=0)
    assert len(server.received) == 1


def cut(request: Received) -> bool:
    return "offset" in request.selection


def test_a_response_without_a_version_cannot_be_resumed(server: ScriptedServer) -> None:
    server.script = lambda request: [respond(request, version="")[:-60]]
    with pytest.raises(ConnectionLostError):
        read(server)
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("response", "kind", "problem", "requests"),
    [
        (text("409 Conflict", "changed"), RemoteError, "changed after 9 rows were read", 2),
        (text("429 Too Many Requests", "too many"), ExhaustedError, "too many", 2),
        (text("404 Not Found", "no dataset"), NotFoundError, "no dataset", 2),
        (text("503 Service Unavailable", "draining"), UnavailableError, "draining", 4),
    ],
)
def test_a_refusal_ends_a_resumed_read(
    server: ScriptedServer,
    response: list[bytes],
    kind: type[Exception],
    problem: str,
    requests: int,
) -> None:
    server.script = lambda request: response if cut(request) else [respond(request)[:-100]]
    with pytest.raises(kind, match=problem):
        read(server, resume_attempts=3)
    assert len(server.received) == requests


def test_a_server_that_restarts_is_waited_for(server: ScriptedServer) -> None:
    responses = iter([None, [], text("503 Service Unavailable", "loading"), [head()[:20]]])

    def script(request: Received) -> Iterable[bytes]:
        response = next(responses, [respond(request)])
        return [respond(request)[:-100]] if response is None else response

    server.script = script
    assert read(server).equals(TABLE)
    assert len(server.received) == 5


def test_another_schema_ends_a_resumed_read(server: ScriptedServer) -> None:
    other = TABLE.rename_columns(["n", "t"])
    server.script = lambda request: [
        respond(request, other) if cut(request) else respond(request)[:-100]
    ]
    with pytest.raises(InvalidDataError, match="the schema changed"):
        read(server)


def test_the_first_request_fails_at_once(server: ScriptedServer) -> None:
    server.script = lambda _: text("503 Service Unavailable", "the daemon is loading")
    with pytest.raises(UnavailableError, match="the daemon is loading"):
        read(server)
    assert len(server.received) == 1


@pytest.mark.parametrize("prefetch_bytes", [None, 1 << 20])
def test_another_thread_cancels(server: ScriptedServer, prefetch_bytes: int | None) -> None:
    def script(request: Received) -> Iterable[bytes]:
        yield respond(request)[:-100]
        waits.set()
        yield from server.wait_for_end()

    waits = threading.Event()
    server.script = script
    uri = f"{server.uri}/trips"
    with splitarrow.open(uri, prefetch_bytes=prefetch_bytes) as stream:
        thread = threading.Thread(target=lambda: waits.wait(60) and stream.cancel())
        thread.start()
        with pytest.raises(ClosedError, match="cancelled"):
            stream.read_all()
        thread.join()


@pytest.mark.slow
def test_a_stalled_read_ends(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(request: Received) -> Iterable[bytes]:
        yield respond(request)[:-100]
        yield from server.wait_for_end()

    monkeypatch.setattr(endpoints, "RETRY_SECONDS", 0.1)
    server.script = script
    with pytest.raises(StallError):
        read(server, stall_timeout=2)
    assert len(server.received) > 1


def test_the_name_of_a_dataset(server: ScriptedServer) -> None:
    targets = (
        "trips",
        "a/b%20c",
        "v1/datasets/trips",
        "v1/datasets/trips/data",
        "p/v1/datasets/t/",
    )
    for target in targets:
        splitarrow.open(f"{server.uri}/{target}").close()
    splitarrow.open(server.uri, "trips").close()
    trips = "/v1/datasets/trips/data"
    assert [each.target for each in server.received] == [
        *(trips, "/v1/datasets/a%2Fb%20c/data", trips, trips, "/p/v1/datasets/t/data", trips)
    ]


@pytest.mark.parametrize(
    ("path", "ticket", "problem"),
    [
        ("", None, "names no dataset; open http://127"),
        ("/trips?limit=3", None, "has parameters; pass them as arguments"),
        ("/trips?ticket=a", None, "has parameters"),
        ("/trips", "trips", "already names a dataset"),
    ],
)
def test_malformed_urls(
    server: ScriptedServer, path: str, ticket: str | None, problem: str
) -> None:
    with pytest.raises(UriError, match=problem):
        splitarrow.open(server.uri + path, ticket)
    with pytest.raises(UriError, match=problem):
        splitarrow.aio.open(server.uri + path, ticket)
    assert server.received == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"sql": "SELECT 1"}, "sql needs a control plane"),
        ({"shards": [1]}, "shards needs a control plane"),
        ({"transport": "tcp"}, "transport is 'tcp', and http://.* is over HTTP"),
        ({"format": "vortex"}, "HTTP carries the format 'arrow'"),
        ({"tls": "ca.pem"}, "expected splitarrow.TlsOptions"),
        ({"token": "a\nb"}, "newline"),
    ],
)
def test_options_that_http_does_not_have(
    server: ScriptedServer, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        read(server, **arguments)
    assert server.received == []


def test_options_that_have_no_effect(server: ScriptedServer) -> None:
    arguments: Any = {"transport": "http", "parallel": 2, "format": "auto", "compression": "auto"}
    assert read(server, **arguments).equals(TABLE)
    assert server.received[0].selection == {}


def test_the_token_is_sent_and_not_shown(server: ScriptedServer) -> None:
    with splitarrow.open(f"{server.uri}/trips", token="s3cret", filter="n > 1") as stream:
        assert "s3cret" not in repr(stream)
    assert {each.headers["authorization"] for each in server.received} == {"Bearer s3cret"}


def test_asynchronous_reads(server: ScriptedServer) -> None:
    async def read_async() -> pa.Table:
        async with splitarrow.aio.open(f"{server.uri}/trips", filter="n >= 0") as stream:
            assert stream.transport == "http"
            return await stream.read_all()

    assert anyio.run(read_async).equals(TABLE)
