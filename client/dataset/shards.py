"""The parts of a dataset by their ordinals."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import UsageError
from ..rpc.info import DatasetInfo

_MAX_RANGES = 12


def select_endpoints(info: DatasetInfo, shards: frozenset[int] | None) -> list[int]:
    """Return the indices of the endpoints to read, in the order of the dataset.

    Parameters
    ----------
    info : DatasetInfo
        The dataset. An endpoint without an ordinal is selected by its index.
    shards : frozenset of int, optional
        The ordinals to select. `None` selects all endpoints.

    Raises
    ------
    UsageError
        If the dataset does not have one of the shards.
    """
    indices = list_ordinals(info)
    if shards is None:
        return list(indices.values())
    missing = sorted(shards - set(indices))
    if missing:
        raise UsageError(f"{info.name!r} has no shard {format_ranges(missing)}", stream=info.name)
    return [indices[shard] for shard in sorted(shards)]


def list_ordinals(info: DatasetInfo) -> dict[int, int]:
    """Return the indices of all endpoints by their ordinals, in the order of the dataset.

    The ordinal of an endpoint that has none is its index.
    """
    return {
        index if endpoint.ordinal is None else endpoint.ordinal: index
        for index, endpoint in enumerate(info.endpoints)
    }


def format_ranges(ordinals: Iterable[int]) -> str:
    """Return ordinals as text, with consecutive ones as a range. Long lists are shortened.

    Examples
    --------
    >>> format_ranges([7, 1, 2, 3, 9])
    '1-3, 7, 9'
    """
    ranges: list[list[int]] = []
    for ordinal in sorted(ordinals):
        if ranges and ordinal == ranges[-1][1] + 1:
            ranges[-1][1] = ordinal
        else:
            ranges.append([ordinal, ordinal])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    omitted = len(texts) - _MAX_RANGES
    return ", ".join(texts[:_MAX_RANGES]) + (f" and {omitted} more" if omitted > 0 else "")
