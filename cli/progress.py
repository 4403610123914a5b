"""The progress of a fetch, on a terminal and only there."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .figures import counted, rate, size
from .output import is_terminal

_INTERVAL = 0.1
"""How often the figures change, in seconds: often enough to read, too seldom to cost."""


class FetchProgress:
    """A context that shows rows, bytes, rate and elapsed time on standard error.

    Parameters
    ----------
    name : str
        What is fetched.
    total_rows : int, optional
        How many rows there will be, where that is known.
    enabled : bool
        Whether to show anything; where standard error is no terminal, nothing is shown.
    """

    def __init__(self, name: str, total_rows: int | None = None, *, enabled: bool = True) -> None:
        self._shown = enabled and is_terminal(sys.stderr)
        self._started = self._next = time.perf_counter()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not self._shown,
            transient=True,
        )
        self._task = self._progress.add_task(name, total=total_rows, figures="")

    def __enter__(self) -> FetchProgress:
        self._progress.start()
        return self

    def update(self, rows: int, nbytes: int) -> None:
        """Show how much has arrived since the start; cheap enough to call for every batch."""
        if not self._shown:
            return
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + _INTERVAL
        figures = f"{counted(rows, 'row')}  {size(nbytes)}  {rate(nbytes, now - self._started)}"
        self._progress.update(self._task, completed=rows, figures=figures)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
