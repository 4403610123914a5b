"""Which daemons get which shards: rendezvous hashing, the same everywhere without a table."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from ..errors import UsageError


def holders(key: str, nodes: Sequence[str], replicas: int = 1) -> list[str]:
    """Return the nodes that get something, the first choice in front.

    Each node has a score for each key, and the highest ones win. A node that is added takes
    over its share from all others alike, and nothing else moves.

    Parameters
    ----------
    key : str
        What is placed.
    nodes : sequence of str
        The names of the nodes; their order does not matter.
    replicas : int
        How many nodes get it.

    Raises
    ------
    UsageError
        If there are fewer nodes than replicas, or one is named twice.

    Examples
    --------
    >>> holders("trips/7", ["a", "b", "c"], 2) == holders("trips/7", ["c", "a", "b"], 2)
    True
    """
    if len(set(nodes)) != len(nodes):
        raise UsageError("a daemon is named twice")
    if not 1 <= replicas <= len(nodes):
        raise UsageError(f"{replicas} replicas on {len(nodes)} daemons: 1 to {len(nodes)} can be")
    ranked = sorted(nodes, key=lambda node: (_score(key, node), node), reverse=True)
    return ranked[:replicas]


def spread(name: str, shards: int, nodes: Sequence[str], replicas: int = 1) -> list[list[str]]:
    """Return the nodes of each shard of a dataset; see `holders`.

    Raises
    ------
    UsageError
        If there are fewer nodes than replicas, or one is named twice.
    """
    return [holders(f"{name}/{ordinal}", nodes, replicas) for ordinal in range(shards)]


def _score(key: str, node: str) -> int:
    digest = blake2b(f"{node}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
