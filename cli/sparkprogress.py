"""The progress of a job of Spark, on a terminal and only there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from rich.progress import MofNCompleteColumn, TextColumn

from .output import is_terminal
from .progress import terminal_progress

_INTERVAL = 0.3


class SparkProgress:
    """A context that shows that Spark starts, and then how many tasks of its stages are done.

    Parameters
    ----------
    enabled : bool
        Whether to show anything; where standard error is no terminal, nothing is shown.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        shown = enabled and is_terminal(sys.stderr)
        # A descriptor of its own: standard error is another's while Spark starts.
        self._out = os.fdopen(os.dup(sys.stderr.fileno()), "w") if shown else None
        tasks = MofNCompleteColumn()
        self._progress = terminal_progress(
            tasks, TextColumn("tasks"), enabled=shown, file=self._out
        )
        self._task = self._progress.add_task("starting Spark", total=None)

    @contextmanager
    def following(self, spark: Any, name: str) -> Generator[None]:
        """Show the tasks of a session while the context lasts.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            The session that the jobs run in.
        name : str
            What is being made.
        """
        self.show(name)
        if self._out is None:
            yield
            return
        ended = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(spark.sparkContext.statusTracker(), ended), daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()

    def show(self, name: str) -> None:
        """Say what is being made from now on."""
        self._progress.update(self._task, description=name)

    def __enter__(self) -> SparkProgress:
        self._progress.start()
        return self

    def _watch(self, tracker: Any, ended: threading.Event) -> None:
        while not ended.wait(_INTERVAL):
            stages = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                total = sum(stage.numTasks for stage in known)
                done = sum(stage.numCompletedTasks for stage in known)
                self._progress.update(self._task, total=total, completed=done)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._out is not None:
            with suppress(OSError):
                self._out.close()
