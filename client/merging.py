"""What several servers tell of one dataset, as one: whose parts go together, and what is missing.

Nothing here asks anybody; it is driven by what was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..errors import ConnectError, DatasetError, NotFoundError, SplitArrowError
from .described import DatasetInfo, Endpoint

INCOMPLETE = "incomplete"
"""The kind of a dataset, in a listing, that cannot be read from the servers that answer."""
_MOST_NAMED = 12
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one server says of a dataset."""

    where: str
    """The address of its control plane."""
    info: DatasetInfo | None = None
    """What it tells; None if it does not."""
    error: SplitArrowError | None = None
    """Why it does not."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One server's copy of a part."""

    where: str
    """The address of its control plane."""
    version: str
    """The dataset's version there."""
    shard: int | None
    """The part's place among those that lie there; None: the dataset is one part there."""
    endpoint: Endpoint
    """How it is fetched there."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A dataset that lies on several servers."""

    info: DatasetInfo
    """What there is to say of it as a whole; its endpoints are those of the first holders."""
    parts: tuple[tuple[Holding, ...], ...]
    """For each endpoint, in order, all copies."""


def merge(name: str, answers: Sequence[Answer]) -> Merged:
    """Return the one dataset that some servers have together.

    Parameters
    ----------
    name : str
        The dataset.
    answers : sequence of Answer
        One from each server that was asked.

    Raises
    ------
    NotFoundError
        If every server answers, and none has it.
    ConnectError
        If parts are missing and a server that may have them does not answer.
    DatasetError
        If parts are missing, or the servers have different datasets of that name.
    """
    had = [(answer.where, answer.info) for answer in answers if answer.info is not None]
    if not had:
        raise _nowhere(name, answers)
    groups = _grouped((info.snapshot, (where, info)) for where, info in had)
    plain = groups.pop("", [])
    if plain and groups:
        raise DatasetError(
            f"{_places(plain)} has a dataset {name!r} of its own, and "
            f"{_places(had_by for group in groups.values() for had_by in group)} a published "
            "one: name one daemon",
            stream=name,
        )
    if plain:
        return _merged_plain(name, plain)
    whole: list[_Snapshot] = []
    broken: list[_Snapshot] = []
    for snapshot, group in groups.items():
        found = _Snapshot.of(name, snapshot, group)
        (broken if found.missing else whole).append(found)
    if len(whole) == 1:
        return whole[0].merged()
    if whole:
        raise DatasetError(
            f"the daemons have different publications of {name!r}, and each is whole: "
            + "; ".join(f"snapshot {each.snapshot!r} at {_places(each.group)}" for each in whole)
            + ": name one daemon",
            stream=name,
        )
    raise _incomplete(name, broken, answers)


def listed(name: str, answers: Sequence[Answer]) -> DatasetInfo:
    """Return what a listing tells of a dataset: also of one that cannot be read."""
    try:
        return merge(name, answers).info
    except SplitArrowError:
        info = next(answer.info for answer in answers if answer.info is not None)
        return replace(
            info, kind=INCOMPLETE, rows=None, bytes=None, version="", snapshot="", endpoints=()
        )


def ranges(ordinals: Iterable[int]) -> str:
    """Return numbers in a few words.

    Examples
    --------
    >>> ranges([7, 1, 2, 3, 9])
    '1-3, 7, 9'
    """
    runs: list[list[int]] = []
    for ordinal in sorted(ordinals):
        if runs and ordinal == runs[-1][1] + 1:
            runs[-1][1] = ordinal
        else:
            runs.append([ordinal, ordinal])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


