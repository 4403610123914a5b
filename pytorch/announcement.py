"""Announcing the order in which a loader opens shards to a server that caches them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice

from ..client.connect import AnyClient
from ..client.dataset.client import Client
from ..client.rpc.channel import limit_calls
from ..errors import SplitArrowError
from .order import EpochOrder, Share
from .plan import DatasetPlan

_MAX_SHARDS = 65536
"""The shards that a server uses of an announcement."""
_SECONDS = 10.0


def list_shards(
    plan: DatasetPlan, order: EpochOrder, share: Share, lanes: Iterable[int], steps: int
) -> list[int]:
    """Return the ordinals of the shards of some lanes, in the order in which batches need them.

    It begins after `steps` batches. A shard is there once for each block that follows one of
    another shard.
    """
    blocks = share.list_blocks(order, lanes, steps)
    return [shard for shard, _ in groupby(plan.blocks[block].shard for block in blocks)]


@contextmanager
def announced(
    client: AnyClient, plan: DatasetPlan, reader: str, find_shards: Callable[[], Sequence[int]]
) -> Generator[None]:
    """Announce an order in a thread, which ends with the context.

    `find_shards` is called if the server uses the order. A failure has no effect on reads.
    """
    if not isinstance(client, Client):
        yield
        return
    name, version = plan.selection.name, plan.selection.version or None

    def run() -> None:
        with suppress(SplitArrowError), limit_calls(_SECONDS):
            # The empty order is a question: does the server use one?
            if client.announce(name, [], reader=reader, version=version):
                shards = islice(find_shards(), _MAX_SHARDS)
                client.announce(name, shards, reader=reader, version=version)

    thread = threading.Thread(target=run, name="splitarrow-announce")
    thread.start()
    try:
        yield
    finally:
        thread.join()
