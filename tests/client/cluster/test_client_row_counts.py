"""Row counts of a dataset that several daemons hold, with daemons that count as a test says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.cluster.client import call_for_merged_shards
from splitarrow.client.cluster.info import DaemonInfo, merge
from splitarrow.client.rpc.info import DatasetInfo, Endpoint, count_rows
from splitarrow.errors import (
    ConnectError,
    DatasetError,
    InvalidRequestError,
    SplitArrowError,
    UnavailableError,
)
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.request import Request

SCHEMA = pa.schema([("n", pa.int64())])

Counts = Mapping[int, list[int]] | SplitArrowError


class Daemon:
    """A daemon that holds some shards of a publication, and counts their rows or fails."""

    def __init__(self, ordinals: Sequence[int], counts: Counts, version: str = "7") -> None:
        endpoints = tuple(Endpoint(b"t", (), ordinal=ordinal, rows=1) for ordinal in ordinals)
        self.info = DatasetInfo("d", 1, 1, SCHEMA, "k", version, endpoints, "s", 4)
        self.counts = counts
        self.requests: list[Any] = []
        self.channel = self

    def client(self) -> Daemon:
        return self

    def call_stream(self, method: str, message: bytes, **options: Any) -> list[bytes]:
        body = json.loads(flight.Action.FromString(message).body)
        self.requests.append((body, options["timeout"]))
        if isinstance(self.counts, SplitArrowError):
            raise self.counts
        bodies = [json.dumps({"shard": n, "rows": rows}) for n, rows in self.counts.items()]
        return [flight.Result(body=body.encode()).SerializeToString() for body in bodies]


def count(**daemons: Daemon) -> dict[int, list[int]]:
    pool: Any = SimpleNamespace(connections=daemons)
    merged = merge("d", [DaemonInfo(name, each.info) for name, each in daemons.items()])
    request = Request("d", version="s", filter="bg")
    return call_for_merged_shards(pool, merged, count_rows, request, 2.5)


def test_each_daemon_counts_its_shards_at_its_own_version() -> None:
    a = Daemon([3, 0], {0: [33], 1: [0]}, "7")
    b = Daemon([1, 2], {0: [11, 12], 1: []}, "9")
    counted = count(a=a, b=b)
    assert counted == {0: [0], 1: [11, 12], 2: [], 3: [33]}
    assert list(counted) == [0, 1, 2, 3]
    for daemon, version in ((a, "7"), (b, "9")):
        ((body, timeout),) = daemon.requests
        assert (body["dataset"], body["version"], body["filter"]) == ("d", version, "bg")
        assert timeout == 2.5


def test_a_daemon_is_asked_only_for_what_is_missing() -> None:
    a = Daemon([0, 1, 2, 3], {n: [n] for n in range(4)})
    b = Daemon([2, 3], {0: [99], 1: [99]})
    assert count(a=a, b=b) == {n: [n] for n in range(4)}
    assert b.requests == []


def test_another_daemon_counts_what_the_first_does_not() -> None:
    a = Daemon([0, 1, 2, 3], {0: [0], 2: [2]})
    b = Daemon([1, 0, 2, 3], {0: [1], 1: [99], 2: [99], 3: [3]})
    assert count(a=a, b=b) == {n: [n] for n in range(4)}
    assert len(b.requests) == 1


@pytest.mark.parametrize("failure", [ConnectError("away"), UnavailableError("away")])
def test_a_daemon_that_is_away_is_replaced(failure: SplitArrowError) -> None:
    a, b = Daemon(range(4), failure), Daemon(range(4), {n: [n] for n in range(4)})
    assert count(a=a, b=b) == {n: [n] for n in range(4)}
    with pytest.raises(type(failure), match="away"):
        count(a=a, b=Daemon([], {}))
    with pytest.raises(type(failure), match="away"):
        count(a=a, b=Daemon([1], {0: [1]}))


def test_a_request_that_a_daemon_refuses_is_not_repeated() -> None:
    b = Daemon(range(4), {n: [n] for n in range(4)})
    with pytest.raises(InvalidRequestError, match="what"):
        count(a=Daemon(range(4), InvalidRequestError("what")), b=b)
    assert b.requests == []


def test_shards_that_nobody_counted_are_named() -> None:
    with pytest.raises(DatasetError, match="no daemon measured shard 1-2 of 'd'") as e:
        count(a=Daemon(range(4), {0: [0], 3: [3]}))
    assert e.value.stream == "d"


def test_a_dataset_of_one_part_is_shard_0() -> None:
    daemon = Daemon([], {0: [5, 6]})
    info = DatasetInfo("d", 11, 1, SCHEMA, "table", "1", (Endpoint(b"t", ()),))
    pool: Any = SimpleNamespace(connections={"a": daemon})
    merged = merge("d", [DaemonInfo("a", info)])
    found = call_for_merged_shards(pool, merged, count_rows, Request("d"), 1.0)
    assert found == {0: [5, 6]}
