"""The registry of running streams: every transport registers, and every stream can be cancelled."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from splitarrow.errors import RemoteError
from splitarrow.server.metrics import Metrics, list_stats
from splitarrow.server.streams import RunningStream, StreamRegistry

BIG = pa.table({"x": pa.array(np.arange(8_000_000))})
PATIENCE = 30.0


class Cancelled:
    """Counts calls of `cancel`."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def begin(registry: StreamRegistry, **changes: Any) -> RunningStream:
    values: dict[str, Any] = {
        "dataset": "trips",
        "principal": "training",
        "peer": "10.0.0.1:1",
        "transport": "tcp",
        "cancel": Cancelled(),
        **changes,
    }
    return registry.begin(**values)


def test_a_stream_is_listed_while_it_runs() -> None:
    metrics = Metrics()
    registry = StreamRegistry(metrics)
    first, second = begin(registry), begin(registry)
    assert list(registry) == [first, second]
    assert first.number != second.number
    assert first.seconds >= 0
    registry.end(first)
    assert list(registry) == [second]
    assert sum(metrics.stream_seconds["tcp",].counts) == 1


def test_totals_never_decrease_when_streams_end() -> None:
    metrics = Metrics()
    registry = StreamRegistry(metrics)
    ended = threading.Event()

    def run_streams() -> None:
        for _ in range(3000):
            stream = begin(registry)
            stream.rows = 1000
            registry.end(stream)
        ended.set()

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=run_streams)
    totals: list[int] = []
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        while not ended.is_set():
            totals.append(list_stats(metrics.samples())["rows"])
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert totals == sorted(totals)
    assert list_stats(metrics.samples())["rows"] == 3_000_000


def test_the_figures_of_a_stream_come_from_its_source() -> None:
    metrics = Metrics()
    registry = StreamRegistry(metrics)
    stream = begin(registry)

    def update(updated: RunningStream) -> None:
        updated.messages, updated.nbytes, updated.mapped_bytes = 3, 500, 200

    stream.source = update
    samples = {(one.metric.name, *one.labels): one.value for one in metrics.samples()}
    assert samples["messages",] == 3
    assert samples["sent_bytes", "trips", "tcp"] == 300
    assert samples["mapped_bytes", "trips", "tcp"] == 200
    registry.end(stream)
    assert stream.source is None
    assert metrics.messages == 3
    assert metrics.sent_bytes["trips", "tcp"] == 300


def test_a_stream_is_cancelled_for_its_principal_only() -> None:
    registry = StreamRegistry(Metrics())
    cancel = Cancelled()
    stream = begin(registry, cancel=cancel)
    assert not registry.cancel(stream.number, "somebody")
    assert not registry.cancel(stream.number + 1, "training")
    assert cancel.count == 0
    assert registry.cancel(stream.number, "training")
    assert cancel.count == 1


def test_a_signed_ticket_cancels_its_streams_and_an_unsigned_one_none() -> None:
    registry = StreamRegistry(Metrics())
    cancels = [Cancelled() for _ in range(4)]
    begin(registry, cancel=cancels[0], signed_ticket=b"one")
    begin(registry, cancel=cancels[1], signed_ticket=b"one")
    begin(registry, cancel=cancels[2], signed_ticket=b"two")
    begin(registry, cancel=cancels[3])
    assert registry.cancel_ticket(b"one", "training")
    assert not registry.cancel_ticket(b"one", "somebody")
    assert not registry.cancel_ticket(b"", "training")
    assert [one.count for one in cancels] == [1, 1, 0, 0]


def test_the_registry_keeps_no_ticket() -> None:
    stream = begin(StreamRegistry(Metrics()), signed_ticket=b"sa1.secret")
    assert b"secret" not in repr(stream).encode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[splitarrow.Server]:
    with splitarrow.serve(
        {"big": BIG},
        listen=["tcp://127.0.0.1:0", f"shm://{tmp_path}/data.sock"],
        control="grpc://127.0.0.1:0",
    ) as server:
        yield server


def act(server: splitarrow.Server, action: str, body: bytes = b"") -> dict[str, Any]:
    with flight.FlightClient(server.control_uri or "") as client:
        (result,) = client.do_action(flight.Action(action, body))
        return json.loads(result.body.to_pybytes())


def wait_for(condition: Callable[[], bool]) -> None:
    waiter = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        waiter.wait(0.01)
    pytest.fail("the condition did not come true")


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_cancel_ends_a_stream_over_a_data_transport(server: splitarrow.Server, scheme: str) -> None:
    with splitarrow.open(server.uri("big", scheme), batch_rows=1000) as stream:
        rows = next(stream).num_rows
        (running,) = act(server, "status")["streams"]
        assert (running["dataset"], running["transport"]) == ("big", scheme)
        number = running["stream"]
        assert act(server, "cancel", json.dumps({"stream": number}).encode()) == {
            "cancelled": number
        }
        with pytest.raises(RemoteError, match="the stream was cancelled") as caught:
            rows += sum(batch.num_rows for batch in stream)
        assert caught.value.code == "ABORTED"
        assert rows < BIG.num_rows
    wait_for(lambda: act(server, "status")["streams"] == [])
    assert server.stats()["streams"] == 0
    with splitarrow.open(server.uri("big", scheme)) as stream:
        assert stream.read_all().num_rows == BIG.num_rows


def test_cancel_ends_a_stream_whose_reader_has_stopped(server: splitarrow.Server) -> None:
    with splitarrow.open(server.uri("big", "tcp")) as stream:
        (running,) = act(server, "status")["streams"]
        act(server, "cancel", json.dumps({"stream": running["stream"]}).encode())
        wait_for(lambda: act(server, "status")["streams"] == [])
        with pytest.raises(splitarrow.errors.SplitArrowError):
            stream.read_all()


def test_a_running_stream_reports_its_rows_and_bytes(server: splitarrow.Server) -> None:
    with splitarrow.open(server.uri("big", "tcp"), batch_rows=100_000) as stream:
        for _ in range(3):
            next(stream)
        wait_for(lambda: act(server, "status")["streams"][0]["rows"] >= 200_000)
        (running,) = act(server, "status")["streams"]
        assert running["bytes"] >= 8 * 200_000
        assert running["seconds"] > 0
