"""The rows per second of a training loop: ``python -m splitarrow.benchmarks.studies.loader``.

splitarrow and its peers deliver the same rows in batches of the same size to a training loop that
does nothing. Each round is a process of its own, and the loaders take turns. In a first round,
each loader's batches are compared with the rows by a checksum, and so are the two parts of an epoch
in which it resumes. ``make bench-loader`` installs the peers. With ``--report``, the tables and the
plot of an earlier run are made again.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import SplitArrowError, UsageError
from ...testing import Daemon
from ..plot import check_plot
from .loader_peers import (
    BATCH_ROWS,
    PEERS,
    SHARDS,
    add_checksums,
    checksum,
    drop_from_page_cache,
    make_shards,
    write_arrow,
)
from .loader_report import (
    OURS,
    LoaderReport,
    LoaderResult,
    markdown_lines,
    save_markdown,
    save_plot,
)
from .loader_round import Kind, Round, run_process


class Benchmark:
    """The data, the daemon and the report of a run."""

    def __init__(
        self,
        folder: Path,
        rows: int,
        rounds: int,
        seconds: float,
        report_file: Path | None = None,
        most_seconds: float = math.inf,
    ) -> None:
        self._folder = folder
        self._rounds = rounds
        self._seconds = seconds
        self._report_file = report_file
        self._end = time.monotonic() + most_seconds
        self._expected: dict[str, float] = {}
        self.report = LoaderReport.begin(rows)
        """The results so far."""

    def run(self, workers: tuple[int, ...], peers: tuple[str, ...]) -> None:
        """Measure splitarrow and some peers with each number of workers."""
        write_arrow(self._folder / "arrow", self.report.rows)
        for shard in make_shards(self.report.rows):
            self._expected = add_checksums(self._expected, checksum(shard))
        self._write_peers(peers)
        names = [name for name in (*OURS, *peers) if name not in self.report.skipped]
        cases = [(count, name) for count in workers for name in names]
        for kind, (count, name) in self._plan_rounds(cases):
            if time.monotonic() >= self._end:
                print("the time is over; no round starts any more", file=sys.stderr)
                return
            self._attempt(kind, count, name)
            if self._report_file is not None:
                self.report.save(self._report_file)

    def _plan_rounds(self, cases: list[tuple[int, str]]) -> Iterator[tuple[Kind, tuple[int, str]]]:
        """Yield all rounds. A loader that has failed has no further ones."""
        for case in cases:
            yield "check", case
        for _ in range(self._rounds):
            for kind in ("warm", "cold", "resume"):
                for count, name in cases:
                    if self.report.find(name, count) is not None:
                        yield kind, (count, name)

    def _write_peers(self, peers: tuple[str, ...]) -> None:
        for name in peers:
            peer = PEERS[name]
            if reason := peer.unavailable_reason():
                self.report.skipped[name] = reason
            elif not (self._folder / peer.format).exists():
                try:
                    peer.write(self._folder / peer.format, self.report.rows)
                except Exception as error:  # of a foreign library
                    self.report.skipped[name] = f"{type(error).__name__}: {error}"

    def _attempt(self, kind: Kind, workers: int, name: str) -> None:
        """Run a round. A peer that fails is named in the report, and is not run again.

        One that cannot resume keeps its other figures.
        """
        print(f"{kind}: {name}, {workers} workers", file=sys.stderr, flush=True)
        try:
            self._run_round(kind, workers, name)
        except SplitArrowError as error:
            if name in OURS:
                raise
            if kind == "resume":
                self.report.skipped[f"{name}, {workers} workers, resume"] = str(error)
                return
            found = self.report.find(name, workers)
            if found is not None:
                self.report.results.remove(found)
            self.report.skipped[f"{name}, {workers} workers"] = str(error)

    def _run_round(self, kind: Kind, workers: int, name: str) -> None:
        with self._serve(name) as daemon:
            place = str(self._folder / (PEERS[name].format if name in PEERS else "arrow"))
            if kind == "cold":
                drop_from_page_cache(Path(place))
            pid = None if daemon is None else daemon.pid
            uri = place if daemon is None else daemon.control_uri
            work = Round(kind, name, workers, uri, self.report.rows, self._seconds, pid)
            result, peak = run_process(work, sample=kind == "check")
        if kind in ("check", "resume") and result["checksum"] != self._expected:
            raise SplitArrowError(f"{name} delivered other rows than were written")
        if kind == "check":
            self.report.results.append(LoaderResult(name, workers, peak))
            return
        found = self.report.find(name, workers)
        assert found is not None, "its first round was a check"
        if kind == "resume":
            found.first.append(result["first_seconds"])
            found.resume.append(result["resume_seconds"])
            found.replays = result["replays"]
            return
        found.add(kind, result["rows_per_second"], result["cpu_seconds_per_million_rows"])
        print(f"    {result['rows_per_second'] / 1e6:.2f} M rows/s", file=sys.stderr, flush=True)

    @contextmanager
    def _serve(self, name: str) -> Generator[Daemon | None]:
        """Run a new daemon for splitarrow; an earlier one would hold pages of the files."""
        if name not in OURS:
            yield None
            return
        listen = ["tcp://127.0.0.1:0", f"shm://{self._folder}/data.sock"]
        with Daemon(
            {"rows": self._folder / "arrow"}, listen=listen, control="grpc://127.0.0.1:0"
        ) as daemon:
            yield daemon


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark from the command line, and return the exit status."""
    options = _parse(arguments)
    try:
        if options.plot:
            check_plot(options.plot)
        report = LoaderReport.load(options.report) if options.report else _measure(options)
        if options.markdown:
            save_markdown(report, options.markdown, options.plot)
        if options.plot:
            save_plot(report, options.plot)
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print("\n".join(markdown_lines(report)))
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.loader")
    parser.add_argument("--rows", type=int, default=1 << 21, help="the rows of an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="the least warm round")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no round after these"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="save each round as JSON")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="measure nothing: load such JSON"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to a page")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an .svg or .png")
    return parser.parse_args(arguments)


def _measure(options: argparse.Namespace) -> LoaderReport:
    if options.rows < 1 or options.rows % (SHARDS * BATCH_ROWS):
        raise UsageError(f"--rows must be a multiple of {SHARDS * BATCH_ROWS}")
    if options.rounds < 1 or min(options.workers) < 0 or options.minutes <= 0:
        raise UsageError(
            "--rounds must be at least 1, --workers at least 0, and --minutes more than 0"
        )
    with tempfile.TemporaryDirectory(prefix="splitarrow-bench-") as folder:
        benchmark = Benchmark(
            Path(folder),
            options.rows,
            options.rounds,
            options.seconds,
            options.json,
            60 * options.minutes,
        )
        benchmark.run(tuple(options.workers), tuple(options.peers))
    return benchmark.report


if __name__ == "__main__":
    raise SystemExit(main())
