"""Rendezvous hashing: the rule that assigns shards to daemons without a table.

Every node has a score for every key, and the nodes with the highest scores get the key. All
clients compute the same assignment. A node that is added takes over an equal share from each of the
others, and no other key moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from ...errors import UsageError


def choose_nodes(key: str, nodes: Sequence[str], replicas: int = 1) -> list[str]:
    """Return the nodes for a key, in order of preference.

    Parameters
    ----------
    key : str
        The key.
    nodes : sequence of str
        The names of the nodes, in any order.
    replicas : int
        The number of nodes to choose.

    Raises
    ------
    UsageError
        If there are fewer nodes than replicas, or two nodes have the same name.

    Examples
    --------
    >>> choose_nodes("trips/7", ["a", "b", "c"], 2) == choose_nodes("trips/7", ["c", "a", "b"], 2)
    True
    """
    if len(set(nodes)) != len(nodes):
        raise UsageError(f"the daemons {', '.join(nodes)} contain one twice; name each one once")
    if not 1 <= replicas <= len(nodes):
        raise UsageError(
            f"{replicas} replicas on {len(nodes)} daemons are not possible; "
            f"expected 1 to {len(nodes)}"
        )
    ranked = sorted(nodes, key=lambda node: (_score(key, node), node), reverse=True)
    return ranked[:replicas]


def assign_shards(
    name: str, shards: int, nodes: Sequence[str], replicas: int = 1
) -> list[list[str]]:
    """Return the nodes for each shard of a dataset, by ordinal.

    Parameters
    ----------
    name : str
        The dataset.
    shards : int
        The number of shards.
    nodes, replicas
        See `choose_nodes`.

    Raises
    ------
    UsageError
        If there are fewer nodes than replicas, or two nodes have the same name.
    """
    return [choose_nodes(f"{name}/{ordinal}", nodes, replicas) for ordinal in range(shards)]


def _score(key: str, node: str) -> int:
    digest = blake2b(f"{node}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
