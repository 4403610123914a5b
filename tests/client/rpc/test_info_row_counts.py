"""The row counts of a server's shards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from splitarrow.client.rpc.info import count_rows
from splitarrow.errors import ProtocolError
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.request import Request


class Channel:
    """A channel to a server that responds with given bodies."""

    def __init__(self, *bodies: bytes) -> None:
        self._bodies = bodies
        self.calls: list[Any] = []

    def call_stream(self, method: str, message: bytes, **options: Any) -> Any:
        self.calls.append((method, flight.Action.FromString(message), options))
        return [flight.Result(body=body).SerializeToString() for body in self._bodies]


def count(*bodies: Any) -> Any:
    encoded = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    channel: Any = Channel(*encoded)
    counted = count_rows(channel, Request(dataset="d"), 2.5)
    ((method, action, options),) = channel.calls
    assert (method, action.type, action.body) == ("DoAction", "count", b"d")
    assert options == {"dataset": "d", "timeout": 2.5}
    return counted


def test_the_rows_of_each_shard_are_listed() -> None:
    assert count({"shard": 0, "rows": [3, 0]}, {"shard": 2, "rows": []}) == {0: [3, 0], 2: []}
    assert count() == {}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[" * 100_000, b"\xff", [], 1, {}, {"shard": 0}, {"rows": []}),
        *({"shard": -1, "rows": []}, {"shard": True, "rows": []}, {"shard": "0", "rows": []}),
        *({"shard": 0, "rows": [-1]}, {"shard": 0, "rows": [True]}, {"shard": 0, "rows": [1.0]}),
        *({"shard": 0, "rows": {}}, {"shard": 0, "rows": None}, {"shard": None, "rows": [1]}),
    ],
    ids=lambda body: str(body)[:30],
)
def test_malformed_counts_are_refused(body: Any) -> None:
    with pytest.raises(ProtocolError, match="the server sent malformed row counts") as caught:
        count({"shard": 0, "rows": [3]}, body)
    assert caught.value.stream == "d"
