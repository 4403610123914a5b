"""Merging the descriptions that several daemons give of one dataset.

This module does no I/O. It decides which parts belong together, and which are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import ConnectError, DatasetError, NotFoundError, SplitArrowError
from ..dataset.shards import format_ranges
from ..rpc.errors import restate_error
from ..rpc.info import DatasetInfo
from .daemon_info import (
    DaemonInfo,
    Holder,
    MergedDataset,
    ReplicaInfo,
    combine_replicas,
    common_value,
    join_addresses,
)
from .snapshot_coverage import SnapshotCoverage

INCOMPLETE = "incomplete"
"""The kind, in a listing, of a dataset that the daemons that respond cannot deliver."""


def merge(name: str, infos: Sequence[DaemonInfo]) -> MergedDataset:
    """Merge the responses of several daemons to one dataset.

    Exactly one publication (snapshot) must be complete. Datasets that are not published merge
    only if their versions are equal.

    Parameters
    ----------
    name : str
        The dataset.
    infos : sequence of DaemonInfo
        One response from each daemon.

    Raises
    ------
    NotFoundError
        If every daemon responds, and none has the dataset.
    ConnectError
        If shards are missing, and a daemon that may hold them does not respond.
    DatasetError
        If shards are missing, or the daemons have different datasets of that name.
    """
    holders = [(info.address, info.dataset) for info in infos if info.dataset is not None]
    if not holders:
        raise _not_found(name, infos)
    by_snapshot: dict[str, list[Holder]] = {}
    for address, dataset in holders:
        by_snapshot.setdefault(dataset.snapshot, []).append((address, dataset))
    unpublished = by_snapshot.pop("", [])
    if unpublished and by_snapshot:
        published = (each for group in by_snapshot.values() for each in group)
        raise DatasetError(
            f"daemons have different datasets {name!r}: {join_addresses(unpublished)} has one that "
            f"is not published, and {join_addresses(published)} a published one; name one daemon",
            stream=name,
        )
    if unpublished:
        return _merge_unpublished(name, unpublished)
    publications = [
        SnapshotCoverage.of(name, snapshot, group) for snapshot, group in by_snapshot.items()
    ]
    complete = [publication for publication in publications if not publication.missing]
    if not complete:
        raise _incomplete(name, publications, infos)
    if len(complete) > 1:
        found = "; ".join(
            f"snapshot {publication.snapshot!r} at {join_addresses(publication.holders)}"
            for publication in complete
        )
        raise DatasetError(
            f"the daemons have different publications of {name!r}, and each is complete: {found}; "
            "name one daemon",
            stream=name,
        )
    return complete[0].merged()


def merge_for_listing(name: str, infos: Sequence[DaemonInfo]) -> DatasetInfo:
    """Merge the responses of several daemons; a dataset that cannot be read is `INCOMPLETE`."""
    try:
        return merge(name, infos).info
    except SplitArrowError:
        first = next(info.dataset for info in infos if info.dataset is not None)
        return replace(
            first,
            kind=INCOMPLETE,
            rows=None,
            bytes=None,
            version="",
            snapshot="",
            endpoints=(),
        )


def _merge_unpublished(name: str, holders: list[Holder]) -> MergedDataset:
    """Merge datasets that no publication connects: one alone, or copies of one version."""
    info = holders[0][1]
    if len(holders) > 1:
        layouts = {(other.version, len(other.endpoints)) for _, other in holders}
        if len(layouts) > 1 or not info.version:
            versions = ", ".join(
                f"{other.version or 'unknown'} at {address}" for address, other in holders
            )
            raise DatasetError(
                f"several daemons have a dataset {name!r}, and nothing shows that it is the same "
                f"(versions {versions}); name one daemon",
                stream=name,
            )
        common_value(name, holders, "schema", lambda other: other.schema)
    several = len(info.endpoints) > 1
    replicas = tuple(
        tuple(
            ReplicaInfo(address, other.version, index if several else None, other.endpoints[index])
            for address, other in holders
        )
        for index in range(len(info.endpoints))
    )
    endpoints = tuple(combine_replicas(part) for part in replicas)
    return MergedDataset(replace(info, endpoints=endpoints), replicas)


def _not_found(name: str, infos: Sequence[DaemonInfo]) -> SplitArrowError:
    """Return the error for a dataset that no daemon described."""
    failures = [
        info.error
        for info in infos
        if info.error is not None and not isinstance(info.error, NotFoundError)
    ]
    if not failures:
        addresses = ", ".join(info.address for info in infos)
        return NotFoundError(f"none of the daemons {addresses} has a dataset {name!r}", stream=name)
    if len(failures) == len(infos) and len({type(error) for error in failures}) == 1:
        reasons = "; ".join(f"{info.address}: {_reason(info)}" for info in infos)
        return restate_error(failures[0], f"no daemon describes {name!r}: {reasons}", name)
    return ConnectError(
        f"no daemon that responds has a dataset {name!r}: {_outcomes(infos)}", stream=name
    )


def _incomplete(
    name: str, publications: Sequence[SnapshotCoverage], infos: Sequence[DaemonInfo]
) -> SplitArrowError:
    """Return the error for publications all of which lack shards."""
    details = "; ".join(
        f"of snapshot {each.snapshot!r} shard {format_ranges(each.missing)} of {each.total} is "
        "missing, "
        + " and ".join(
            f"{address} has {format_ranges(each.ordinals_at(address)) or 'none'}"
            for address, _ in each.holders
        )
        for each in publications
    )
    absent = any(
        info.dataset is None and not isinstance(info.error, NotFoundError) for info in infos
    )
    error_type = ConnectError if absent else DatasetError
    return error_type(
        f"the dataset {name!r} is incomplete: {details}; daemons: {_outcomes(infos)}", stream=name
    )


def _outcomes(infos: Sequence[DaemonInfo]) -> str:
    """Return the daemons, each with its error if it failed."""
    return ", ".join(
        f"{info.address} ({_reason(info)})" if info.error is not None else info.address
        for info in infos
    )


def _reason(info: DaemonInfo) -> str:
    return "not found" if isinstance(info.error, NotFoundError) else str(info.error)
