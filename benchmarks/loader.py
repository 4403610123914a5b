"""How many rows per second reach a training loop: ``python -m splitarrow.benchmarks.loader``.

splitarrow and its peers deliver the same rows in batches of the same size to a training loop that
does nothing. Each round is a process of its own, and the loaders take turns. In a first round,
each loader's batches are compared with the rows by a checksum. ``make bench-loader`` installs the
peers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import SplitArrowError, UsageError
from ..testing import Daemon
from .formatting import format_figure, format_mebibytes, format_ratio
from .loader_peers import PEERS
from .loader_round import Kind, Round
from .loader_rows import (
    BATCH_ROWS,
    SHARDS,
    add_checksums,
    checksum,
    drop_from_page_cache,
    make_shards,
    write_arrow,
)
from .machine import machine_properties, software_versions
from .memory import read_shared_memory
from .statistics import Statistics

OURS = ("splitarrow, shm", "splitarrow, tcp")
"""The loaders of splitarrow: one for each transport."""
GOALS = {"splitarrow, shm": 3.0, "splitarrow, tcp": 1.5}
"""The rate over that of the fastest peer, in warm rounds."""

_SAMPLE_SECONDS = 0.1
_ROUND_SECONDS = 900.0
_PACKAGES = ("torch", "datasets", "mosaicml-streaming", "webdataset")


@dataclass(slots=True)
class Figures:
    """The results of a loader with a number of workers."""

    rates: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The rows per second of each round, by its kind."""
    cpu: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The processor seconds for a million rows of each round, by its kind."""
    peak_bytes: int = 0
    """The largest memory of all processes together (PSS) while every value is read."""


class Benchmark:
    """The data, the daemon and the results of a run.

    Parameters
    ----------
    folder : Path
        An existing folder for all data.
    rows : int
        The rows of an epoch: a multiple of ``SHARDS * BATCH_ROWS``.
    rounds : int
        The counted rounds of each kind.
    seconds : float
        The least time of a warm round.
    """

    def __init__(self, folder: Path, rows: int, rounds: int, seconds: float) -> None:
        self._folder = folder
        self._rows = rows
        self._rounds = rounds
        self._seconds = seconds
        self._expected: dict[str, float] = {}
        self.skipped: dict[str, str] = {}
        """The loaders that cannot run, or failed, with the reason."""
        self.figures: dict[tuple[int, str], Figures] = {}
        """The results, by the number of workers and the loader."""

    def run(self, workers: tuple[int, ...], peers: tuple[str, ...]) -> None:
        """Measure splitarrow and some peers with each number of workers.

        Raises
        ------
        SplitArrowError
            If splitarrow's batches are wrong, or fail.
        """
        write_arrow(self._folder / "arrow", self._rows)
        for shard in make_shards(self._rows):
            self._expected = add_checksums(self._expected, checksum(shard))
        self._write_peers(peers)
        cases = [(count, name) for count in workers for name in (*OURS, *peers)]
        for count, name in cases:
            if name not in self.skipped:
                self._attempt("check", count, name)
        for _ in range(self._rounds):
            for kind in ("warm", "cold"):
                for case in cases:
                    if case in self.figures:
                        self._attempt(kind, *case)

    def _write_peers(self, peers: tuple[str, ...]) -> None:
        for name in peers:
            peer = PEERS[name]
            if reason := peer.unavailable_reason():
                self.skipped[name] = reason
            elif not (self._folder / peer.format).exists():
                try:
                    peer.write(self._folder / peer.format, self._rows)
                except Exception as error:  # of a foreign library
                    self.skipped[name] = f"{type(error).__name__}: {error}"

    def _attempt(self, kind: Kind, workers: int, name: str) -> None:
        """Run a round. A peer that fails is named in the report, and is not run again."""
        print(f"{kind}: {name}, {workers} workers", file=sys.stderr, flush=True)
        try:
            self._run_round(kind, workers, name)
        except SplitArrowError as error:
            if name in OURS:
                raise
            self.figures.pop((workers, name), None)
            self.skipped[f"{name}, {workers} workers"] = str(error)

    def _run_round(self, kind: Kind, workers: int, name: str) -> None:
        with self._serve(name) as daemon:
            place = str(self._folder / (PEERS[name].format if name in PEERS else "arrow"))
            if kind == "cold":
                drop_from_page_cache(Path(place))
            pid = None if daemon is None else daemon.pid
            uri = place if daemon is None else daemon.control_uri
            work = Round(kind, name, workers, uri, self._rows, self._seconds, pid)
            result, peak = run_process(work, sample=kind == "check")
        if kind == "check":
            if result["checksum"] != self._expected:
                raise SplitArrowError(f"{name} delivered other rows than were written")
            self.figures[workers, name] = Figures(peak_bytes=peak)
            return
        figures = self.figures[workers, name]
        figures.rates.setdefault(kind, []).append(result["rows_per_second"])
        figures.cpu.setdefault(kind, []).append(result["cpu_seconds_per_million_rows"])
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


def run_process(work: Round, *, sample: bool) -> tuple[dict[str, Any], int]:
    """Run a round in a process of its own.

    Parameters
    ----------
    work : Round
        The round.
    sample : bool
        Whether to sample the memory of its processes and of the daemon, which takes time.

    Returns
    -------
    result : dict
        The result of `run_round`.
    peak_bytes : int
        The largest memory of all processes together; 0 without `sample`.

    Raises
    ------
    SplitArrowError
        If the process fails, or takes too long. The message has the end of its output.
    """
    command = [sys.executable, "-W", "ignore", "-m", "splitarrow.benchmarks.loader_round"]
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        process = stack.enter_context(
            subprocess.Popen([*command, work.encode()], stdout=subprocess.PIPE, stderr=errors)
        )
        stack.callback(process.kill)
        sampler = stack.enter_context(_MemorySampler(process.pid, work.daemon, enabled=sample))
        try:
            output, _ = process.communicate(timeout=_ROUND_SECONDS)
        except subprocess.TimeoutExpired:
            raise SplitArrowError(f"no result after {_ROUND_SECONDS:g} s") from None
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines() or ["no output"]
            raise SplitArrowError(lines[-1])
    return json.loads(output.splitlines()[-1]), sampler.peak_bytes


class _MemorySampler:
    """A context that samples the memory of a process, its children and a daemon."""

    def __init__(self, pid: int, daemon: int | None, *, enabled: bool) -> None:
        self.peak_bytes = 0
        self._pids = [pid, *([daemon] if daemon else [])]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True) if enabled else None

    def __enter__(self) -> _MemorySampler:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            used = sum(read_shared_memory(pid) for pid in self._find_processes())
            self.peak_bytes = max(self.peak_bytes, used)

    def _find_processes(self) -> Iterator[int]:
        import psutil

        for pid in self._pids:
            yield pid
            try:
                for child in psutil.Process(pid).children(recursive=True):
                    yield child.pid
            except psutil.Error:
                continue  # it has exited


def make_report(benchmark: Benchmark, workers: tuple[int, ...]) -> list[str]:
    """Return the report as lines of Markdown: a table and the ratios to the fastest peer."""
    lines = [
        "| workers | loader | M rows/s, warm | min–max | CPU s per M rows, warm "
        "| M rows/s, cold | CPU s per M rows, cold | MiB |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (count, name), figures in sorted(benchmark.figures.items(), key=lambda item: item[0][0]):
        warm, cold = (Statistics.of(figures.rates.get(kind, [])) for kind in ("warm", "cold"))
        cpu = [Statistics.of(figures.cpu.get(kind, [])) for kind in ("warm", "cold")]
        if warm is None or cold is None or cpu[0] is None or cpu[1] is None:
            continue
        cells = [
            str(count),
            name,
            format_figure(warm.median / 1e6),
            f"{format_figure(warm.minimum / 1e6)}–{format_figure(warm.maximum / 1e6)}",
            f"{cpu[0].median:.3f}",
            format_figure(cold.median / 1e6),
            f"{cpu[1].median:.3f}",
            format_mebibytes(figures.peak_bytes),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines += [line for count in workers for line in _ratio_lines(benchmark, count)]
    lines += [f"- Not measured: {name}: {reason}" for name, reason in benchmark.skipped.items()]
    return lines


def _ratio_lines(benchmark: Benchmark, workers: int) -> Iterator[str]:
    """Yield a line for each transport: the ratios of rates and of processor time."""
    rates, cpu = _warm_medians(benchmark, workers)
    peers = [name for name in rates if name not in OURS]
    if not peers:
        return
    fastest, leanest = max(peers, key=rates.__getitem__), min(peers, key=cpu.__getitem__)
    for name in OURS:
        if name in rates and cpu[name]:
            yield (
                f"- {name}, {workers} workers, warm: {format_ratio(rates[name] / rates[fastest])} "
                f"times the rows per second of {fastest} (goal: {GOALS[name]:g}), and "
                f"{format_ratio(cpu[leanest] / cpu[name])} times the rows per processor second "
                f"of {leanest}."
            )


def _warm_medians(benchmark: Benchmark, workers: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rates and the processor times of warm rounds, by loader."""
    rates: dict[str, float] = {}
    cpu: dict[str, float] = {}
    for (count, name), figures in benchmark.figures.items():
        rate, seconds = (
            Statistics.of(each.get("warm", [])) for each in (figures.rates, figures.cpu)
        )
        if count == workers and rate is not None and seconds is not None:
            rates[name], cpu[name] = rate.median, seconds.median
    return rates, cpu


