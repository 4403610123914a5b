"""The progress of a fetch, on a terminal and only there."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from .figures import counted, rate, size
from .output import is_terminal

_INTERVAL = 0.1
"""How often the figures change, in seconds: often enough to read, too seldom to cost."""


def terminal_progress(
    *columns: ProgressColumn, enabled: bool, file: TextIO | None = None
) -> Progress:
    """Return a line of progress on a terminal; it shows nothing where that is none.

    Parameters
    ----------
    *columns : rich.progress.ProgressColumn
        What stands between the bar and the elapsed time.
    enabled : bool
        Whether to show anything.
    file : text file, optional
        Where; by default standard error.
    """
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        *columns,
        TimeElapsedColumn(),
        console=Console(file=file, stderr=file is None),
        disable=not (enabled and is_terminal(file or sys.stderr)),
        transient=True,
    )


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
        figures = TextColumn("{task.fields[figures]}", markup=False)
        self._progress = terminal_progress(figures, enabled=enabled)
        self._shown = not self._progress.disable
        self._started = self._next = time.perf_counter()
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
