"""The options of ``splitarrow publish``, and the progress of a Spark job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from helpers.cli import Run
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


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--cast", "n=", "--cast 'n=': expected NAME=VALUE"),
        ("--conf", "=x", "--conf '=x': expected NAME=VALUE"),
        ("--conf", "spark.ui", "--conf 'spark.ui': expected NAME=VALUE"),
        ("--split", "train=most", "--split: 'most' is not a number, such as 0.9"),
    ],
)
def test_wrong_pairs_are_refused(run: Run, option: str, value: str, problem: str) -> None:
    pytest.importorskip("pyspark")
    done = run("publish", "trips", "trips", "--to", "folder", option, value)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr
