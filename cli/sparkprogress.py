"""The progress of a job of Spark, on a terminal and only there."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .output import is_terminal

_INTERVAL = 0.3


class SparkProgress:
    """A context that shows how many tasks of the running stages are done.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session that the job runs in.
    name : str
        What is being made.
    enabled : bool
        Whether to show anything; where standard error is no terminal, nothing is shown.
    """

    def __init__(self, spark: Any, name: str, *, enabled: bool = True) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        shown = enabled and is_terminal(sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not shown,
            transient=True,
        )
        self._task = self._progress.add_task(name, total=None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True) if shown else None

    def show(self, name: str) -> None:
        """Say what is being made from now on."""
        self._progress.update(self._task, description=name)

    def __enter__(self) -> SparkProgress:
        self._progress.start()
        if self._thread is not None:
            self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL):
            stages = [self._tracker.getStageInfo(one) for one in self._tracker.getActiveStageIds()]
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
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._progress.stop()
