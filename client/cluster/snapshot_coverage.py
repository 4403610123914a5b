"""The shards of one publication that the daemons of a cluster hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import DatasetError
from ..rpc.info import DatasetInfo
from .daemon_info import (
    Holder,
    MergedDataset,
    ReplicaInfo,
    combine_replicas,
    common_value,
    join_addresses,
)


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
            infos[0], rows=rows, bytes=nbytes, version=self.snapshot, endpoints=endpoints
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