def describe_run(rows: int, rounds: int) -> str:
    """Return the date, the machine and the versions of a run in one line."""
    machine, versions = machine_properties(), software_versions()
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "; ".join(
        [
            f"Measured {datetime.now(UTC):%Y-%m-%d}",
            f"{machine['processor']}, {machine['threads']} threads",
            machine["system"],
            ", ".join(f"{name} {version}" for name, version in versions.items()),
            f"{rows:,} rows, {rounds} rounds",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark from the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.loader")
    parser.add_argument("--rows", type=int, default=1 << 21, help="the rows of an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="the least warm round")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds as JSON")
    options = parser.parse_args(arguments)
    try:
        if options.rows < 1 or options.rows % (SHARDS * BATCH_ROWS):
            raise UsageError(f"--rows must be a multiple of {SHARDS * BATCH_ROWS}")
        if options.rounds < 1 or min(options.workers) < 0:
            raise UsageError("--rounds must be at least 1, and --workers at least 0")
        with tempfile.TemporaryDirectory(prefix="splitarrow-bench-") as folder:
            benchmark = Benchmark(Path(folder), options.rows, options.rounds, options.seconds)
            benchmark.run(tuple(options.workers), tuple(options.peers))
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print("\n".join(make_report(benchmark, tuple(options.workers))))
    print(f"\n{describe_run(options.rows, options.rounds)}.")
    if options.json:
        rounds = [
            {"workers": count, "loader": name, "rates": each.rates, "cpu": each.cpu}
            for (count, name), each in benchmark.figures.items()
        ]
        options.json.write_text(json.dumps(rounds, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
