"""A dataset whose endpoints are read one after the other, with endpoints that need no server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.dataset.dataset_stream import DatasetStream
from splitarrow.errors import ClosedError, ConnectionLostError, InvalidDataError

SCHEMA = pa.schema([("n", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


class Endpoint:
    """An endpoint that returns given batches, or raises an error among them."""

    schema = SCHEMA
    transport = "tcp"
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


def test_endpoints_have_one_schema() -> None:
    other = pa.record_batch({"m": [1]})
    with pytest.raises(InvalidDataError, match="the endpoints of the dataset have different sch"):
        list(stream_of(Endpoint(batch(1)), Endpoint(other)))


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
