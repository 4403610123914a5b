"""The memory of open streams: ``python -m splitarrow.benchmarks.studies.stream_memory [COMMIT]``.

A client opens 100 streams of one file, and reads a few batches of each in turns, which it drops.
The figures are the anonymous memory that the server and the client have then more than with one
such stream, divided by the further streams. With a commit, its tree is measured beside this one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ...errors import SplitArrowError, UsageError
from ..datasets import make_dataset
from ..machine import read_memory
from ..statistics import format_size
from .paired import Side, checkout

STREAMS = 100
_BATCHES = 4
"""The batches that are read of each stream."""
_CASES = (("tcp", 4 << 10), ("tcp", 1 << 20), ("shm", 4 << 10), ("shm", 1 << 20))
_FILE_BYTES = 64 << 20

# It must run with trees of different ages, so it uses the public API alone.
CLIENT = """
import sys, splitarrow
streams = []
for line in sys.stdin:
    uri, count, batches = line.split()
    while len(streams) > int(count):
        streams.pop().close()
    while len(streams) < int(count):
        streams.append(splitarrow.open(uri))
    rows = 0
    for _ in range(int(batches)):
        for stream in streams:
            rows += next(stream).num_rows
    print(rows, flush=True)
"""


class StreamMemory(NamedTuple):
    """The anonymous memory of a stream, in bytes."""

    server: float
    """That of the server."""
    client: float
    """That of the client."""


def measure(side: Side, scheme: str, streams: int = STREAMS) -> StreamMemory:
    """Return the memory of each further stream beside a first one.

    No process of the side has had streams before: their memory would be used again.
    """
    side.ask(scheme, f"1 {_BATCHES}")
    before = _read(side)
    side.ask(scheme, f"{streams} {_BATCHES}")
    after = _read(side)
    return StreamMemory(*((b - a) / (streams - 1) for a, b in zip(before, after, strict=True)))


def _read(side: Side) -> StreamMemory:
    server, client = (read_memory(pid).anonymous for pid in side.processes)
    if server is None or client is None:
        raise SplitArrowError("this system does not report the memory of processes")
    return StreamMemory(server, client)


def compare(trees: Sequence[tuple[str, Path]], rounds: int) -> None:
    """Measure trees in turns, and print the medians."""
    for scheme, size in _CASES:
        with TemporaryDirectory(prefix="splitarrow-memory-") as name:
            folder = Path(name)
            data = Path(make_dataset(folder / "data.arrow", size, _FILE_BYTES // size).path)
            found: dict[str, list[StreamMemory]] = {label: [] for label, _ in trees}
            for number in range(rounds):
                for label, tree in trees:
                    with ExitStack() as stack:
                        side = Side(stack, tree, folder / f"{number}-{label}", data, CLIENT)
                        found[label].append(measure(side, scheme))
        for label, figures in found.items():
            server = median(each.server for each in figures) / 1024
            client = median(each.client for each in figures) / 1024
            case = f"{scheme}, batches of {format_size(size)}"
            print(f"{case:<26}{label:<12}server {server:8.1f} KiB  client {client:8.1f} KiB")
            sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Measure this checkout, and perhaps an earlier commit; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.stream_memory")
    parser.add_argument("commit", nargs="?", help="an earlier commit")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measurements (5)")
    options = parser.parse_args(arguments)
    try:
        with ExitStack() as stack:
            trees = [("HEAD", stack.enter_context(checkout("HEAD")))]
            if options.commit is not None:
                trees.append((options.commit, stack.enter_context(checkout(options.commit))))
            compare(trees, options.rounds)
    except SplitArrowError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
