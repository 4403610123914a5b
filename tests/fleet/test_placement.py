"""Rendezvous hashing: balanced, and stable when a daemon comes or goes."""

from __future__ import annotations

from collections import Counter

import pytest

from splitarrow.client.placement import holders, spread
from splitarrow.errors import UsageError

NODES = [f"grpc://node-{n}:8815" for n in range(5)]


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_each_shard_has_as_many_holders_as_wanted(replicas: int) -> None:
    placed = spread("trips", 100, NODES, replicas)
    assert all(len(set(found)) == replicas for found in placed)
    assert placed == spread("trips", 100, NODES[::-1], replicas)
    assert len({*map(tuple, placed)}) > 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_it_is_balanced(replicas: int) -> None:
    shards = 2000
    count = Counter(node for found in spread("trips", shards, NODES, replicas) for node in found)
    share = shards * replicas / len(NODES)
    assert set(count) == set(NODES)
    assert all(0.85 * share < held < 1.15 * share for held in count.values())


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_new_daemon_takes_its_share_and_moves_nothing_else(replicas: int) -> None:
    before = spread("trips", 2000, NODES, replicas)
    after = spread("trips", 2000, [*NODES, "grpc://new:8815"], replicas)
    moved = 0
    for old, new in zip(before, after, strict=True):
        assert set(new) <= {*old, "grpc://new:8815"}
        moved += "grpc://new:8815" in new
    share = 2000 * replicas / (len(NODES) + 1)
    assert 0.8 * share < moved < 1.2 * share


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="3 replicas on 2 daemons"):
        holders("a", ["x", "y"], 3)
    with pytest.raises(UsageError, match="0 replicas"):
        holders("a", ["x", "y"], 0)
    with pytest.raises(UsageError, match="twice"):
        holders("a", ["x", "x"])
