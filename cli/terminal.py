"""Standard output and standard error: messages, tables and progress.

Each may be a terminal, a pipe, full or closed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO, TypeVar

from ..formats.text import format_bytes
from .formatting import format_count, format_rate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table

_T = TypeVar("_T")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. A closed stream is None."""
    return stream is not None and stream.isatty()


def is_closed(stream: TextIO | None) -> bool:
    """Return whether a standard stream was closed before the program started."""
    return stream is None


def print_message(text: str) -> None:
    """Print a line on standard error, if anything can be printed there."""
    if not is_closed(sys.stderr):
        with suppress(OSError):
            print(text, file=sys.stderr)


@contextmanager
def standard_output() -> Generator[None]:
    """Flush standard output at the end of the block, and name it in the errors of the block.

    The error is a `BrokenPipeError` if the reader of a pipe has closed it.
    """
    stream: TextIO | None = sys.stdout
    try:
        yield
        if stream is not None:
            stream.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # Python flushes the buffer again at exit, and would print a second error.
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from None


@contextmanager
def name_standard_output() -> Generator[None]:
    """Name standard output in the errors of the block."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


PIPE_WIDTH = 120
"""The width of output that is not a terminal, in characters."""


def make_console() -> Console:
    """Return a console for standard output. Its width suits the terminal, or a pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if is_terminal(sys.stdout) else PIPE_WIDTH)


def make_table() -> Table:
    """Return an empty table with a heading for each column, and without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold")


def make_properties() -> Table:
    """Return an empty table for names, in bold, and their values."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


_UPDATE_SECONDS = 0.1
"""The time between two updates of the figures."""


@contextmanager
def call_repeatedly(function: Callable[[], object], seconds: float) -> Generator[None]:
    """Let a thread call a function every few seconds until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            function()

    thread = threading.Thread(target=run, name="splitarrow-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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


def track(items: Iterable[_T], name: str, total: int) -> Iterable[_T]:
    """Return items whose progress is shown on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import track as show

    disable = not is_terminal(sys.stderr)
    console = Console(stderr=True)
    return show(items, name, total, console=console, transient=True, disable=disable)


class TransferProgress:
    """Shows rows, bytes, throughput and elapsed time on standard error while its context lasts.

    If the number of rows is known, it also shows the percentage and the remaining time. It shows
    nothing unless standard error is a terminal.
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

    def __exit__(self, *_error: object) -> None:
        if self.is_shown:
            self._progress.stop()


def _make_transfer_progress(total_rows: int | None) -> Progress:
    from rich.progress import TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns: list[ProgressColumn] = [TextColumn("{task.fields[figures]}", markup=False)]
    if total_rows is not None:
        columns = [TaskProgressColumn(), *columns, TimeRemainingColumn(compact=True)]
    return make_progress(*columns, enabled=True)