_Had = tuple[str, DatasetInfo]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What there is of one publication."""

    name: str
    snapshot: str
    group: list[_Had]
    total: int
    held: Mapping[int, list[Holding]]

    @classmethod
    def of(cls, name: str, snapshot: str, group: list[_Had]) -> _Snapshot:
        total = _agreed(name, group, "number of shards", lambda info: info.shards_total)
        _agreed(name, group, "schema", lambda info: info.schema)
        if total is None:
            raise DatasetError(
                f"{_places(group)} does not say how many shards {name!r} has", stream=name
            )
        held: dict[int, list[Holding]] = {}
        for where, info in group:
            for place, endpoint in enumerate(info.endpoints if total else ()):
                ordinal = endpoint.ordinal
                if ordinal is None and not info.rows and len(info.endpoints) == 1:
                    continue  # it has none of the shards, and says so as one empty part
                if ordinal is None or ordinal >= total:
                    raise DatasetError(
                        f"{where} offers a shard {ordinal} of {name!r}, which has {total}",
                        stream=name,
                    )
                copies = held.setdefault(ordinal, [])
                if any(copy.where == where for copy in copies):
                    raise DatasetError(f"{where} offers shard {ordinal} of {name!r} twice")
                copies.append(Holding(where, info.version, place, endpoint))
        for ordinal, copies in held.items():
            _check_copies(name, ordinal, copies)
        return cls(name, snapshot, group, total, held)

    @property
    def missing(self) -> list[int]:
        return [ordinal for ordinal in range(self.total) if ordinal not in self.held]

    def merged(self) -> Merged:
        parts = tuple(tuple(self.held[ordinal]) for ordinal in range(self.total))
        first = self.group[0][1]
        counted = all(info.rows is not None for _, info in self.group)
        rows = _sum(part[0].endpoint.rows for part in parts) if counted else None
        nbytes = None
        if all(info.bytes is not None for _, info in self.group):
            nbytes = _sum(part[0].endpoint.nbytes for part in parts)
        info = replace(
            first,
            rows=rows,
            bytes=nbytes,
            version=self.snapshot,
            endpoints=tuple(_shared(part, at) for at, part in enumerate(parts)),
        )
        return Merged(info, parts)


def _merged_plain(name: str, group: list[_Had]) -> Merged:
    """Return what servers have that know nothing of each other: copies, or one of them alone."""
    info = group[0][1]
    if len(group) > 1:
        same = {(had.version, len(had.endpoints)) for _, had in group}
        if len(same) > 1 or not info.version:
            versions = ", ".join(f"{had.version or 'unknown'} at {at}" for at, had in group)
            raise DatasetError(
                f"several daemons have a dataset {name!r}, and nothing says that it is the same "
                f"(versions {versions}): name one daemon",
                stream=name,
            )
        _agreed(name, group, "schema", lambda had: had.schema)
    several = len(info.endpoints) > 1
    parts = tuple(
        tuple(
            Holding(at, had.version, place if several else None, had.endpoints[place])
            for at, had in group
        )
        for place in range(len(info.endpoints))
    )
    endpoints = tuple(_shared(part, None) for part in parts)
    return Merged(replace(info, endpoints=endpoints), parts)


def _shared(part: tuple[Holding, ...], ordinal: int | None) -> Endpoint:
    holders = tuple(copy.where for copy in part)
    endpoint = part[0].endpoint
    return replace(
        endpoint, held_by=holders, ordinal=endpoint.ordinal if ordinal is None else ordinal
    )


def _check_copies(name: str, ordinal: int, copies: list[Holding]) -> None:
    for what, of in (("sha256", lambda e: e.sha256), ("rows", lambda e: e.rows)):
        values: list[Any] = [of(copy.endpoint) for copy in copies]
        if len({value for value in values if value not in (None, "")}) > 1:
            told = ", ".join(f"{v} at {copy.where}" for v, copy in zip(values, copies, strict=True))
            raise DatasetError(
                f"the copies of shard {ordinal} of {name!r} differ: {what} {told}", stream=name
            )


def _agreed(name: str, group: list[_Had], what: str, of: Callable[[DatasetInfo], Any]) -> Any:
    (where, info), *others = group
    first = of(info)
    for other, told in others:
        if of(told) != first:
            raise DatasetError(
                f"{where} and {other} tell different things of {name!r}: the {what} differs",
                stream=name,
            )
    return first


def _nowhere(name: str, answers: Sequence[Answer]) -> SplitArrowError:
    errors = [answer.error for answer in answers if answer.error is not None]
    others = [error for error in errors if not isinstance(error, NotFoundError)]
    asked = ", ".join(answer.where for answer in answers)
    if not others:
        return NotFoundError(f"no daemon has a dataset {name!r}; asked were {asked}", stream=name)
    if len(others) == len(answers) and len({type(error) for error in others}) == 1:
        told = "; ".join(f"{answer.where}: {_reason(answer)}" for answer in answers)
        error = type(others[0])(f"no daemon tells of {name!r}: {told}", stream=name)
        if hasattr(others[0], "code"):
            error.code = others[0].code  # pyright: ignore[reportAttributeAccessIssue]
        return error
    return ConnectError(
        f"no daemon that answers has a dataset {name!r}; asked were {_asked(answers)}", stream=name
    )


def _incomplete(
    name: str, broken: Sequence[_Snapshot], answers: Sequence[Answer]
) -> SplitArrowError:
    found = "; ".join(
        f"of snapshot {each.snapshot!r} shard {ranges(each.missing)} of {each.total} is missing, "
        + "and ".join(
            f"{where} has {ranges(_ordinals(each, where)) or 'none'} " for where, _ in each.group
        ).rstrip()
        for each in broken
    )
    absent = [a for a in answers if a.info is None and not isinstance(a.error, NotFoundError)]
    kind = ConnectError if absent else DatasetError
    return kind(
        f"the dataset {name!r} is not complete: {found}; asked were {_asked(answers)}", stream=name
    )


def _ordinals(found: _Snapshot, where: str) -> list[int]:
    return [
        ordinal
        for ordinal, copies in found.held.items()
        if any(copy.where == where for copy in copies)
    ]


def _asked(answers: Sequence[Answer]) -> str:
    return ", ".join(
        answer.where + (f" ({_reason(answer)})" if answer.error is not None else "")
        for answer in answers
    )


def _reason(answer: Answer) -> str:
    return "it has none" if isinstance(answer.error, NotFoundError) else str(answer.error)


def _places(group: Iterable[_Had]) -> str:
    return ", ".join(where for where, _ in group)


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _grouped(pairs: Iterable[tuple[_K, _Had]]) -> dict[_K, list[_Had]]:
    groups: dict[_K, list[_Had]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
