"""Traces of real daemons and clients, as a collector gets them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import flight

import helpers
import splitarrow
from helpers.collector import Collector, ExportedSpan, collector
from helpers.daemons import StartDaemon, daemon
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.errors import SplitArrowError
from splitarrow.protocol.uri import DataUri
from splitarrow.testing import Daemon

__all__ = ["collector", "daemon"]

ROWS = 10_000
SERVER, CLIENT = 2, 3
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
INFO = "arrow.flight.protocol.FlightService/GetFlightInfo"
DO_GET = "arrow.flight.protocol.FlightService/DoGet"
STREAM_PARTS = {"splitarrow.open", "splitarrow.first_batch", "splitarrow.transfer"}
TRANSFER_PARTS = {"splitarrow.open", "splitarrow.first_batch", "splitarrow.decode"}
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20"}
"""Export every 20 ms."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Outcome(NamedTuple):
    """What a traced client printed."""

    trace_id: str
    result: str


def run_client(collector: Collector, *arguments: str) -> Outcome:
    script = Path(helpers.__file__).parent / "traced_client.py"
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": "client",
    }
    command = [sys.executable, "-P", str(script), *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return Outcome(*ended.stdout.split())


def write_table(folder: Path) -> Path:
    table = pa.table({"n": pa.array(range(ROWS))})
    return write_file(folder / "data.arrow", table, batch_rows=1000)


@pytest.fixture
def start(daemon: StartDaemon, collector: Collector, tmp_path: Path) -> Callable[..., Daemon]:
    """Start a daemon that exports to the collector."""
    path = write_table(tmp_path)

    def start(**options: Any) -> Daemon:
        environment = {**QUICK, **options.pop("environment", {})}
        settings = {"otlp": collector.url, "log_format": "json", "log_level": "debug", **options}
        return daemon({"data": path}, environment=environment, **settings)

    return start


def named(spans: list[ExportedSpan], name: str) -> ExportedSpan:
    (span,) = (span for span in spans if span.name == name)
    return span


def logged_traces(daemon: Daemon, event: str) -> list[str | None]:
    lines = [json.loads(line) for line in daemon.log().splitlines()]
    return [line.get("trace_id") for line in lines if line["event"] == event]


def wait_for_stream(collector: Collector, transport: str) -> ExportedSpan:
    return collector.wait_for(
        lambda span: (
            span.name == "splitarrow.stream"
            and span.attributes["splitarrow.transport"] == transport
        ),
        f"a span of a stream over {transport}",
    )


@pytest.mark.parametrize(
    ("transport", "method"),
    [("tcp", "read"), ("shm", "read"), ("flight", "read"), ("tcp", "read_aio")],
)
def test_a_read_is_one_trace(
    start: Callable[..., Daemon], collector: Collector, transport: str, method: str
) -> None:
    running = start(control="grpc://127.0.0.1:0", listen=["tcp://127.0.0.1:0", "shm://"])
    trace_id, rows = run_client(collector, method, running.control_uri, "data", transport)
    assert rows == str(ROWS)
    stream = wait_for_stream(collector, transport)
    wait_until(lambda: len({span.name for span in collector.spans("splitarrow")}) >= 5)
    client, server = collector.spans("client"), collector.spans("splitarrow")
    traced = [span for span in server if span.trace_id == trace_id]
    # ListActions checks the connection before the read.
    assert {span.trace_id for span in client} == {trace_id}
    assert {span.trace_id for span in server} == {trace_id}

    application, read = named(client, "application"), named(client, "splitarrow.read")
    plan, transfer = named(client, "splitarrow.plan"), named(client, "splitarrow.transfer")
    assert read.parent_id == application.span_id
    assert plan.parent_id == transfer.parent_id == read.span_id
    parts = [span for span in client if span.parent_id == transfer.span_id]
    assert {span.name for span in parts} == TRANSFER_PARTS
    assert all(transfer.start <= span.start <= span.end <= transfer.end for span in parts)
    decode = named(client, "splitarrow.decode")
    busy = decode.attributes["splitarrow.decode.seconds"]
    assert 0 < busy <= (decode.end - decode.start) / 1e9
    assert read.attributes["splitarrow.rows"] == transfer.attributes["splitarrow.rows"] == ROWS
    assert transfer.attributes["splitarrow.outcome"] == "complete"
    assert transfer.attributes["splitarrow.bytes"] >= ROWS * 8
    assert read.attributes["splitarrow.dataset"] == "data"
    assert transfer.kind == CLIENT

    info = named(traced, DO_GET if transport == "flight" else INFO)
    assert (info.parent_id, info.kind) == (plan.span_id, SERVER)
    assert info.attributes["rpc.response.status_code"] == "OK"
    assert info.attributes["client.address"] == "127.0.0.1"
    if transport == "flight":
        assert stream.parent_id == info.span_id  # the data came with its plan
    else:
        assert (stream.parent_id, stream.kind) == (transfer.span_id, SERVER)
    assert {span.name for span in traced if span.parent_id == stream.span_id} == STREAM_PARTS
    assert stream.attributes["splitarrow.rows"] == ROWS
    assert stream.attributes["splitarrow.outcome"] == "complete"
    assert stream.attributes["splitarrow.dataset"] == "data"
    assert stream.attributes["splitarrow.bytes"] >= ROWS * 8
    assert not any(span.failed for span in (*client, *server))
    if transport != "flight":
        assert logged_traces(running, "stream ended") == [trace_id]


@pytest.mark.parametrize(("scheme", "method"), [("tcp", "aio"), ("ucx", "open")])
def test_a_data_uri_carries_the_context(
    start: Callable[..., Daemon], collector: Collector, scheme: str, method: str
) -> None:
    running = start(listen=[f"{scheme}://127.0.0.1:0"])
    uri = running.uri("data")
    assert DataUri.parse(uri).trace is not None
    trace_id, rows = run_client(collector, method, uri)
    assert rows == str(ROWS)
    transfer = named(collector.spans("client"), "splitarrow.transfer")
    stream = wait_for_stream(collector, scheme)
    assert (stream.trace_id, stream.parent_id) == (trace_id, transfer.span_id)
    assert transfer.attributes["server.address"] == "127.0.0.1"
    assert transfer.attributes["server.port"] == DataUri.parse(uri).port


def test_two_connections_are_one_trace(start: Callable[..., Daemon], collector: Collector) -> None:
    running = start(
        control="grpc://127.0.0.1:0",
        listen=["tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body"],
    )
    trace_id, rows = run_client(collector, "read", running.control_uri, "data", "tcp")
    assert rows == str(ROWS)

    def streams() -> list[ExportedSpan]:
        return [span for span in collector.spans() if span.name == "splitarrow.stream"]

    wait_until(lambda: len(streams()) == 2)
    assert {span.trace_id for span in streams()} == {trace_id}


@pytest.mark.slow
def test_workers_export_their_own_spans(start: Callable[..., Daemon], collector: Collector) -> None:
    running = start(workers=2)
    trace_id, rows = run_client(collector, "open", running.uri("data"))
    assert rows == str(ROWS)
    stream = wait_for_stream(collector, "tcp")
    assert stream.trace_id == trace_id
    assert stream.resource["splitarrow.process"] in ("worker-1", "worker-2")
    assert stream.resource["service.version"] == splitarrow.__version__


def test_a_stock_flight_client_is_traced(
    start: Callable[..., Daemon], collector: Collector
) -> None:
    running = start(control="grpc://127.0.0.1:0")
    headers: Any = [
        (b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01".encode()),
        (b"tracestate", b"vendor=value"),
    ]
    options = flight.FlightCallOptions(headers=headers)
    with flight.connect(running.control_uri) as client:
        assert client.do_get(flight.Ticket(b"data"), options).read_all().num_rows == ROWS
        with pytest.raises(pa.ArrowKeyError):
            client.do_get(flight.Ticket(b"none"), options).read_all()
    collector.wait_for(lambda span: span.name == DO_GET and span.failed, "the failed call")
    served, refused = (span for span in collector.spans() if span.name == DO_GET)
    assert {served.trace_id, refused.trace_id} == {TRACE_ID}
    assert {served.parent_id, refused.parent_id} == {SPAN_ID}
    assert refused.attributes["error.type"] == "NOT_FOUND"
    assert "splitarrow.dataset" not in refused.attributes
    assert wait_for_stream(collector, "flight").parent_id == served.span_id
    assert logged_traces(running, "call refused") == [TRACE_ID]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parent",
    [
        "garbage",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
    ],
    ids=["garbage", "no span", "version", "upper case"],
)
def test_a_malformed_context_begins_a_new_trace(
    start: Callable[..., Daemon], collector: Collector, parent: str
) -> None:
    running = start(control="grpc://127.0.0.1:0")
    options = flight.FlightCallOptions(headers=[(b"traceparent", parent.encode())])  # pyright: ignore[reportArgumentType]
    with flight.connect(running.control_uri) as client:
        assert client.do_get(flight.Ticket(b"data"), options).read_all().num_rows == ROWS
    span = collector.wait({DO_GET})[DO_GET]
    assert span.parent_id == ""
    assert span.trace_id != TRACE_ID


def test_a_caller_that_records_nothing_is_not_recorded(
    start: Callable[..., Daemon], collector: Collector
) -> None:
    running = start(control="grpc://127.0.0.1:0")
    with flight.connect(running.control_uri) as client:
        for flags in ("00", "01"):
            header = (b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-{flags}".encode())
            options = flight.FlightCallOptions(headers=[header])  # pyright: ignore[reportArgumentType]
            assert client.do_get(flight.Ticket(b"data"), options).read_all().num_rows == ROWS
    assert running.stop() == 0
    assert [span.name for span in collector.spans()].count("splitarrow.stream") == 1


def test_a_server_without_traces_gets_no_context(
    daemon: StartDaemon, collector: Collector, tmp_path: Path
) -> None:
    running = daemon({"data": write_table(tmp_path)})
    uri = running.uri("data")
    assert DataUri.parse(uri).trace is None
    # It would refuse a tag that its URI does not name.
    assert run_client(collector, "open", uri).result == str(ROWS)
    named(collector.spans("client"), "splitarrow.transfer")


def test_a_failed_read_has_codes_and_no_text(
    start: Callable[..., Daemon], collector: Collector
) -> None:
    running = start()
    uri = running.uri("data").replace("ticket=data", "ticket=absent-4711")
    trace_id, error = run_client(collector, "open", uri)
    assert error == "NotFoundError"
    stream = wait_for_stream(collector, "tcp")
    transfer = named(collector.spans("client"), "splitarrow.transfer")
    assert stream.trace_id == transfer.trace_id == trace_id
    assert stream.failed
    assert transfer.failed
    assert stream.attributes["error.type"] == transfer.attributes["error.type"] == "NOT_FOUND"
    assert b"absent-4711" not in b"".join(
        body for body in collector.bodies if b"splitarrow.process" in body
    )
    assert logged_traces(running, "stream failed") == [trace_id]


@pytest.mark.slow
def test_traces_have_no_secrets(
    start: Callable[..., Daemon], collector: Collector, tmp_path: Path
) -> None:
    token, value = "canary-token-77aa01c2", "canary-value-9f3b"
    folder = tmp_path / "canary-path-5d"
    path = write_file(folder / "data.arrow", pa.table({"text": [value] * ROWS}))
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[tokens]]\nname = "reader"\ntoken = "{token}"\ndatasets = ["*"]\n')
    tokens.chmod(0o600)
    running = start(
        control="grpc://127.0.0.1:0",
        token_file=tokens,
        arguments=[f"secret={path}"],
    )
    arguments = ["read", running.control_uri, "secret"]
    assert run_client(collector, *arguments, "tcp", token).result == str(ROWS)
    assert run_client(collector, *arguments, "flight", token).result == str(ROWS)
    assert run_client(collector, *arguments, "tcp", f"{token}-wrong").result == "DeniedError"
    with splitarrow.connect(running.control_uri, token=token) as client:
        ticket = client.info("secret").endpoints[0].ticket
    splitarrow.open(running.listen[0], ticket=ticket).read_all()
    with pytest.raises(SplitArrowError):
        splitarrow.open(running.listen[0], ticket=ticket).read_all()  # it was used
    assert running.stop() == 0
    exported = b"".join(collector.bodies)
    assert exported.count(b"splitarrow.stream") >= 4
    secrets = (token.encode(), value.encode(), b"canary-path", ticket, ticket.split(b".")[1])
    for secret in secrets:
        assert secret not in exported
        assert secret not in running.log().encode()


@pytest.mark.slow
def test_a_silent_collector_delays_no_stream_and_no_drain(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        running = daemon(
            {"data": write_table(tmp_path)},
            otlp=f"http://127.0.0.1:{port}",
            log_format="json",
            environment={
                **QUICK,
                "OTEL_BSP_MAX_QUEUE_SIZE": "4",
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
            },
        )
        for _ in range(20):
            with splitarrow.open(running.uri("data")) as stream:
                assert stream.read_all().num_rows == ROWS
        assert running.stop() == 0
    assert "the collector took too long: spans are lost" in running.log()
    assert all(json.loads(line) for line in running.log().splitlines())


def test_standard_variables_select_the_collector(
    daemon: StartDaemon, collector: Collector, tmp_path: Path
) -> None:
    environment = {**QUICK, ENDPOINTS[0]: collector.url, "OTEL_SERVICE_NAME": "storage"}
    running = daemon({"data": write_table(tmp_path)}, environment=environment)
    assert run_client(collector, "open", running.uri("data")).result == str(ROWS)
    assert wait_for_stream(collector, "tcp").service == "storage"
