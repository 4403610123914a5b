"""``splitarrow demo``: what it does, shown on this machine."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from . import signals
from .figures import counted, duration, size
from .output import standard_output
from .target import Target
from .wording import option

if TYPE_CHECKING:
    from ..benchmarks.processes import Worker

_WORKER = "splitarrow.cli.demo_worker"
_ROW_BYTES = 145
_ANSWER_SECONDS = 120.0
_OURS = "splitarrow-tcp"
_SHARED = "splitarrow-shm"
_PEER = "flight"
_LABELS = {
    _OURS: "splitarrow over TCP",
    _SHARED: "splitarrow, shared memory",
    _PEER: "Arrow Flight (pyarrow, C++)",
}


def demo(
    rows: Annotated[
        int, option(min=1, help="How many trips the table has.", metavar="ROWS")
    ] = 3_000_000,
    repeat: Annotated[
        int, option(min=1, help="How many reads of each transport count.", metavar="N")
    ] = 5,
    keep: Annotated[
        Path | None,
        option(
            help="Write the table to FOLDER/trips.arrow and keep it.",
            default="a temporary folder, removed at the end",
            metavar="FOLDER",
        ),
    ] = None,
) -> None:
    """Serve a table, fetch it from another process, check it, and time it.

    Makes a table of taxi trips (moments, numbers, strings, nulls, a dictionary; some 51 million
    values), starts a daemon on it, reads it in another process and compares every value with
    the file. Then it times that read in turns with Arrow Flight's: same file, same machine,
    each server and each client a process of its own; the median counts.
    """
    with signals.raised(), ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="splitarrow-demo-")))
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        path = (keep or folder) / "trips.arrow"
        nbytes = _make(path, rows, lasting=keep is not None)
        readers = _start(stack, path)
        _compare(readers)
        seconds = _measure(readers, repeat)
    _show(seconds, nbytes, rows)
    if keep is not None:
        _say(f"\nThe table is kept; serve it yourself:\n  splitarrow serve {path}")


def _say(text: str) -> None:
    with standard_output():
        print(text)


def _make(path: Path, rows: int, *, lasting: bool) -> int:
    """Write the table; return the file's size in bytes."""
    from .trips import SCHEMA, write_trips

    needed, free = rows * _ROW_BYTES, shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(0, f"{size(needed)} are needed, {size(free)} are free", str(path.parent))
    begin = time.perf_counter()
    with Target(path, sync=lasting) as target:
        write_trips(target.part, rows)
    nbytes = path.stat().st_size
    _say(
        f"table   {counted(rows, 'trip')}, {len(SCHEMA)} columns, "
        f"{counted(rows * len(SCHEMA), 'value')}, {size(nbytes)}, "
        f"made in {duration(time.perf_counter() - begin)}"
    )
    return nbytes


def _start(stack: ExitStack, path: Path) -> dict[str, Worker]:
    """Start every server and its reader; return the readers."""
    from ..benchmarks.backends import available
    from ..benchmarks.processes import Worker, answers_of
    from ..benchmarks.serving import Daemon

    def worker(label: str, **job: str) -> Worker:
        return stack.enter_context(Worker(label, job, _WORKER))

    daemon = stack.enter_context(Daemon({"trips": path}))
    uris = daemon.uris("trips")
    _say(f"serve   process {daemon.pid}: {uris['tcp']}")
    addresses = {_OURS: uris["tcp"], _SHARED: uris["shm"]}
    missing = available()[1]
    if _PEER in missing:
        _say(f"        no comparison with Arrow Flight: {missing[_PEER]}")
    else:
        server = worker("the Flight server", backend=_PEER, path=str(path))
        addresses[_PEER] = answers_of([server], _ANSWER_SECONDS)[0]["address"]
    readers = {
        name: worker(f"the reader of {name}", backend=name, path=str(path), address=address)
        for name, address in addresses.items()
    }
    answers_of(list(readers.values()), _ANSWER_SECONDS)
    return readers


def _compare(readers: dict[str, Worker]) -> None:
    """Let every reader compare what comes with the file; it also warms all up."""
    for name, reader in readers.items():
        answer = reader.ask({"compare": True}, _ANSWER_SECONDS)
        if name == _OURS:
            _say(
                f"fetch   process {reader.pid}: {counted(answer['rows'], 'row')}, "
                "schema and every value equal to the file's"
            )


def _measure(readers: dict[str, Worker], repeat: int) -> dict[str, float]:
    """Let the readers read in turns; return the median time of each, in seconds."""
    _say(f"timing  {counted(repeat, 'read')} of each, in turns\n")
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(repeat):
        for name, reader in readers.items():
            times[name].append(reader.ask({"compare": False}, _ANSWER_SECONDS)["seconds"])
    return {name: median(taken) for name, taken in times.items()}


def _show(seconds: dict[str, float], nbytes: int, rows: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("transport", no_wrap=True)
    for heading in ("GB/s", "million rows/s", "time", "× Flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    peer = seconds.get(_PEER)
    for name, taken in seconds.items():
        table.add_row(
            _LABELS[name],
            f"{nbytes / taken / 1e9:.2f}",
            f"{rows / taken / 1e6:.1f}",
            duration(taken),
            "" if peer is None else f"{peer / taken:.2f}",
            style="bold" if name == _OURS else None,
        )
    with standard_output():
        Console(highlight=False).print(table)
