"""The column ranges of a server's shards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from splitarrow.client.rpc.info import ShardRanges, read_ranges
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


def read(*bodies: Any) -> Any:
    encoded = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    channel: Any = Channel(*encoded)
    found = read_ranges(channel, Request(dataset="d", columns=("n",)), 2.5)
    ((method, action, options),) = channel.calls
    assert (method, action.type) == ("DoAction", "ranges")
    assert json.loads(action.body) == {"dataset": "d", "columns": ["n"]}
    assert options == {"dataset": "d", "timeout": 2.5}
    return found


def test_the_ranges_of_each_shard_are_listed() -> None:
    column = {"min": 1, "max": "9", "nulls": 2}
    assert read(
        {"shard": 0, "rows": 7, "columns": {"n": column}}, {"shard": 2, "rows": 0, "columns": {}}
    ) == {0: ShardRanges(7, {"n": column}), 2: ShardRanges(0, {})}
    assert read() == {}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[" * 100_000, b"\xff", [], 1, {}, {"shard": 0, "rows": 1}),
        *({"shard": -1, "rows": 1, "columns": {}}, {"shard": True, "rows": 1, "columns": {}}),
        *({"shard": 0, "rows": -1, "columns": {}}, {"shard": 0, "rows": 1.0, "columns": {}}),
        *({"shard": 0, "rows": 1, "columns": []}, {"shard": 0, "rows": 1, "columns": {"n": 3}}),
    ],
    ids=lambda body: str(body)[:30],
)
def test_malformed_ranges_are_refused(body: Any) -> None:
    with pytest.raises(ProtocolError, match="the server sent malformed column ranges") as caught:
        read({"shard": 0, "rows": 3, "columns": {}}, body)
    assert caught.value.stream == "d"
