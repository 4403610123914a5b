"""``splitarrow bench``: measure the transports and their peers."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from ..errors import UsageError
from ..formats.text import parse_size
from .exit_status import raise_on_signals
from .options import flag, option
from .terminal import is_terminal, standard_output

if TYPE_CHECKING:
    from ..benchmarks.report import Report
    from ..benchmarks.runner import Progress

_CASES = "Cases"
_METHOD = "Method"
_OUTPUT = "Output"

Sizes = Annotated[
    list[str] | None,
    option(
        help="The sizes of batches, separated by commas.",
        default="4KiB,64KiB,1MiB,8MiB,64MiB",
        metavar="SIZE,…",
        panel=_CASES,
    ),
]
Backends = Annotated[
    list[str] | None,
    option(
        help="The backends, separated by commas; see --list.",
        default="all that work on this machine",
        metavar="NAME,…",
        panel=_CASES,
    ),
]
Total = Annotated[
    str | None,
    option(
        help="The data that one read transfers.",
        default="1GiB, 65536 batches at most",
        metavar="SIZE",
        panel=_CASES,
    ),
]
Clients = Annotated[
    list[str] | None,
    option(
        help="The numbers of concurrent clients in the last section, separated by commas; 1 alone "
        "omits it.",
        default="8",
        metavar="N,…",
        panel=_CASES,
    ),
]
Repeat = Annotated[
    int,
    option(
        min=1,
        help="The number of counted rounds, after one that warms up and verifies the data.",
        metavar="N",
        panel=_METHOD,
    ),
]
Consume = Annotated[
    list[str] | None,
    option(
        help="The operations of a client on a batch, which take turns: count its rows, sum its "
        "columns, or make NumPy arrays of them and sum those (count, sum, numpy).",
        default="count,sum",
        metavar="NAME,…",
        panel=_METHOD,
    ),
]
Read = Annotated[
    Literal["iterate", "all"],
    option(help="Whether a client iterates over batches or reads one table.", panel=_METHOD),
]
Validate = Annotated[
    Literal["strict", "full", "cheap", "off"] | None,
    option(
        help="How clients of splitarrow validate batches.",
        default="as they do by default",
        panel=_METHOD,
    ),
]
Directory = Annotated[
    Path | None,
    option(
        help="The folder for temporary data.",
        default="the system's temporary folder",
        metavar="FOLDER",
        panel=_METHOD,
    ),
]
Timeout = Annotated[
    float,
    option(help="The longest time for one read, in seconds.", metavar="SECONDS", panel=_METHOD),
]
ListBackends = Annotated[bool, flag("--list", help="List the backends and exit.", panel=_OUTPUT)]
JsonFile = Annotated[
    str | None,
    option(
        "--json",
        help="Write all figures as JSON; - writes to standard output and omits the tables.",
        metavar="FILE",
        panel=_OUTPUT,
    ),
]
MarkdownFile = Annotated[
    Path | None,
    option(
        "--markdown",
        help="Write the tables in Markdown; into a page with markers, between the markers.",
        metavar="FILE",
        panel=_OUTPUT,
    ),
]
PlotFile = Annotated[
    Path | None,
    option(
        "--plot",
        help="Plot throughput over batch size, as .svg or .png.",
        metavar="FILE",
        panel=_OUTPUT,
    ),
]
CompareFile = Annotated[
    Path | None,
    option(
        "--compare",
        help="Show what changed since a run whose figures --json wrote.",
        metavar="FILE",
        panel=_OUTPUT,
    ),
]
Quiet = Annotated[bool, flag("-q", "--quiet", help="Show no progress.", panel=_OUTPUT)]


def bench(
    sizes: Sizes = None,
    backends: Backends = None,
    total: Total = None,
    clients: Clients = None,
    repeat: Repeat = 7,
    consume: Consume = None,
    read: Read = "iterate",
    validate: Validate = None,
    directory: Directory = None,
    timeout: Timeout = 300.0,
    list_backends: ListBackends = False,
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
    plot_file: PlotFile = None,
    compare_file: CompareFile = None,
    quiet: Quiet = False,
) -> None:
    """Measure the transports and their peers on this machine.

    Each server and each client is its own process. The backends take turns, and the median of
    all rounds counts. A size is a number of bytes or has a unit: 64KiB, 1MiB, 2GiB.

    [dim]splitarrow bench --sizes 64KiB,8MiB --backends splitarrow-tcp,flight[/dim]
    """
    if list_backends:
        _print_backends()
        return
    from ..benchmarks.options import Options
    from ..benchmarks.plot import check_plot
    from ..benchmarks.report import read_report
    from ..benchmarks.runner import run

    defaults = Options()
    options = Options(
        batch_bytes=tuple(map(parse_size, _split(sizes))) if sizes else defaults.batch_bytes,
        backends=tuple(_split(backends)) if backends else None,
        rounds=repeat,
        total_bytes=None if total is None else parse_size(total),
        clients=tuple(map(_parse_count, _split(clients))) if clients else defaults.clients,
        consume=cast("tuple[Any, ...]", tuple(_split(consume))) if consume else defaults.consume,
        read=read,
        validate=validate,
        directory=directory,
        timeout=timeout,
    )
    if plot_file is not None:
        check_plot(plot_file)
    for file in (markdown_file, json_file):
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: the folder does not exist")
    earlier = None if compare_file is None else read_report(compare_file)
    with raise_on_signals(), _progress(enabled=not quiet) as progress:
        report = run(options, progress)
    _write(report, earlier, json_file, markdown_file, plot_file)


def _print_backends() -> None:
    from ..benchmarks.backends import backend_names, find_backend

    always = backend_names()
    for name in backend_names(on_request=True):
        mark = "" if name in always else "; on request"
        print(f"{name:<22}{find_backend(name).summary}{mark}")


def _split(texts: list[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{text!r} is not a number of clients")
    return int(text)


@contextmanager
def _progress(*, enabled: bool) -> Generator[Progress | None]:
    """Show the progress of a run on a terminal."""
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

        def show(completed: int, total: int, step: str) -> None:
            progress.update(task, completed=completed, total=total, description=step)

        yield show


def _write(
    report: Report,
    earlier: Report | None,
    json_file: str | None,
    markdown_file: Path | None,
    plot_file: Path | None,
) -> None:
    from ..benchmarks import comparison_table, save_markdown, save_plot, terminal_tables

    with standard_output():
        if json_file == "-":
            print(report.to_json(), end="")
        else:
            from rich.console import Console

            console = Console()
            console.print(terminal_tables(report))
            if earlier is not None:
                console.print("", comparison_table(earlier, report))
    if json_file not in (None, "-"):
        Path(json_file).write_text(report.to_json())
    if markdown_file is not None:
        save_markdown(report, markdown_file)
    if plot_file is not None:
        save_plot(report, plot_file)
