"""The state of a dataset, found in the state of a loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError

_SNAPSHOT, _WORKERS = "_snapshot", "_worker_snapshots"
_SNAPSHOT_STEP, _STEPS_SINCE = "_snapshot_step", "_steps_since_snapshot"
_DATASET = "dataset_state"


def find_dataset_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a dataset.

    Parameters
    ----------
    state : mapping
        The state of a `StreamDataset`, or of torchdata's ``StatefulDataLoader`` with any number of
        workers. A loader with workers counts the batches that it has yielded. The states of its
        workers are ahead of it, as workers prefetch.

    Raises
    ------
    UsageError
        If it has another form.
    """
    try:
        if "stages" in state:
            return state
        if _SNAPSHOT not in state:
            return state[_DATASET]
        snapshot = state[_SNAPSHOT]
        steps = snapshot[_SNAPSHOT_STEP] + state[_STEPS_SINCE]
        first_worker = next(iter(snapshot[_WORKERS].values()))
        found = {key: value for key, value in first_worker[_DATASET].items() if key != "worker"}
        *earlier, current = found["stages"]
        found["stages"] = [*earlier, {**current, "steps": current["steps"] + steps}]
    except (KeyError, TypeError, StopIteration):
        raise UsageError(
            "the state is neither that of a StreamDataset nor that of a StatefulDataLoader with one"
        ) from None
    return found
