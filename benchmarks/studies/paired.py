"""A commit beside an earlier one: ``python -m splitarrow.benchmarks.studies.paired HEAD~1``.

Each side serves the same file with ``splitarrow serve`` of its own tree, and a client process of
that tree reads it. What counts is the processor time of server and client together, which other
work on the machine changes little. The exit status is 1 if a case became slower than allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ...errors import SplitArrowError, UsageError
from ..datasets import make_dataset
from ..machine import process_seconds
from ..statistics import format_interval, format_size, median_interval

MAX_RATIO = 1.25
"""The largest allowed ratio of processor times: a fifth less is done in the same time."""

_CASES = [("tcp", 4 << 10), ("tcp", 1 << 20), ("shm", 4 << 10)]
_BATCHES = 1 << 16
_MAX_BYTES = 512 << 20
_START_SECONDS = 60

# It must run with trees of different ages, so it uses the public API alone.
_CLIENT = """
import sys, resource, splitarrow
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
for uri in sys.stdin:
    before = used()
    rows = 0
    with splitarrow.open(uri.strip()) as stream:
        for batch in stream:
            rows += batch.num_rows
    print(used() - before, rows, flush=True)
"""


class Side:
    """A server and a client of one tree. `stack` ends their processes."""

    def __init__(
        self, stack: ExitStack, tree: Path, folder: Path, data: Path, client: str = _CLIENT
    ) -> None:
        self._folder = folder
        folder.mkdir()
        # A checkout is the package itself, whatever its folder is called.
        (folder / "splitarrow").symlink_to(tree, target_is_directory=True)
        ready = folder / "ready.json"
        serve = ["-m", "splitarrow", "serve", f"data={data}", "--ready-file", str(ready)]
        serve += ["--listen", "tcp://127.0.0.1:0", "--listen", f"shm://{folder}/socket"]
        self._server = stack.enter_context(self._start(serve))
        self._client = stack.enter_context(self._start(["-c", client]))
        self._uris = self._wait_for(ready)

    @contextmanager
    def _start(self, arguments: list[str]) -> Generator[subprocess.Popen[str]]:
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        with open(self._folder / "log", "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def _wait_for(self, ready: Path) -> dict[str, str]:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise SplitArrowError(f"no server started: {(self._folder / 'log').read_text()}")
            time.sleep(0.05)
        return json.loads(ready.read_text())["datasets"]["data"]

    def measure(self, scheme: str, rows: int) -> float:
        """Read the file once; return the processor seconds of both processes."""
        before = process_seconds(self._server.pid)
        seconds, count = self.ask(scheme).split()
        if int(count) != rows:
            raise SplitArrowError(f"a client read {count} instead of {rows} rows")
        return float(seconds) + process_seconds(self._server.pid) - before

    def ask(self, scheme: str, arguments: str = "") -> str:
        """Send the client the URI of a transport and arguments; return its answer."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(f"{self._uris[scheme]} {arguments}\n")
        self._client.stdin.flush()
        answer = self._client.stdout.readline()
        if not answer:
            raise SplitArrowError(f"a client failed: {(self._folder / 'log').read_text()}")
        return answer

    @property
    def processes(self) -> tuple[int, int]:
        """The process IDs of the server and the client."""
        return self._server.pid, self._client.pid


class Outcome(NamedTuple):
    """The ratios of one case: processor time of the later tree, divided by the earlier one's."""

    scheme: str
    batch_bytes: int
    ratios: list[float]

    @property
    def is_slower(self) -> bool:
        """Whether the later tree needs more than allowed."""
        return median(self.ratios) > MAX_RATIO

    def __str__(self) -> str:
        """Return a line with the median and its interval."""
        name = f"{self.scheme}, batches of {format_size(self.batch_bytes)}"
        interval = format_interval(median_interval(self.ratios))
        verdict = " SLOWER" if self.is_slower else ""
        return f"{name:<30}{median(self.ratios):.2f}  ({interval}){verdict}"


def compare(earlier: Path, later: Path, rounds: int) -> list[Outcome]:
    """Measure two checkouts in turns."""
    outcomes: list[Outcome] = []
    for scheme, size in _CASES:
        with TemporaryDirectory(prefix="splitarrow-paired-") as name, ExitStack() as stack:
            folder = Path(name)
            count = min(_BATCHES, _MAX_BYTES // size)
            data = make_dataset(folder / "data.arrow", size, count)
            path = Path(data.path)
            sides = [
                Side(stack, tree, folder / side, path)
                for side, tree in (("earlier", earlier), ("later", later))
            ]
            pairs = [[side.measure(scheme, data.rows) for side in sides] for _ in range(rounds + 1)]
            outcomes.append(Outcome(scheme, size, [b / a for a, b in pairs[1:]]))
            print(outcomes[-1], flush=True)
    return outcomes


@contextmanager
def checkout(commit: str) -> Generator[Path]:
    """Check a commit out into a temporary folder."""
    with TemporaryDirectory(prefix="splitarrow-commit-") as name:
        root = Path(__file__).resolve().parents[2]
        command = ["git", "-C", str(root), "archive", "--format=tar", commit]
        archive = subprocess.run(command, capture_output=True)
        if archive.returncode:
            raise UsageError(f"git has no commit {commit!r}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", name], input=archive.stdout, check=True)
        yield Path(name)


def main(arguments: list[str] | None = None) -> int:
    """Compare this checkout with an earlier commit, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.paired")
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="pairs of reads (7)")
    options = parser.parse_args(arguments)
    try:
        with checkout(options.commit) as earlier, checkout("HEAD") as later:
            print(f"processor time of HEAD / that of {options.commit}, medians and 95 % intervals")
            slower = [each for each in compare(earlier, later, options.rounds) if each.is_slower]
    except SplitArrowError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
