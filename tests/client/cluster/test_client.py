"""What a cluster client makes of the responses of its daemons."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.cluster import client
from splitarrow.client.cluster import client as module
from splitarrow.client.cluster.client import ClusterClient
from splitarrow.client.dataset.client import Client
from splitarrow.client.rpc.info import DatasetInfo, Endpoint
from splitarrow.client.tokens import FixedToken, TokenSource
from splitarrow.client.uris import parse_control_uri
from splitarrow.errors import (
    ConnectError,
    DatasetError,
    InvalidRequestError,
    NotFoundError,
    RemoteError,
    UnavailableError,
    UsageError,
)
from splitarrow.protocol.request import Request

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = 10


class Daemon:
    """A daemon that responds as a test says."""

    def __init__(self) -> None:
        self.infos: list[DatasetInfo | Exception] = [NotFoundError("none")]
        self.listing: list[DatasetInfo] | Exception = []
        self.drop_error: Exception | None = None
        self.requests: list[Request] = []
        self.channel = self

    def describe(self, request: Request) -> DatasetInfo:
        """Return the first description; keep the last one for later calls."""
        self.requests.append(request)
        return done(self.infos.pop(0) if len(self.infos) > 1 else self.infos[0])

    def datasets(self, glob: str | None) -> list[DatasetInfo]:
        return done(self.listing)

    def drop(self, name: str) -> None:
        if self.drop_error is not None:
            raise self.drop_error

    def status(self) -> dict[str, Any]:
        return done(self.drop_error or {"version": "1"})

    def close(self) -> None:
        pass


def done(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


def info(ordinals: Sequence[int], total: int = 4, snapshot: str = "s") -> DatasetInfo:
    endpoints = tuple(
        Endpoint(b"t%d" % ordinal, (), ordinal=ordinal, rows=ROWS, nbytes=80)
        for ordinal in ordinals
    )
    rows = ROWS * len(endpoints)
    return DatasetInfo("d", rows, 8 * rows, SCHEMA, "k", "1", endpoints, snapshot, total)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Daemon]:
    found = {host: Daemon() for host in ("a", "b", "localhost")}
    monkeypatch.setattr(client, "Client", lambda uri, *_, **__: found[uri.host])
    monkeypatch.setattr(module, "draw_pause", lambda retry: 0.0)
    return found


@pytest.fixture
def cluster(hosts: dict[str, Daemon]) -> ClusterClient:
    return ClusterClient([parse_control_uri(f"grpc://{host}") for host in hosts])


def test_a_dataset_is_dropped_where_it_is(hosts: dict[str, Daemon], cluster: ClusterClient) -> None:
    with pytest.raises(UsageError):
        cluster.drop("")
    cluster.drop("d")
    hosts["a"].drop_error = NotFoundError("no d")
    cluster.drop("d")
    for daemon in hosts.values():
        daemon.drop_error = NotFoundError("no d")
    with pytest.raises(NotFoundError, match=r"none of the daemons .* has an upload or pub"):
        cluster.drop("d")
    hosts["b"].drop_error = UnavailableError("away")
    for other_error in (NotFoundError("no d"), None):
        hosts["a"].drop_error = other_error
        with pytest.raises(UnavailableError) as caught:
            cluster.drop("d")
        assert caught.value.message == "'d' was not dropped at every daemon: grpc://b:8815: away"


def test_the_status_of_a_daemon_that_fails_is_its_error(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["b"].drop_error = UnavailableError("away")
    assert cluster.status() == {
        "daemons": {
            "grpc://a:8815": {"version": "1"},
            "grpc://b:8815": {"error": "away"},
            "grpc://localhost:8815": {"version": "1"},
        }
    }


def test_a_listing_merges_those_of_all_daemons(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["a"].listing = [info([0, 1]), replace(info([0], 2), name="half")]
    hosts["b"].listing = [info([2, 3])]
    hosts["localhost"].listing = UnavailableError("away")
    whole, half = cluster.datasets()
    assert (whole.name, whole.rows, len(whole.endpoints)) == ("d", 40, 4)
    assert (half.name, half.kind) == ("half", "incomplete")
    hosts["a"].listing = hosts["b"].listing = []
    with pytest.raises(UnavailableError, match="away"):
        cluster.datasets()
    hosts["localhost"].listing = []
    assert cluster.datasets() == []


def test_the_version_is_the_snapshot(hosts: dict[str, Daemon], cluster: ClusterClient) -> None:
    hosts["a"].infos = [info(range(4))]
    found = cluster.describe(Request("d", version="s"))
    assert (found.version, found.rows) == ("s", 40)
    assert hosts["a"].requests[-1].version is None
    with pytest.raises(RemoteError, match="version x was requested, and the current version is s"):
        cluster.describe(Request("d", version="x"))
    assert cluster.schema("d") == SCHEMA


def test_a_commit_that_is_in_progress_is_awaited(
    hosts: dict[str, Daemon], cluster: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module, "draw_pause", lambda retry: retry + 0.5)
    monkeypatch.setattr(
        module, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    )
    hosts["a"].infos = [info([0, 1], snapshot="old"), info([0, 1])]
    hosts["b"].infos = [info([2, 3])]
    assert cluster.info("d").snapshot == "s"
    assert len(hosts["b"].requests) == 2
    hosts["a"].infos = [info([0, 1], snapshot="old")]
    hosts["b"].requests.clear()
    with pytest.raises(DatasetError, match="incomplete"):
        cluster.info("d")
    assert len(hosts["b"].requests) == 5
    assert pauses == [0.5, 0.5, 1.5, 2.5, 3.5]  # one before the first success


@pytest.mark.parametrize("snapshot", ["s", ""])
def test_an_incomplete_dataset_is_not_awaited(
    hosts: dict[str, Daemon], cluster: ClusterClient, snapshot: str
) -> None:
    hosts["a"].infos = [info([0])]
    hosts["b"].infos = [info([1], snapshot=snapshot)]
    with pytest.raises(DatasetError):
        cluster.info("d")
    assert len(hosts["b"].requests) == 1


def test_an_invalid_request_is_that_at_every_daemon(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["a"].infos = [info(range(4))]
    hosts["b"].infos = [InvalidRequestError("what")]
    with pytest.raises(InvalidRequestError, match="what"):
        cluster.info("d")
    hosts["b"].infos = [ConnectError("away")]
    assert cluster.info("d").rows == 40


def plan(cluster: ClusterClient, shards: frozenset[int] | None = None, **request: Any) -> list[Any]:
    """Return the endpoints of a read."""
    schema, endpoints = cluster._plan_endpoints(
        Request("d", **request), shards, ReadPlan(StreamOptions())
    )
    assert schema == SCHEMA
    return endpoints


def test_reads_are_distributed_over_daemons_and_prefer_this_host(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["a"].infos = hosts["b"].infos = [info(range(4))]
    first = [endpoint._replicas.current.channel for endpoint in plan(cluster)]
    assert first == [hosts["a"], hosts["b"]] * 2
    hosts["localhost"].infos = [info([3, 0])]
    first = [endpoint._replicas.current for endpoint in plan(cluster)]
    assert [each.channel for each in first] == [
        hosts["localhost"],
        hosts["b"],
        hosts["a"],
        hosts["localhost"],
    ]
    assert [each.shard for each in first] == [1, 1, 2, 0]
    tickets = [json.loads(each.endpoint.ticket) for each in first]
    assert tickets == [{"dataset": f"t{ordinal}", "version": "1"} for ordinal in range(4)]


@pytest.mark.parametrize(("limit", "count"), [(None, 4), (0, 0), (10, 1), (11, 2), (99, 4)])
def test_a_limit_opens_only_the_shards_that_it_needs(
    hosts: dict[str, Daemon], cluster: ClusterClient, limit: int | None, count: int
) -> None:
    hosts["a"].infos = [info(range(4))]
    endpoints = plan(cluster, limit=limit)
    assert len(endpoints) == count
    left = [None] * 4 if limit is None else [limit - ROWS * index for index in range(count)]
    assert [endpoint._limit for endpoint in endpoints] == left
    for endpoint in endpoints:
        assert (endpoint._replicas.current.endpoint is None) == (limit is not None)
        assert endpoint._replicas.current.request.limit is None


def test_a_limit_after_a_filter_opens_all_shards(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["a"].infos = [replace(info(range(4)), rows=None)]
    assert [endpoint._limit for endpoint in plan(cluster, limit=10)] == [10] * 4


def test_some_shards_are_read_by_their_ordinals(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["a"].infos = [info([0, 2])]
    hosts["b"].infos = [info([1, 3])]
    endpoints = plan(cluster, frozenset([3, 0]))
    assert [endpoint._ordinal for endpoint in endpoints] == [0, 3]
    assert [endpoint._replicas.current.shard for endpoint in endpoints] == [0, 1]


def test_batches_are_numbered_within_one_shard(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["a"].infos = [info(range(4))]
    (endpoint,) = plan(cluster, frozenset([2]), batches=(0, 2), version="s")
    replica = endpoint._replicas.current
    assert (replica.shard, replica.endpoint) == (2, None)
    assert (replica.request.batches, replica.request.version) == ((0, 2), None)
    asked = len(hosts["a"].requests)
    assert len(plan(cluster, frozenset([1]), batches=(0, 1), version="s")) == 1
    assert len(hosts["a"].requests) == asked  # described once
    with pytest.raises(UsageError, match="'d' has several shards in this cluster, and batches"):
        plan(cluster, batches=(0, 1))
    hosts["a"].infos = [info([0, 1], 2)]
    with pytest.raises(UsageError, match="'d' has several shards"):
        plan(cluster, batches=(0, 1))
    hosts["a"].infos = [replace(info([0], 1), name="e")]
    _, endpoints = cluster._plan_endpoints(
        Request("e", batches=(0, 1)), None, ReadPlan(StreamOptions())
    )
    assert len(endpoints) == 1


def test_a_part_without_an_ordinal_is_numbered_by_its_place(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    parts = (Endpoint(b"t0", ()), Endpoint(b"t1", ()))
    hosts["a"].infos = [DatasetInfo("d", 20, 8, SCHEMA, "k", "1", parts)]
    assert [endpoint._ordinal for endpoint in plan(cluster)] == [0, 1]
    hosts["a"].infos = [DatasetInfo("d", 20, 8, SCHEMA, "k", "1", parts[:1])]
    (endpoint,) = plan(cluster)
    assert (endpoint._replicas.current.shard, endpoint._ordinal) == (None, 0)
    assert endpoint._replicas.current.endpoint.ticket == b"t0"  # of any version


def test_rows_are_counted_where_the_shards_are(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    hosts["a"].infos = [info(range(4))]
    counted: list[Any] = []

    def count(channel: Any, request: Request, timeout: float) -> dict[int, list[int]]:
        counted.append((channel, request.version, timeout))
        return {n: [n] for n in range(4)}

    found = cluster._call_for_shards(count, Request("d", version="s"), 2.5)
    assert found == {n: [n] for n in range(4)}
    assert counted == [(hosts["a"], "1", 2.5)]
    with pytest.raises(RemoteError, match="version x was requested"):
        cluster._call_for_shards(count, Request("d", version="x"), 2.5)


def test_a_cluster_is_shown_with_its_daemons_and_those_that_are_away(
    hosts: dict[str, Daemon], cluster: ClusterClient
) -> None:
    uris = "grpc://a:8815,grpc://b:8815,grpc://localhost:8815"
    assert repr(cluster) == f"<splitarrow.ClusterClient: 3 daemons>\n  {uris}"
    hosts["b"].drop_error = UnavailableError("away")
    cluster.status()
    assert repr(cluster).startswith("<splitarrow.ClusterClient: 3 daemons, 1 without a response>")
    assert cluster._repr_html_().count("grpc://") == 3
    assert "3 daemons" in cluster._repr_html_()


def test_a_copy_of_a_cluster_connects_by_itself(
    hosts: dict[str, Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, TokenSource | None, dict[str, Any]]] = []

    def connect(uri: Any, token: TokenSource | None, **options: Any) -> Daemon:
        made.append((uri.host, token, options))
        return hosts[uri.host]

    monkeypatch.setattr(client, "Client", connect)
    uris = [parse_control_uri(f"grpc://{host}") for host in "ab"]
    make, arguments = ClusterClient(uris, "token").__reduce__()
    assert make(*arguments).uris == ["grpc://a:8815", "grpc://b:8815"]
    assert len(made) == 4
    for _, token, options in made:
        assert (token, options) == (
            FixedToken("token"),
            {"tls": None, "connect_timeout": 10.0, "timeout": 30.0},
        )


def test_an_operation_on_one_daemon_is_found_at_that_daemon(
    cluster: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: Any = cluster
    monkeypatch.setattr(client, "Client", Client)
    with pytest.raises(AttributeError, match=r"use client\.at\(uri\)\.put"):
        print(other.put)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        print(other.nothing)
    assert not hasattr(cluster, "_private")
    assert hasattr(Client, "put")
