"""The progress of a Spark job."""

from __future__ import annotations

from types import SimpleNamespace

from splitarrow.cli.publish import StageTasks


def stage(tasks: int, completed: int) -> SimpleNamespace:
    return SimpleNamespace(numTasks=tasks, numCompletedTasks=completed)


def test_the_bar_never_begins_again() -> None:
    tasks = StageTasks()
    assert tasks.update({}) == (0, 0)
    assert tasks.update({0: stage(4, 1)}) == (1, 4)
    assert tasks.update({0: stage(4, 3), 1: stage(2, 0)}) == (3, 6)
    assert tasks.update({1: stage(2, 1), 2: None}) == (5, 6)
    assert tasks.update({}) == (6, 6)
    assert tasks.update({5: stage(10, 0)}) == (6, 16)
