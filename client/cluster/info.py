"""Datasets as the daemons of a cluster describe them, each and together.

`merge` combines the descriptions of one dataset, and checks that the daemons hold all of its
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ConnectError, DatasetError, NotFoundError, SplitArrowError
from ..dataset.requests import format_ranges
from ..rpc.errors import restate_error
from ..rpc.info import DatasetInfo, Endpoint

Holder = tuple[str, DatasetInfo]
"""The address of a daemon that has a dataset, and its description of the dataset."""


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """One daemon's response to a request for a dataset."""

    address: str
    """The address of its control plane."""
    dataset: DatasetInfo | None = None
    """The description; None if the daemon failed."""
    error: SplitArrowError | None = None
    """The error of a daemon that failed."""

    @classmethod
    def of(cls, address: str, result: DatasetInfo | SplitArrowError) -> DaemonInfo:
        """Return the response for the result of a call."""
        if isinstance(result, SplitArrowError):
            return cls(address, error=result)
        return cls(address, result)


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One daemon's copy of a part, as the daemon describes it."""

    address: str
    """The address of its control plane."""
    version: str
    """The version of the dataset at the daemon."""
    shard: int | None
    """The index of the part at the daemon; None if the dataset has one part there."""
    endpoint: Endpoint
    """The part's ticket and locations at the daemon."""


@dataclass(frozen=True, slots=True)
class MergedDataset:
    """A dataset that several daemons hold."""

    info: DatasetInfo
    """The whole dataset. Its endpoints are those of the first daemon that holds them."""
    replicas: tuple[tuple[ReplicaInfo, ...], ...]
    """For each endpoint, in order, all daemons that hold it."""


def combine_replicas(replicas: tuple[ReplicaInfo, ...]) -> Endpoint:
    """Return the endpoint of the first replica, with all daemons that hold it."""
    return replace(replicas[0].endpoint, held_by=tuple(replica.address for replica in replicas))


def common_value(
    name: str, holders: list[Holder], description: str, get: Callable[[DatasetInfo], Any]
) -> Any:
    """Return the value that all daemons report; raise `DatasetError` if they differ."""
    (first_address, first), *others = holders
    for address, info in others:
        if get(info) != get(first):
            raise DatasetError(
                f"{first_address} and {address} describe {name!r} differently: the {description} "
                "differs",
                stream=name,
            )
    return get(first)


def join_addresses(holders: Iterable[Holder]) -> str:
    """Return the addresses of daemons as text."""
    return ", ".join(address for address, _ in holders)


@dataclass(frozen=True, slots=True)
class SnapshotCoverage:
    """The shards of one publication that the daemons hold."""

    name: str
    """The dataset."""
    snapshot: str
    """The identifier of the publication."""
    holders: list[Holder]
    """The daemons that have shards of the publication."""
    total: int
    """The number of shards of the whole publication."""
    shards: Mapping[int, list[ReplicaInfo]]
    """The replicas of each shard that a daemon holds, by its ordinal."""

    @classmethod
    def of(cls, name: str, snapshot: str, holders: list[Holder]) -> SnapshotCoverage:
        """Collect the shards, and check that the daemons do not contradict each other."""
        total = common_value(name, holders, "number of shards", lambda info: info.shards_total)
        common_value(name, holders, "schema", lambda info: info.schema)
        if total is None:
            raise DatasetError(
                f"{join_addresses(holders)} does not report the number of shards of {name!r}",
                stream=name,
            )
        shards: dict[int, list[ReplicaInfo]] = {}
        for address, info in holders:
            for replica in _list_shards(name, address, info, total):
                ordinal = replica.endpoint.ordinal
                assert ordinal is not None
                replicas = shards.setdefault(ordinal, [])
                if any(other.address == address for other in replicas):
                    raise DatasetError(
                        f"{address} lists shard {ordinal} of {name!r} twice", stream=name
                    )
                replicas.append(replica)
        for ordinal, replicas in shards.items():
            _check_replicas(name, ordinal, replicas)
        return cls(name, snapshot, holders, total, shards)

    @property
    def missing(self) -> list[int]:
        """The ordinals of the shards that no daemon holds."""
        return [ordinal for ordinal in range(self.total) if ordinal not in self.shards]

    def ordinals_at(self, address: str) -> list[int]:
        """Return the ordinals of the shards that a daemon holds."""
        return [
            ordinal
            for ordinal, replicas in self.shards.items()
            if any(replica.address == address for replica in replicas)
        ]

    def merged(self) -> MergedDataset:
        """Return the complete publication as one dataset."""
        replicas = tuple(tuple(self.shards[ordinal]) for ordinal in range(self.total))
        infos = [info for _, info in self.holders]
        # The totals of a selection are unknown where a daemon does not report them.
        rows = nbytes = None
        if all(info.rows is not None for info in infos):
            rows = _sum(shard[0].endpoint.rows for shard in replicas)
        if all(info.bytes is not None for info in infos):
            nbytes = _sum(shard[0].endpoint.nbytes for shard in replicas)
        endpoints = tuple(combine_replicas(shard) for shard in replicas)
        info = replace(
            infos[0],
            rows=rows,
            bytes=nbytes,
            version=self.snapshot,
            endpoints=endpoints,
            shards_held=self.total,
        )
        return MergedDataset(info, replicas)


def _list_shards(name: str, address: str, info: DatasetInfo, total: int) -> Iterator[ReplicaInfo]:
    """Yield the shards that a daemon holds, each with a valid ordinal."""
    for index, endpoint in enumerate(info.endpoints if total else ()):
        if endpoint.ordinal is None and not info.rows and len(info.endpoints) == 1:
            continue  # A daemon that holds none of the shards reports one empty endpoint.
        if endpoint.ordinal is None or endpoint.ordinal >= total:
            raise DatasetError(
                f"{address} lists shard {endpoint.ordinal} of {name!r}, which has {total} shards",
                stream=name,
            )
        yield ReplicaInfo(address, info.version, index, endpoint)


def _check_replicas(name: str, ordinal: int, replicas: list[ReplicaInfo]) -> None:
    """Refuse copies of a shard that differ."""
    for field in ("sha256", "rows"):
        values: list[Any] = [getattr(replica.endpoint, field) for replica in replicas]
        if len({value for value in values if value not in (None, "")}) > 1:
            found = ", ".join(
                f"{value} at {replica.address}"
                for value, replica in zip(values, replicas, strict=True)
            )
            raise DatasetError(
                f"the copies of shard {ordinal} of {name!r} differ: {field} {found}", stream=name
            )


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one of the numbers is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


INCOMPLETE = "incomplete"
"""The kind, in a listing, of a dataset that the daemons that respond cannot deliver."""


def merge(name: str, infos: Sequence[DaemonInfo]) -> MergedDataset:
    """Merge the responses of several daemons to one dataset.

    Exactly one publication (snapshot) must be complete. Datasets that are not published merge only
    if their versions are equal. An error is a `NotFoundError` if every daemon responds and none has
    the dataset, a `ConnectError` if a daemon that may hold missing shards does not respond, and
    otherwise a `DatasetError`.
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


def list_holders(merged: MergedDataset) -> dict[str, dict[int, ReplicaInfo]]:
    """Return the replicas that each daemon holds, by address and by the index of the endpoint."""
    holders: dict[str, dict[int, ReplicaInfo]] = {}
    for index, replicas in enumerate(merged.replicas):
        for replica in replicas:
            holders.setdefault(replica.address, {})[index] = replica
    return holders
