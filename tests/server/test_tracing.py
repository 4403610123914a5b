"""Traces of a server: the messages with contexts, the settings, and what is exported at the end."""

from __future__ import annotations

import logging
import re
import sys

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.collector import Collector, ExportedSpan, collector
from helpers.wire_reader import Connection, WireError, parse_uri, read, tagged_frame
from splitarrow.errors import ConfigError, MissingExtraError

__all__ = ["collector"]

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01".encode()
TABLE = pa.table({"n": [1, 2, 3]})
BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (BASE, TRACES, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def serve(otlp: str | None = None, data: pa.Table = TABLE) -> splitarrow.Server:
    return splitarrow.serve({"data": data}, listen=["tcp://127.0.0.1:0"], otlp=otlp)


def trace_tag(uri: str) -> int:
    return int(parse_uri(uri)[2]["trace"], 0)


def receive_all(connection: Connection) -> None:
    while True:
        connection.receive()


def streams(collector: Collector) -> list[ExportedSpan]:
    return [span for span in collector.spans() if span.name == "splitarrow.stream"]


def test_the_message_before_a_request_names_the_parent(collector: Collector) -> None:
    with serve(collector.url) as server:
        uri = server.uri("data")
        read(uri, before=(trace_tag(uri), PARENT + b"\nvendor=value"))
    # Closing the server exports what its thread has not exported yet.
    (stream,) = streams(collector)
    assert (stream.trace_id, stream.parent_id) == (TRACE_ID, SPAN_ID)
    assert b"vendor=value" in collector.bodies[-1]


@pytest.mark.parametrize(
    "payload", [b"", b"garbage", PARENT[:-1], b"\xff" * 55, b"x" * 100_000], ids=len
)
def test_a_malformed_message_is_ignored(collector: Collector, payload: bytes) -> None:
    with serve(collector.url) as server:
        uri = server.uri("data")
        assert len(read(uri, before=(trace_tag(uri), payload))) == 2
    (stream,) = streams(collector)
    assert stream.parent_id == ""


def test_a_context_is_that_of_one_request(collector: Collector) -> None:
    with serve(collector.url) as server:
        uri = server.uri("data")
        connection = Connection(uri, 20.0, (trace_tag(uri), PARENT))
        for _ in range(2):
            frames: list[tuple[int | None, bytes]] = []
            while not any(tag is None and payload[0] == 0 for tag, payload in frames):
                frames += connection.receive()
            connection.socket.sendall(tagged_frame(int(parse_uri(uri)[2]["want_data"], 0), b"data"))
        connection.socket.close()
    assert {stream.parent_id for stream in streams(collector)} == {SPAN_ID, ""}


def test_a_context_during_a_stream_breaks_the_protocol(collector: Collector) -> None:
    large = pa.table({"n": pa.array(np.arange(4_000_000))})
    with serve(collector.url, large) as server:
        uri = server.uri("data")
        connection = Connection(uri, 20.0)
        connection.socket.sendall(tagged_frame(trace_tag(uri), PARENT))
        with pytest.raises((WireError, ConnectionError)):
            receive_all(connection)
        connection.socket.close()


def test_a_server_without_traces_names_no_tag_and_refuses_the_message() -> None:
    with serve() as server:
        assert "trace=" not in server.uri("data")
        with pytest.raises((WireError, ConnectionError)):
            read(server.uri("data"), before=(0x10000000004, PARENT))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("collector:4318", "otlp: 'collector:4318' is not such a URL; expected http://host:port"),
        ("grpc://collector:4317", "'grpc://collector:4317' is not such a URL"),
        ("http://", "'http://' is not such a URL"),
        ("http://host:port", "otlp: the value is not a URL"),
        ("http://host?key=secret", "'http://host' is not such a URL"),
        ("http://user:secret@host", "has a user name or a password; set OTEL_EXPORTER_OTLP_H"),
    ],
)
def test_an_unusable_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)) as error:
        serve(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("suffix", ["", "/", "/v1/traces"])
def test_the_path_of_spans_is_added(collector: Collector, suffix: str) -> None:
    with serve(collector.url + suffix) as server:
        read(server.uri("data"))
    assert collector.bodies[0].startswith(b"/v1/traces\n")


@pytest.mark.parametrize(("name", "path"), [(BASE, ""), (TRACES, "/v1/traces")])
def test_variables_of_open_telemetry_apply(
    collector: Collector, variables: pytest.MonkeyPatch, name: str, path: str
) -> None:
    variables.setenv(name, collector.url + path)
    with serve() as server:
        read(server.uri("data"))
    assert len(streams(collector)) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_variables_of_open_telemetry_disable_traces(
    variables: pytest.MonkeyPatch, name: str, value: str
) -> None:
    variables.setenv(BASE, "http://127.0.0.1:9")
    variables.setenv(name, value)
    with serve() as server:
        assert "trace=" not in server.uri("data")


def test_another_protocol_in_a_variable_is_a_warning(
    variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variables.setenv(BASE, "http://127.0.0.1:9")
    variables.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with serve() as server, caplog.at_level(logging.WARNING):
        assert "trace=" not in server.uri("data")
    (record,) = (record for record in caplog.records if record.msg == "no traces are recorded")
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'" in str(record.__dict__["reason"])


def test_a_missing_package_names_the_extra(
    variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("splitarrow.server.spans", "splitarrow.server.spans"):
        variables.delitem(sys.modules, name, raising=False)
    variables.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(MissingExtraError, match=r"otlp: .*pip install 'splitarrow\[otel\]'"):
        serve("http://127.0.0.1:9")
    # A variable applies to all programs of a host: it is no reason not to serve.
    variables.setenv(BASE, "http://127.0.0.1:9")
    with serve() as server:
        assert len(read(server.uri("data"))) == 2
    (record,) = (record for record in caplog.records if record.msg == "no traces are recorded")
    assert "splitarrow[otel]" in str(record.__dict__["reason"])


def test_the_shared_name_of_the_service_and_the_sampler_are_variables(
    collector: Collector, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=storage,service.version=own")
    with serve(collector.url) as server:
        read(server.uri("data"))
    (stream,) = streams(collector)
    assert (stream.service, stream.resource["service.version"]) == ("storage", "own")
    variables.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with serve(collector.url) as server:
        read(server.uri("data"))
    assert len(streams(collector)) == 1
