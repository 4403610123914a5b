"""Rendezvous hashing: balanced, and stable when a daemon comes or goes."""

from __future__ import annotations

from collections import Counter

import pytest

from splitarrow.client.cluster.publication import assign_shards, choose_nodes
from splitarrow.errors import UsageError

PLACED = [["c", "a", "b"], ["b", "c", "a"], ["a", "b", "c"], ["a", "b", "c"]]
NODES = [f"grpc://node-{n}:8815" for n in range(5)]


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_each_shard_has_as_many_nodes_as_replicas(replicas: int) -> None:
    placed = assign_shards("trips", 100, NODES, replicas)
    assert all(len(set(found)) == replicas for found in placed)
    assert placed == assign_shards("trips", 100, NODES[::-1], replicas)
    assert len({*map(tuple, placed)}) > 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_shards_are_balanced(replicas: int) -> None:
    shards = 2000
    count = Counter(
        node for found in assign_shards("trips", shards, NODES, replicas) for node in found
    )
    share = shards * replicas / len(NODES)
    assert set(count) == set(NODES)
    assert all(0.85 * share < held < 1.15 * share for held in count.values())


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_new_node_takes_its_share_and_moves_nothing_else(replicas: int) -> None:
    before = assign_shards("trips", 2000, NODES, replicas)
    after = assign_shards("trips", 2000, [*NODES, "grpc://new:8815"], replicas)
    moved = 0
    for old, new in zip(before, after, strict=True):
        assert set(new) <= {*old, "grpc://new:8815"}
        moved += "grpc://new:8815" in new
    share = 2000 * replicas / (len(NODES) + 1)
    assert 0.8 * share < moved < 1.2 * share


def test_an_assignment_stays_the_same_in_later_versions() -> None:
    placed = [choose_nodes(f"trips/{n}", ["a", "b", "c"], 3) for n in range(4)]
    assert placed == PLACED


def test_impossible_assignments_are_refused() -> None:
    with pytest.raises(UsageError, match="3 replicas on 2 daemons"):
        choose_nodes("a", ["x", "y"], 3)
    with pytest.raises(UsageError, match="0 replicas"):
        choose_nodes("a", ["x", "y"], 0)
    with pytest.raises(UsageError, match="twice"):
        choose_nodes("a", ["x", "x"])


def test_there_is_one_replica_by_default() -> None:
    assert choose_nodes("trips/0", ["a", "b", "c"]) == PLACED[0][:1]
    assert assign_shards("trips", 4, ["a", "b", "c"]) == [nodes[:1] for nodes in PLACED]
