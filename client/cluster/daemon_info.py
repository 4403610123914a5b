"""Datasets as the daemons of a cluster describe them, each and together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ...errors import DatasetError, SplitArrowError
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
    """Return the value that all daemons report.

    Raises
    ------
    DatasetError
        If two daemons report different values.
    """
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
