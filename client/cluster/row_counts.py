"""Counting the rows of record batches at the daemons that hold the shards."""

from __future__ import annotations

from dataclasses import replace

from ...errors import DatasetError, SplitArrowError
from ...protocol.request import Request
from ..dataset.replicas import TRANSIENT
from ..dataset.shards import format_ranges, list_ordinals
from ..rpc.row_counts import count_rows
from .daemon_info import MergedDataset, ReplicaInfo
from .daemons import DaemonPool


def count_merged_rows(
    pool: DaemonPool, merged: MergedDataset, request: Request, timeout: float
) -> dict[int, list[int]]:
    """Count the rows of each record batch of each shard, by ordinal.

    A daemon counts all its shards. Another daemon is asked only for shards that are missing.

    Parameters
    ----------
    pool : DaemonPool
        The daemons.
    merged : MergedDataset
        The dataset as they have it together.
    request : Request
        The dataset and the filter.
    timeout : float
        The time limit for each daemon, in seconds.

    Raises
    ------
    SplitArrowError
        If a daemon refuses, or no daemon that holds a shard responds.
    """
    missing = dict(enumerate(list_ordinals(merged.info)))
    counted: dict[int, list[int]] = {}
    failure: SplitArrowError | None = None
    for address, replicas in _list_holders(merged).items():
        if not missing.keys() & replicas.keys():
            continue
        version = next(iter(replicas.values())).version
        try:
            client = pool.connections[address].client()
            counts = count_rows(client.channel, replace(request, version=version), timeout)
        except TRANSIENT as error:
            failure = error
            continue
        for index, replica in replicas.items():
            rows = counts.get(replica.shard or 0)
            if index in missing and rows is not None:
                counted[missing.pop(index)] = rows
    if missing:
        raise failure or DatasetError(
            f"no daemon counted the rows of shard {format_ranges(missing.values())} of "
            f"{request.dataset!r}",
            stream=request.dataset,
        )
    return dict(sorted(counted.items()))


def _list_holders(merged: MergedDataset) -> dict[str, dict[int, ReplicaInfo]]:
    """Return the replicas that each daemon holds, by address and by the index of the endpoint."""
    holders: dict[str, dict[int, ReplicaInfo]] = {}
    for index, replicas in enumerate(merged.replicas):
        for replica in replicas:
            holders.setdefault(replica.address, {})[index] = replica
    return holders
