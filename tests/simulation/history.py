"""What readers may find: a model of the datasets, which shares no code with the product.

A dataset has one writer. A state is the list of the jobs whose rows it has, in order; None if it
does not exist. Each job changes the state. Until it is acknowledged, it may or may not have
happened, and a read gets one of the states that were possible while it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from .clock import SimulationError, World

State = tuple["Job", ...] | None
Change = Callable[[State], State]
_TEXTS = np.array([f"text {n}" * (n % 4) for n in range(13)])


@dataclass(frozen=True, slots=True)
class Job:
    """The rows that one upload or publication writes: the number of rows of each shard."""

    number: int
    shards: tuple[int, ...]


@cache
def make_rows(job: int, shard: int, rows: int) -> pa.Table:
    """Return the rows of a shard."""
    n = np.arange(rows, dtype=np.int64)
    text = pa.array(_TEXTS[(n * 7 + job) % len(_TEXTS)], pa.string(), mask=n % 11 == 3)
    return pa.table(
        {
            "job": pa.array(np.full(rows, job, np.int32)),
            "shard": pa.array(np.full(rows, shard, np.int16)),
            "n": pa.array(n),
            "text": text,
        }
    )


EMPTY = make_rows(0, 0, 0)


@cache
def find_rows(state: tuple[Job, ...]) -> pa.Table:
    """Return the rows of a state."""
    parts = [
        make_rows(job.number, shard, rows) for job in state for shard, rows in enumerate(job.shards)
    ]
    return pa.concat_tables(parts or [EMPTY]).combine_chunks()


@dataclass(frozen=True, slots=True)
class Selection:
    """What a read selects."""

    columns: tuple[str, ...] | None = None
    below: int | None = None
    """Only rows with ``n`` below this number."""
    limit: int | None = None
    rows: tuple[int, int] | None = None
    """The first row of the dataset, and the one after the last."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the product's read."""
        given = {
            "columns": None if self.columns is None else list(self.columns),
            "filter": None if self.below is None else f"n < {self.below}",
            "limit": self.limit,
            "rows": self.rows,
        }
        return {name: value for name, value in given.items() if value is not None}

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the rows that a read of the table has to return."""
        if self.rows is not None:
            table = table.slice(self.rows[0], self.rows[1] - self.rows[0])
        if self.below is not None:
            table = table.take(np.flatnonzero(table["n"].to_numpy() < self.below))
        if self.limit is not None:
            table = table.slice(0, self.limit)
        return table if self.columns is None else table.select(list(self.columns))


class History:
    """The possible states of one dataset over time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._possible: frozenset[State] = frozenset([None])
        self._times: list[tuple[float, frozenset[State]]] = [(World.current.now, self._possible)]
        self._pending: list[Change] = []
        self.acknowledged = 0
        self.was_dropped = False
        """Whether it may have been dropped."""
        self.versions: dict[str, frozenset[State]] = {}
        """The states that a version may have."""

    @property
    def possible(self) -> frozenset[State]:
        """The states that are possible now."""
        return self._possible

    def begin(self, change: Change) -> None:
        """Record that a change begins, which may happen from now on."""
        self._pending.append(change)
        self._set(self._possible)

    def acknowledge(self, change: Change) -> None:
        """Record that a change has happened."""
        if change in self._pending:
            self._pending.remove(change)
        self.acknowledged += 1
        self._set(frozenset(change(state) for state in self._possible))
        if not any(self._possible):
            self.versions.clear()  # the numbers begin anew

    def settle(self) -> None:
        """Record that no earlier change can happen any more: the daemon has started anew."""
        self._pending.clear()

    def _set(self, possible: frozenset[State]) -> None:
        """Add the states to which changes lead that may still happen."""
        known = set(possible)
        for change in self._pending:
            known |= {change(state) for state in known}
        self._possible = frozenset(known)
        self.was_dropped |= self.acknowledged > 0 and None in known
        self._times.append((World.current.now, self._possible))

    def list_possible(self, since: float) -> set[State]:
        """Return the states that have been possible since a time."""
        found: set[State] = set()
        for index, (_, states) in enumerate(self._times):
            is_last = index + 1 == len(self._times)
            if is_last or self._times[index + 1][0] >= since:
                found |= states
        return found

    def _select(self, since: float, pinned: Iterable[State] | None) -> Iterable[State]:
        """Return the states of a pinned version; without one, those that were possible."""
        if pinned is not None:
            return pinned
        return self.list_possible(since)

    def count_rows(self) -> int:
        """Return the number of rows of the largest state that is possible now."""
        return max(sum(sum(job.shards) for job in state or ()) for state in self._possible)

    def has_fewer_rows(self, rows: int, since: float, pinned: Iterable[State] | None) -> bool:
        """Return whether a state since a time, or a pinned version, has fewer rows."""
        states = self._select(since, pinned)
        return any(sum(sum(job.shards) for job in state or ()) < rows for state in states)

    def check_read(
        self,
        table: pa.Table,
        selection: Selection,
        since: float,
        pinned: Iterable[State] | None = None,
    ) -> None:
        """Raise if a read has returned rows that no possible state, or pinned version, has."""
        states = [state for state in self._select(since, pinned) if state is not None]
        for state in states:
            if selection.apply(find_rows(state)).equals(table):
                return
        raise SimulationError(
            f"a read of {self.name} ({selection}) returned rows of no possible state: "
            f"{describe(table)}; possible: {', '.join(map(describe_state, states)) or 'none'}"
        )


def describe_state(state: State) -> str:
    """Return a state as text."""
    if state is None:
        return "absent"
    return "+".join(f"job {job.number} {list(job.shards)}" for job in state) or "empty"


def describe(table: pa.Table) -> str:
    """Return what rows a table has, as text."""
    if "job" not in table.column_names or not table.num_rows:
        return f"{table.num_rows} rows"
    return ", ".join(_list_runs(table)) + f" ({table.num_rows} rows)"


def _list_runs(table: pa.Table) -> Iterator[str]:
    jobs = table["job"].to_numpy()
    shards = table["shard"].to_numpy() if "shard" in table.column_names else jobs
    borders = np.flatnonzero((np.diff(jobs) != 0) | (np.diff(shards) != 0)) + 1
    for begin, end in zip([0, *borders], [*borders, len(jobs)], strict=True):
        yield f"job {jobs[begin]} shard {shards[begin]}: {end - begin}"
