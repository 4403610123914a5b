"""A dataset whose endpoints are read one after the other, with endpoints that need no server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from splitarrow.client.dataset import dataset
from splitarrow.client.dataset.dataset import DatasetStream
from splitarrow.client.stream.batch_stream import attach_metadata
from splitarrow.errors import ClosedError, ConnectionLostError, InvalidDataError

SCHEMA = pa.schema([("n", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


class Endpoint:
    """An endpoint that returns given batches, or raises an error among them."""

    schema = SCHEMA
    schema_metadata = bytes(memoryview(SCHEMA.serialize()))[8:]
    transport = "tcp"
    format = "arrow"
    bytes_received = 10
    resumed = 1

    def __init__(self, *items: Any, footer: dict[bytes, bytes] | None = None) -> None:
        self._items = list(items)
        self.footer_metadata = footer
        self.rows = 0
        self.calls: list[str] = []

    def open(self, *, first: bool = False) -> None:
        self.calls.append(f"open {first}")

    def next(self) -> pa.RecordBatch | None:
        item = self._items.pop(0) if self._items else None
        if isinstance(item, Exception):
            raise item
        if item is not None:
            self.rows += item.num_rows
        return item

    def cancel(self) -> None:
        self.calls.append("cancel")

    def close(self) -> None:
        self.calls.append("close")


class Hold:
    released = 0

    def release(self) -> None:
        self.released += 1


def stream_of(*endpoints: Any, window: int = 0, parallel: int = 2, **options: Any) -> DatasetStream:
    return DatasetStream("d", SCHEMA, endpoints, parallel, window, **options)


@pytest.mark.parametrize("window", [0, 1 << 20])
def test_batches_arrive_in_the_order_of_the_endpoints(window: int) -> None:
    hold: Any = Hold()
    endpoints = [Endpoint(batch(1), batch(2)), Endpoint(), Endpoint(batch(3)), Endpoint(batch(4))]
    with stream_of(*endpoints, window=window, holds=[hold]) as stream:
        assert endpoints[0].calls == ["open True"]
        assert not any(endpoint.calls for endpoint in endpoints[1:])
        assert [each["n"].to_pylist() for each in stream] == [[1], [2], [3], [4]]
        assert hold.released
        assert (stream.rows_received, stream.bytes_received, stream.resumed) == (4, 40, 4)
    assert all(endpoint.calls[-1] == "close" for endpoint in endpoints)


@pytest.mark.parametrize("window", [0, 1 << 20])
@pytest.mark.parametrize(("limit", "expected"), [(0, []), (1, [[1]]), (3, [[1, 2], [3]]), (9, 0)])
def test_a_limit_applies_to_all_endpoints_together(window: int, limit: int, expected: Any) -> None:
    endpoints = [Endpoint(batch(1, 2)), Endpoint(batch(3, 4)), Endpoint(batch(5))]
    stream = stream_of(*endpoints, window=window, limit=limit)
    found = [each["n"].to_pylist() for each in stream]
    assert found == (expected or found)
    assert sum(map(len, found)) == min(limit, 5) == stream.rows_received


def test_only_a_single_endpoint_has_the_metadata_of_a_footer() -> None:
    one, other = Endpoint(footer={b"k": b"1"}), Endpoint(footer={b"k": b"2"})
    assert stream_of(one).footer_metadata == {b"k": b"1"}
    assert stream_of(one, other).footer_metadata is None
    assert stream_of().footer_metadata is None


def test_transports_are_listed_once() -> None:
    one, other, third = Endpoint(), Endpoint(), Endpoint()
    other.transport, third.transport = "shm", ""
    assert stream_of(one, other, one, third).transport == "tcp,shm"
    assert stream_of().transport == "flight"
    assert stream_of().schema == SCHEMA


def test_an_error_is_final() -> None:
    endpoint = Endpoint(batch(1), ConnectionLostError("lost"), batch(2))
    stream = stream_of(endpoint)
    next(stream)
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="lost"):
            next(stream)
    assert endpoint.calls == ["open True", "cancel", "close"]


@pytest.mark.parametrize("other", [{"m": [1]}, {"n": [1.0]}])
def test_endpoints_have_one_schema(other: dict[str, Any]) -> None:
    endpoint = Endpoint(pa.record_batch(other))
    with pytest.raises(InvalidDataError, match="the endpoints of the dataset have different sch"):
        list(stream_of(Endpoint(batch(1)), endpoint))


def test_a_cancelled_or_closed_stream_raises_a_closed_error() -> None:
    stream = stream_of(Endpoint(ConnectionLostError("lost")))
    stream.cancel()
    with pytest.raises(ClosedError, match="the stream was cancelled"):
        next(stream)
    stream = stream_of(Endpoint(batch(1)))
    stream.close()
    stream.close()
    with pytest.raises(ClosedError, match="the stream is closed"):
        next(stream)


def test_a_stream_that_cannot_be_opened_is_closed() -> None:
    class Refused(Endpoint):
        def open(self, *, first: bool = False) -> None:
            raise ConnectionLostError("refused")

    hold: Any = Hold()
    refused = Refused()
    with pytest.raises(ConnectionLostError, match="refused"):
        stream_of(refused, holds=[hold])
    assert refused.calls == ["cancel", "close"]
    assert hold.released == 1


def test_an_endpoint_is_closed_as_soon_as_it_ends() -> None:
    one, other = Endpoint(batch(1)), Endpoint(batch(2))
    stream = stream_of(one, other)
    next(stream)
    assert one.calls == ["open True"]
    next(stream)
    assert one.calls == ["open True", "close"]
    assert other.calls == []
    assert list(stream) == []
    assert other.calls == ["close", "cancel", "close"]
    assert list(stream) == []
    assert stream.is_exhausted


class Prefetcher:
    """Takes the place of a thread that prefetches, and records its window."""

    started: ClassVar[list[Prefetcher]] = []

    def __init__(self, read: Callable[[], pa.RecordBatch | None], window: int) -> None:
        self.next = read
        self.window = window
        self.is_stopped = False
        self.started.append(self)

    def stop(self) -> None:
        assert not self.is_stopped
        self.is_stopped = True


@pytest.fixture
def prefetchers(monkeypatch: pytest.MonkeyPatch) -> list[Prefetcher]:
    Prefetcher.started = []
    monkeypatch.setattr(dataset, "ThreadPrefetcher", Prefetcher)
    return Prefetcher.started


@pytest.mark.parametrize(
    ("window", "parallel", "endpoints", "share"),
    [(7, 3, 5, 2), (2, 3, 5, 1), (7, 9, 2, 3), (100, 1, 3, 100)],
)
def test_the_endpoints_that_are_read_at_a_time_share_the_window(
    prefetchers: list[Prefetcher], window: int, parallel: int, endpoints: int, share: int
) -> None:
    parts = [Endpoint(batch(number)) for number in range(endpoints)]
    with stream_of(*parts, window=window, parallel=parallel) as stream:
        assert prefetchers == []
        for number in range(endpoints):
            assert next(stream)["n"].to_pylist() == [number]
            assert len(prefetchers) == min(endpoints, number + parallel)
            assert [each.is_stopped for each in prefetchers].index(False) == number
    assert all(each.is_stopped and each.window == share for each in prefetchers)


@pytest.mark.parametrize("window", [0, 100])
def test_leaving_the_context_releases_everything(
    prefetchers: list[Prefetcher], window: int
) -> None:
    hold: Any = Hold()
    parts = [Endpoint(batch(1), batch(2)), Endpoint(batch(3))]
    closed: list[bool] = []
    with stream_of(*parts, window=window, holds=[hold]) as stream:
        stream.on_close = lambda: closed.append(True)
        next(stream)
        assert not hold.released
    assert [part.calls[-2:] for part in parts] == [["cancel", "close"]] * 2
    assert hold.released == 1
    assert all(each.is_stopped for each in prefetchers)
    stream.close()
    assert (closed, hold.released) == ([True], 1)


def test_the_last_row_of_a_limit_releases_everything() -> None:
    hold: Any = Hold()
    parts = [Endpoint(batch(1, 2)), Endpoint(batch(3))]
    stream = stream_of(*parts, limit=2, holds=[hold])
    assert next(stream)["n"].to_pylist() == [1, 2]
    assert [part.calls[-2:] for part in parts] == [["cancel", "close"]] * 2
    assert (hold.released, stream.is_exhausted) == (1, False)
    assert list(stream) == []
    assert stream.is_exhausted


def test_a_batch_that_a_limit_cuts_keeps_its_custom_metadata() -> None:
    item = batch(1, 2)
    attach_metadata(item, {b"k": b"v"})
    with stream_of(Endpoint(item), limit=1) as stream:
        ((cut, metadata),) = stream.batches_with_metadata()
    assert (cut["n"].to_pylist(), metadata) == ([1], {b"k": b"v"})


def test_running_out_of_memory_ends_the_stream() -> None:
    endpoint = Endpoint(batch(1), MemoryError("full"), batch(2))
    stream = stream_of(endpoint)
    next(stream)
    for _ in range(2):
        with pytest.raises(MemoryError, match="full"):
            next(stream)
    assert stream.error is None  # It is none of splitarrow's.
    assert endpoint.calls == ["open True", "cancel", "close"]
    failed = stream_of(Endpoint(error := ConnectionLostError("lost")))
    with pytest.raises(ConnectionLostError):
        next(failed)
    assert failed.error is error


def test_an_error_after_a_cancellation_says_that_the_stream_was_cancelled() -> None:
    for failure, told in ((ClosedError("told"), "told"), (MemoryError(), "the stream was cancel")):
        stream = stream_of(Endpoint(batch(1), failure))
        next(stream)
        stream.cancel()
        with pytest.raises(ClosedError, match=told) as caught:
            next(stream)
        assert stream.error is caught.value
    endpoints = [Endpoint(batch(1)), Endpoint(batch(2))]
    stream = stream_of(*endpoints)
    stream.cancel()
    assert [endpoint.calls[-1] for endpoint in endpoints] == ["cancel", "cancel"]


def test_a_stream_shows_its_state() -> None:
    def shown(stream: DatasetStream) -> str:
        return repr(stream).splitlines()[0]

    one = stream_of(Endpoint(batch(1, 2)))
    assert shown(one) == "<splitarrow.DatasetStream 'd': open, tcp, 0 rows so far>"
    assert list(one)
    assert shown(one) == "<splitarrow.DatasetStream 'd': read to its end, tcp, 2 rows>"
    two = stream_of(Endpoint(), Endpoint())
    assert shown(two) == "<splitarrow.DatasetStream 'd': open, tcp, 0 rows so far, 2 parts>"
    two = stream_of(*[Endpoint(batch(1))] * 1200)
    assert shown(two) == "<splitarrow.DatasetStream 'd': open, tcp, 0 rows so far, 1,200 parts>"
    two.close()
    assert shown(two) == "<splitarrow.DatasetStream 'd': closed, tcp, 0 rows so far, 1,200 parts>"
