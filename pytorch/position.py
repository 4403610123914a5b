"""Positions in an epoch: what a checkpoint holds, also within the state of a loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from ..errors import UsageError
from .order import Division, Spans, remaining_rows

_SNAPSHOT, _WORKERS = "_snapshot", "_worker_snapshots"
_SNAPSHOT_STEP, _STEPS_SINCE = "_snapshot_step", "_steps_since_snapshot"
_DATASET = "dataset_state"
STATE_FORMAT = 1
"""The version of what a checkpoint holds."""


def find_dataset_state(state: Any) -> tuple[Mapping[str, Any], int]:
    """Return the state of a dataset, which may be within that of a loader, and further steps.

    A loader with workers counts the batches that it has yielded. The states of its workers are
    ahead of it, as workers prefetch. Of a list of the states of all ranks, the rows that were left
    out are put together. Raises `UsageError` if the state has another form.
    """
    try:
        if isinstance(state, list | tuple):
            found, steps = zip(*map(find_dataset_state, cast("Sequence[Any]", state)), strict=True)
            same = {_without_skipped(each) for each in found}
            if len(set(steps)) > 1 or len(same) > 1:
                raise UsageError("the states of the ranks are of different steps or orders")
            return _join_states(found), steps[0]
        if "format" in state:
            return state, 0
        if _SNAPSHOT not in state:
            return state[_DATASET], 0
        snapshot = state[_SNAPSHOT]
        steps = snapshot[_SNAPSHOT_STEP] + state[_STEPS_SINCE]
        workers = [worker[_DATASET] for worker in snapshot[_WORKERS].values()]
        found = _join_states(workers)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            "the state is neither that of a StreamDataset nor that of a StatefulDataLoader with one"
        ) from None
    return {key: value for key, value in found.items() if key != "worker"}, steps


def _without_skipped(state: Mapping[str, Any]) -> str:
    stages = [{**stage, "skipped": None} for stage in state.get("stages", ())]
    return repr(sorted({**state, "stages": stages}.items()))


def _join_states(states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first state, with the rows that any one states as left out."""
    first, *others = states
    skipped = [
        each
        for state in states
        for stage in state.get("stages", ())[-1:]
        for each in stage.get("skipped", ())
    ]
    if not others or not skipped:
        return first
    *earlier, current = first["stages"]
    merged = [list(each) for each in sorted({tuple(each) for each in skipped})]
    return {**first, "stages": [*earlier, {**current, "skipped": merged}]}


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an epoch in which the ranks did not change."""

    division: Division
    """How the rows that remained before this stage are divided."""
    steps: int
    """The number of batches that each rank has delivered."""
    skipped: tuple[tuple[int, int, int], ...] = ()
    """Ranks, numbers of their batches, and how many rows their lanes left out for these."""

    def shifts(self, rank: int, lanes: int) -> Counter[int]:
        """Return how many rows each lane of a rank has left out."""
        found: Counter[int] = Counter()
        for each, number, rows in self.skipped:
            if each == rank:
                found[number % lanes] += rows
        return found


@dataclass(frozen=True, slots=True)
class Position:
    """A position in an epoch. All ranks have delivered the same number of batches."""

    epoch: int
    """The number of the epoch."""
    stages: tuple[Stage, ...]
    """The stages of the epoch so far; the last one is the current one."""

    @classmethod
    def start(cls, epoch: int, division: Division) -> Position:
        """Return the beginning of an epoch."""
        return cls(epoch, (Stage(division, 0),))

    @property
    def current(self) -> Stage:
        """The current stage."""
        return self.stages[-1]

    @property
    def steps(self) -> int:
        """The number of batches that each rank has delivered in the current stage."""
        return self.current.steps

    @property
    def earlier(self) -> int:
        """The number of batches that each rank has delivered before the current stage."""
        return sum(stage.steps for stage in self.stages[:-1])

    def after(self, steps: int) -> Position:
        """Return the position at which each rank has delivered `steps` batches of this stage."""
        skipped = tuple(each for each in self.current.skipped if each[1] < steps)
        return Position(
            self.epoch, (*self.stages[:-1], Stage(self.current.division, steps, skipped))
        )

    def noting(self, skipped: Iterable[tuple[int, int, int]]) -> Position:
        """Return the position with further rows that the current stage has left out."""
        stage = self.current
        merged = tuple(sorted({*stage.skipped, *skipped}))
        return Position(self.epoch, (*self.stages[:-1], replace(stage, skipped=merged)))

    def at(self, step: int) -> Position:
        """Return the position in the stage that has a step of the epoch, at its beginning."""
        first = 0
        for index, stage in enumerate(self.stages[:-1]):
            if step < first + stage.steps:
                return Position(self.epoch, self.stages[: index + 1]).after(0)
            first += stage.steps
        return self.after(0)

    def divided(self, division: Division) -> Position:
        """Return the same position, from which the rows are divided in another way."""
        if division == self.current.division:
            return self
        earlier = self.stages if self.current.steps else self.stages[:-1]
        return Position(self.epoch, (*earlier, Stage(division, 0)))

    def remaining(self, rows: int) -> Spans:
        """Return the rows that the current stage divides."""
        spans = Spans([(0, rows)])
        for stage in self.stages[:-1]:
            spans = remaining_rows(spans, stage.division, stage.steps, stage.shifts)
        return spans

    def encode(self) -> dict[str, Any]:
        """Return the position as a dict of plain values, for checkpoints."""
        stages: list[dict[str, Any]] = []
        for stage in self.stages:
            stages.append({**asdict(stage.division), "steps": stage.steps})
            if stage.skipped:
                stages[-1]["skipped"] = [list(each) for each in stage.skipped]
        return {"epoch": self.epoch, "stages": stages}

    @classmethod
    def decode(cls, state: Mapping[str, Any]) -> Position:
        """Return the position that a dict describes."""
        stages: list[Stage] = []
        for values in state["stages"]:
            fields = dict(values)
            steps = fields.pop("steps")
            skipped = tuple(
                (rank, number, rows) for rank, number, rows in fields.pop("skipped", ())
            )
            stages.append(Stage(Division(**fields), steps, skipped))
        return cls(state["epoch"], tuple(stages))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one worker of a loader, or of a process that iterates by itself."""

    start: Any
    """The position at which the iteration began."""
    worker: int | None
    """The number of the worker; None without a loader's workers."""
    workers: int
    """The number of workers."""
    next: int
    """The batch that the worker yields next."""

    def advanced(self, number: int) -> Progress:
        """Return the progress of a worker whose next batch is `number`."""
        return Progress(self.start, self.worker, self.workers, number)

    def encode(self) -> dict[str, Any]:
        """Return the progress of a loader's worker as a dict of plain values, for checkpoints."""
        return {"id": self.worker, "workers": self.workers, "next": self.next}


_REASONS = {
    "kind": "the state is that of another kind of dataset",
    "dataset": "the state is that of another dataset",
    "version": "the dataset has changed since the state was saved",
    "seed": "the state was saved with another seed",
    "shuffle": "the state was saved with another value of shuffle",
    "layout": "the state was saved with another filter or window_rows",
    "stop": "the state was saved with another value of stop",
    "tokens": "the state was saved with another column of tokens",
    "length": "the state was saved with another length",
    "policy": "the state was saved with another policy",
    "window": "the state was saved with another window",
}


def check_state(state: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a checkpoint has other values than expected."""
    if state.get("format") != STATE_FORMAT:
        raise UsageError("the state is not that of a dataset of this version of splitarrow.pytorch")
    for name, reason in _REASONS.items():
        mine, saved = expected.get(name), state.get(name)
        if mine != saved:
            raise UsageError(f"{reason}: {name} is {mine!r}, and was {saved!r}")


@dataclass(frozen=True, slots=True)
class Order:
    """What determines the order of the rows. A position is valid for one order only."""

    dataset: str
    """The dataset."""
    version: str
    """Its version."""
    layout: str
    """`DatasetPlan.layout`, which depends on the filter and the window."""
    seed: int
    """The seed."""
    shuffle: bool
    """Whether rows are shuffled."""

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise `UsageError` if a checkpoint does not belong to this order."""
        check_state(state, asdict(self))

    def encode(self) -> dict[str, Any]:
        """Return the order as a dict of plain values, for checkpoints."""
        return {"format": STATE_FORMAT, **asdict(self)}
