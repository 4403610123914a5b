"""``splitarrow bench``: the transports beside their peers."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ..errors import UsageError
from . import signals
from .figures import parse_size
from .output import is_terminal, standard_output
from .wording import flag, option

if TYPE_CHECKING:
    from ..benchmarks.report import Report
    from ..benchmarks.runner import Progress

_WHAT = "What is measured"
_HOW = "How"
_OUTPUT = "Output"


def bench(
    sizes: Annotated[
        list[str] | None,
        option(
            help="The sizes of the batches, separated by commas.",
            default="4KiB,64KiB,1MiB,8MiB,64MiB",
            metavar="SIZE,…",
            panel=_WHAT,
        ),
    ] = None,
    backends: Annotated[
        list[str] | None,
        option(
            help="Which backends, separated by commas; --list names them.",
            default="all that can run here",
            metavar="NAME,…",
            panel=_WHAT,
        ),
    ] = None,
    total: Annotated[
        str | None,
        option(
            help="How much one read moves.",
            default="1GiB, 65536 batches at most",
            metavar="SIZE",
            panel=_WHAT,
        ),
    ] = None,
    clients: Annotated[
        int,
        option(
            min=1,
            help="How many clients read at once in the last part; 1 leaves that part out.",
            metavar="N",
            panel=_WHAT,
        ),
    ] = 8,
    repeat: Annotated[
        int,
        option(
            min=1,
            help="How many rounds are counted, after one that warms up and checks the data.",
            metavar="N",
            panel=_HOW,
        ),
    ] = 5,
    consume: Annotated[
        Literal["count", "sum"],
        option(
            help="What a client does with a batch: count its rows, or sum its columns.",
            panel=_HOW,
        ),
    ] = "count",
    read: Annotated[
        Literal["iterate", "all"],
        option(
            help="Whether a client takes batch after batch, or one whole table.",
            panel=_HOW,
        ),
    ] = "iterate",
    validate: Annotated[
        Literal["full", "cheap", "off"] | None,
        option(
            help="How splitarrow's clients check batches.",
            default="as they do by default",
            panel=_HOW,
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        option(
            help="Where the data is made, and removed again.",
            default="the system's temporary folder",
            metavar="FOLDER",
            panel=_HOW,
        ),
    ] = None,
    timeout: Annotated[
        float,
        option(
            help="The longest time for one read, in seconds.",
            metavar="SECONDS",
            panel=_HOW,
        ),
    ] = 300.0,
    list_backends: Annotated[
        bool, flag("--list", help="List the backends, and stop.", panel=_OUTPUT)
    ] = False,
    json_file: Annotated[
        str | None,
        option(
            "--json",
            help="Write all figures as JSON; - for standard output, in place of the tables.",
            metavar="FILE",
            panel=_OUTPUT,
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        option(
            help="Write the tables in Markdown, into the page's marks if it has them.",
            metavar="FILE",
            panel=_OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        option(
            help="Draw throughput over batch size: an .svg or a .png.",
            metavar="FILE",
            panel=_OUTPUT,
        ),
    ] = None,
    quiet: Annotated[
        bool,
        flag("-q", "--quiet", help="Show no progress.", panel=_OUTPUT),
    ] = False,
) -> None:
    """Measure the transports beside their peers, on this machine.

    Server and client are processes of their own, the backends take turns, and the median of all
    rounds counts. A size is a number of bytes, or has a unit: 64KiB, 1MiB, 2GiB.

    [dim]splitarrow bench --sizes 64KiB,8MiB --backends splitarrow-tcp,flight[/dim]
    """
    from ..benchmarks import backends as known
    from ..benchmarks.options import Options
    from ..benchmarks.plot import check_plot
    from ..benchmarks.runner import run

    if list_backends:
        for name in known.names():
            print(f"{name:<22}{known.backend(name).summary}")
        return
    defaults = Options()
    options = Options(
        batch_bytes=tuple(map(parse_size, _split(sizes))) if sizes else defaults.batch_bytes,
        backends=tuple(_split(backends)) if backends else None,
        rounds=repeat,
        total_bytes=None if total is None else parse_size(total),
        clients=clients,
        consume=consume,
        read=read,
        validate=validate,
        directory=directory,
        timeout=timeout,
    )
    if plot is not None:
        check_plot(plot)
    for file in (markdown, json_file):
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no such folder")
    with signals.raised(), _progress(enabled=not quiet) as progress:
        report = run(options, progress)
    _write(report, json_file, markdown, plot)


def _split(given: list[str]) -> list[str]:
    return [part.strip() for text in given for part in text.split(",") if part.strip()]


@contextmanager
def _progress(*, enabled: bool) -> Generator[Progress | None]:
    """Show on a terminal how far the run is."""
    if not enabled or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what)

        yield show


def _write(report: Report, json_file: str | None, markdown: Path | None, plot: Path | None) -> None:
    with standard_output():
        if json_file == "-":
            print(report.to_json(), end="")
        else:
            from rich.console import Console

            Console().print(report.to_table())
    if json_file not in (None, "-"):
        Path(json_file).write_text(report.to_json())
    if markdown is not None:
        report.save_markdown(markdown)
    if plot is not None:
        report.plot(plot)
