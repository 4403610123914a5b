"""Show the progress of a Spark job on a terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from rich.progress import MofNCompleteColumn, TextColumn

from .progress import make_progress
from .terminal import is_terminal

_POLL_SECONDS = 0.3


class StageTasks:
    """Adds up the tasks of all stages, so that the bar does not begin again with each stage."""

    def __init__(self) -> None:
        self._tasks: dict[int, int] = {}

    def update(self, active: Mapping[int, Any]) -> tuple[int, int]:
        """Return the completed tasks and all tasks of the stages seen so far.

        `active` is the stages that run now, each with ``numTasks`` and ``numCompletedTasks``, or
        None.
        """
        remaining = 0
        for number, stage in active.items():
            if stage is not None:
                self._tasks[number] = stage.numTasks
                remaining += stage.numTasks - stage.numCompletedTasks
        total = sum(self._tasks.values())
        return total - remaining, total


class SparkProgress:
    """Shows that Spark starts, and then the finished tasks of its stages; a context manager.

    `enabled`: Nothing is shown unless standard error is a terminal.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        shown = enabled and is_terminal(sys.stderr)
        # Standard error is redirected while Spark starts. A duplicate still reaches the terminal.
        self._terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w") if shown else None
        tasks = MofNCompleteColumn()
        self._progress = make_progress(
            tasks, TextColumn("tasks"), enabled=shown, file=self._terminal
        )
        self._task = self._progress.add_task("starting Spark", total=None)

    @contextmanager
    def track(self, spark: Any, name: str) -> Generator[None]:
        """Show the tasks of a session while the context lasts."""
        self.describe(name)
        if self._terminal is None:
            yield
            return
        ended = threading.Event()
        poller = threading.Thread(
            target=self._poll, args=(spark.sparkContext.statusTracker(), ended), daemon=True
        )
        poller.start()
        try:
            yield
        finally:
            ended.set()
            poller.join()

    def describe(self, name: str) -> None:
        """Change the dataset that is shown."""
        self._progress.update(self._task, description=name)

    def _poll(self, tracker: Any, ended: threading.Event) -> None:
        tasks = StageTasks()
        while not ended.wait(_POLL_SECONDS):
            stages = {
                number: tracker.getStageInfo(number) for number in tracker.getActiveStageIds()
            }
            completed, total = tasks.update(stages)
            if total:
                self._progress.update(self._task, total=total, completed=completed)

    def __enter__(self) -> SparkProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._terminal is not None:
            with suppress(OSError):
                self._terminal.close()
