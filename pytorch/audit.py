"""Whether checkpoints of a dataset cover each row of an epoch once.

It counts the rows batch by batch from the order of the epoch. It needs no daemon.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidDataError, UsageError, install_hint
from .mixing import MixOrder, MixPosition, Numbers
from .order import Share, Spans, remaining_rows
from .packing import PackPosition
from .position import STATE_FORMAT, Position, find_dataset_state

_CHUNK_ROWS = 1 << 16
_SAME = ("kind", "dataset", "version", "layout", "seed", "shuffle", "stop", "epoch", "rows")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The rows of a dataset that an epoch has delivered so far."""

    dataset: str
    """The dataset."""
    version: str
    """Its version."""
    epoch: int
    """The number of the epoch."""
    rows: int
    """The rows of the dataset that the filter selects."""
    once: int
    """The rows that were delivered once."""
    repeated: int
    """The rows that were delivered several times."""
    skipped: int
    """The rows of steps that were left out."""
    errors: int
    """The rows that were left out because they could not be delivered."""
    remaining: int
    """The rows that are not delivered yet."""
    may_repeat: bool
    """Whether the dataset was to repeat rows (``even="pad"``, ``stop="repeat"``)."""

    @property
    def is_correct(self) -> bool:
        """Whether no row was repeated, unless the dataset was to."""
        return self.may_repeat or not self.repeated


def read_states(path: Path) -> list[Mapping[str, Any]]:
    """Return the states of datasets in a file, which may be within a larger checkpoint.

    The file is JSON, or one of ``torch.save``. Raises `InvalidDataError` if it is neither, or has
    no state.
    """
    data = path.read_bytes()
    try:
        content = json.loads(data)
    except ValueError:
        content = _load_torch(path)
    found = list(_find_states(content))
    if not found:
        raise InvalidDataError(f"{path} has no state of a dataset of splitarrow.pytorch")
    return found


def _load_torch(path: Path) -> Any:
    try:
        torch: Any = import_module("torch")
    except ModuleNotFoundError:
        raise UsageError(f"{path} is not JSON; to read others, {install_hint('torch')}") from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InvalidDataError(f"{path} is neither JSON nor of torch.save: {reason}") from None


def _find_states(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, Mapping):
        values: Mapping[Any, Any] = content
        if "epoch" in values and values.get("format") == STATE_FORMAT:
            yield values
        elif "_snapshot" in values or "dataset_state" in values:
            state, steps = find_dataset_state(values)
            yield {**state, "taken": steps}
        else:
            for value in values.values():
                yield from _find_states(value)
    elif isinstance(content, list | tuple):
        items: Sequence[Any] = content
        for value in items:
            yield from _find_states(value)


def audit(states: Sequence[Mapping[str, Any]]) -> list[Coverage]:
    """Return what an epoch has covered of each dataset, given checkpoints of one run.

    They may be of different steps, and of different ranks. The last ones decide. Raises
    `UsageError` if they are of different epochs or orders, or one does not follow from another.
    """
    first = states[0]
    for state in states[1:]:
        for key in _SAME:
            if state.get(key) != first.get(key):
                raise UsageError(
                    f"the states are not of one run: {key} is {first.get(key)!r} and "
                    f"{state.get(key)!r}"
                )
    match first.get("kind"):
        case None:
            return [_audit_stream(states)]
        case "mixture":
            return _audit_mixture(states)
        case "packed":
            return _audit_packs(states)
        case kind:
            raise UsageError(f"the kind of the state is {kind!r}, which this version cannot read")


def _find_last(states: Sequence[Mapping[str, Any]], decode: Any, parts: str) -> Any:
    """Return the last position; raise `UsageError` if an earlier one does not lead to it."""
    positions: list[Any] = []
    for state in states:
        position, taken = decode(state), state.get("taken", 0)
        step = position.steps
        while taken:  # a loader counts batches, not the steps that were left out
            taken -= not any(step + position.earlier in each for each in _skipped([state]))
            step += 1
        positions.append(position if step == position.steps else position.after(step))
    *others, last = sorted(positions, key=lambda each: each.earlier + each.steps)
    for other in others:
        mine, later = getattr(other, parts), getattr(last, parts)
        if len(mine) > len(later) or mine[:-1] != later[: len(mine) - 1]:
            raise UsageError(
                f"the state at step {other.earlier + other.steps} does not lead to that at step "
                f"{last.earlier + last.steps}: they are of different runs"
            )
        if parts == "stages" and len(mine) == len(later):
            last = last.noting(each for each in mine[-1].skipped if each[1] < last.steps)
    return last


