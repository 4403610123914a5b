"""Show the progress of a transfer on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from .formatting import format_bytes, format_count, format_rate
from .terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_UPDATE_SECONDS = 0.1
"""The time between two updates of the figures."""


def make_progress(*columns: ProgressColumn, enabled: bool, file: TextIO | None = None) -> Progress:
    """Return a progress bar on a terminal. It shows nothing anywhere else."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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


class TransferProgress:
    """Shows rows, bytes, throughput and elapsed time on standard error while its context lasts.

    If the number of rows is known, it also shows the percentage and the remaining time.

    `enabled`: Nothing is shown unless standard error is a terminal.
    """

    def __init__(self, name: str, total_rows: int | None = None, *, enabled: bool = True) -> None:
        self.is_shown = enabled and is_terminal(sys.stderr)
        self._started = self._next_update = time.perf_counter()
        if self.is_shown:
            self._progress = _make_transfer_progress(total_rows)
            self._task = self._progress.add_task(name, total=total_rows, figures="")

    def __enter__(self) -> TransferProgress:
        if self.is_shown:
            self._progress.start()
        return self

    def restart_clock(self) -> None:
        """Count the throughput from now on: connecting takes time, but transfers nothing."""
        self._started = time.perf_counter()

    def update(self, rows: int | None, nbytes: int) -> None:
        """Show the rows and bytes transferred so far. It is cheap enough to call for each batch."""
        if not self.is_shown:
            return
        now = time.perf_counter()
        if now < self._next_update:
            return
        self._next_update = now + _UPDATE_SECONDS
        rate = format_rate(nbytes, now - self._started)
        figures = f"{format_bytes(nbytes)}  {rate}"
        if rows is not None:
            figures = f"{format_count(rows, 'row')}  {figures}"
        self._progress.update(self._task, completed=rows, figures=figures)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_shown:
            self._progress.stop()


def _make_transfer_progress(total_rows: int | None) -> Progress:
    from rich.progress import TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns: list[ProgressColumn] = [TextColumn("{task.fields[figures]}", markup=False)]
    if total_rows is not None:
        columns = [TaskProgressColumn(), *columns, TimeRemainingColumn(compact=True)]
    return make_progress(*columns, enabled=True)