def _skipped(states: Sequence[Mapping[str, Any]]) -> tuple[range, ...]:
    return tuple(range(*each) for state in states for each in state.get("skipped_steps", ()))


def _mask(spans: Spans, rows: int) -> Numbers:
    found = np.zeros(rows, bool)
    for begin, end in spans.slice(0, len(spans)):
        found[begin:end] = True
    return found


def _audit_stream(states: Sequence[Mapping[str, Any]]) -> Coverage:
    last: Position = _find_last(states, Position.decode, "stages")
    state, rows, ranges = states[0], states[0]["rows"], _skipped(states)
    counts, skipped = np.zeros(rows, np.uint8), np.zeros(rows, bool)
    first, errors = 0, 0
    for index, stage in enumerate(last.stages):
        spans = Position(last.epoch, last.stages[: index + 1]).remaining(rows)
        for rank in range(stage.division.world_size):
            share = Share(spans, stage.division, rank)
            for number in range(min(stage.steps, share.batches)):
                target = skipped if any(first + number in each for each in ranges) else counts
                for begin, end in share.batch(number):
                    target[begin:end] += True
            errors += sum(stage.shifts(rank, share.lanes).values())
        if stage.skipped:  # their lanes have taken rows of later batches
            rest = (spans, stage.division, stage.steps)
            unshifted = _mask(remaining_rows(*rest, lambda rank, lanes: {}), rows)
            counts += unshifted & ~_mask(remaining_rows(*rest, stage.shifts), rows)
        first += stage.steps
    delivered = counts > 0
    pads = any(stage.division.even == "pad" for stage in last.stages)
    return Coverage(
        state["dataset"],
        state["version"],
        last.epoch,
        rows,
        int((counts == 1).sum()) - errors,
        int((counts > 1).sum()),
        int((skipped & ~delivered).sum()),
        errors,
        int((~delivered & ~skipped).sum()),
        pads,
    )


def _audit_mixture(states: Sequence[Mapping[str, Any]]) -> list[Coverage]:
    last: MixPosition = _find_last(states, MixPosition.decode, "segments")
    omitted: list[tuple[int, int]] = []
    for each in _skipped(states):
        for step in each:
            if step < last.steps:
                position = last.at(step)
                omitted.append((position.rows, position.rows + position.segments[-1].step_rows))
    return _cover(states[0], last, last.rows, omitted)


def _audit_packs(states: Sequence[Mapping[str, Any]]) -> list[Coverage]:
    last: PackPosition = _find_last(states, PackPosition.decode, "history")
    if _skipped(states):
        raise UsageError("the rows of packs that were left out cannot be counted from the state")
    held = {part.document for pack in (*last.ready, *last.open_packs) for part in pack}
    return _cover(states[0], last.documents, last.documents.steps, [(n, n + 1) for n in held], True)


def _cover(
    state: Mapping[str, Any],
    position: MixPosition,
    rows: int,
    omitted: Sequence[tuple[int, int]],
    are_remaining: bool = False,
) -> list[Coverage]:
    """Return what the first rows of a mixture cover of its parts, without those omitted."""
    parts = state["parts"]
    sizes = [part["rows"] for part in parts]
    order = MixOrder(
        sizes, position.segments, (state["seed"], position.epoch, "mixture"), state["stop"]
    )
    counts = [np.zeros(max(1, size), np.int64) for size in sizes]
    missing = [np.zeros(max(1, size), bool) for size in sizes]
    for begin in range(0, min(rows, len(order)), _CHUNK_ROWS):
        labels, numbers = order.rows(begin, min(begin + _CHUNK_ROWS, rows))
        for part, size in enumerate(sizes):
            found = numbers[labels == part] % max(1, size)
            counts[part] += np.bincount(found, minlength=max(1, size))
    for begin, end in omitted:
        for part, number in zip(*(each.tolist() for each in order.rows(begin, end)), strict=True):
            counts[part][number % sizes[part]] -= 1
            missing[part][number % sizes[part]] = True
    return [
        Coverage(
            part["dataset"],
            part["version"],
            position.epoch,
            size,
            int((count == 1).sum()),
            int((count > 1).sum()),
            0 if are_remaining else int((out & (count == 0)).sum()),
            0,
            int(((count == 0) & (~out | are_remaining)).sum()),
            state["stop"] == "repeat" or state["even"] == "pad",
        )
        for part, size, count, out in zip(parts, sizes, counts, missing, strict=True)
    ]
