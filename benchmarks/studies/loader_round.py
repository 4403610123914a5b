"""One round of the benchmark of loaders, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from ...errors import SplitArrowError
from ..machine import Sampler, read_shared_memory
from .loader_peers import (
    BATCH_ROWS,
    PEERS,
    ROW,
    add_checksums,
    checksum,
    load_dataset,
    open_splitarrow,
    save_dataset,
)

_SAMPLE_SECONDS = 0.1
_ROUND_SECONDS = 900.0


def run_process(work: Round, *, sample: bool) -> tuple[dict[str, Any], int]:
    """Run a round in a process of its own; return its result and, with `sample`, its memory."""
    command = [sys.executable, "-W", "ignore", "-m", "splitarrow.benchmarks.studies.loader_round"]
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        process = stack.enter_context(
            subprocess.Popen([*command, work.encode()], stdout=subprocess.PIPE, stderr=errors)
        )
        stack.callback(process.kill)
        sampler = _MemorySampler(process.pid, work.daemon)
        if sample:
            stack.enter_context(sampler)
        try:
            output, _ = process.communicate(timeout=_ROUND_SECONDS)
        except subprocess.TimeoutExpired:
            raise SplitArrowError(f"no result after {_ROUND_SECONDS:g} s") from None
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines() or ["no output"]
            raise SplitArrowError(lines[-1])
    return json.loads(output.splitlines()[-1]), sampler.peak_bytes


class _MemorySampler(Sampler):
    """Samples the memory of a process, its children and a daemon."""

    def __init__(self, pid: int, daemon: int | None) -> None:
        super().__init__(_SAMPLE_SECONDS)
        self.peak_bytes = 0
        self._pids = [pid, *([daemon] if daemon else [])]

    def _sample(self) -> None:
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


Kind = Literal["check", "cold", "warm", "resume"]
"""``check`` verifies every value, ``cold`` times the first epoch, ``warm`` later ones. ``resume``
times the first batch of a loader, and that of one that goes on in the middle of the epoch."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a round does. It becomes JSON and back."""

    kind: Kind
    """What it measures."""
    loader: str
    """The name of a peer, or ``splitarrow`` and a transport."""
    workers: int
    """The number of workers of the loader."""
    place: str
    """The folder of a peer, or the URI of splitarrow's control plane."""
    rows: int
    """The number of rows of an epoch."""
    seconds: float
    """The least time that warm epochs take together."""
    daemon: int | None = None
    """The process of the daemon, whose processor time counts too."""

    def encode(self) -> str:
        """Return the round as JSON."""
        return json.dumps(asdict(self))


def run_round(work: Round) -> dict[str, Any]:
    """Run a round."""
    if work.kind == "check":
        return _check(_open(work))
    if work.kind == "resume":
        return _resume(work)
    begin, cpu = time.perf_counter(), _cpu_seconds(work.daemon)
    batches, rows = _open(work), 0
    if work.kind == "warm":
        _count_rows(batches, work.rows)
        begin, cpu = time.perf_counter(), _cpu_seconds(work.daemon)
    while not rows or (work.kind == "warm" and time.perf_counter() - begin < work.seconds):
        rows += _count_rows(batches, work.rows)
    seconds, cpu = time.perf_counter() - begin, _cpu_seconds(work.daemon) - cpu
    return {"rows_per_second": rows / seconds, "cpu_seconds_per_million_rows": cpu / rows * 1e6}


def _open(work: Round) -> Any:
    name, _, transport = work.loader.partition(", ")
    if name == "splitarrow":
        return open_splitarrow(work.place, transport, work.workers)
    return PEERS[work.loader].open(Path(work.place), work.workers)


def _count_rows(batches: Any, expected: int) -> int:
    """Iterate over an epoch: the empty step of a training loop."""
    rows = sum(len(batch[ROW]) for batch in batches)
    if rows != expected:
        raise AssertionError(f"an epoch had {rows} rows; expected {expected}")
    return rows


def _check(batches: Any) -> dict[str, Any]:
    total: dict[str, float] = {}
    sizes: set[int] = set()
    for batch in batches:
        sizes.add(len(batch[ROW]))
        total = add_checksums(total, checksum(batch))
    return {"checksum": total, "batch_rows": sorted(sizes)}


def _resume(work: Round) -> dict[str, Any]:
    """Stop in the middle of an epoch, time a start and a resume, and read the rest.

    The checksum of both parts shows that the second began where the first had stopped.
    """
    save, load = save_dataset, load_dataset
    if (peer := PEERS.get(work.loader)) is not None:
        save, load = peer.save, peer.load
    half = work.rows // BATCH_ROWS // 2
    loader = _open(work)
    batches = iter(loader)
    before = _check(islice(batches, half))
    state = save(loader, half) if save else None
    del loader, batches

    begin = time.perf_counter()
    batches = iter(_open(work))
    next(batches)
    first_seconds = time.perf_counter() - begin
    del batches

    begin = time.perf_counter()
    loader = _open(work)
    if load:
        load(loader, state)
    batches = iter(loader)
    for _ in range(0 if load else half):
        next(batches)
    first = next(batches)
    resume_seconds = time.perf_counter() - begin
    after = _check(chain([first], batches))
    return {
        "checksum": add_checksums(before["checksum"], after["checksum"]),
        "first_seconds": first_seconds,
        "resume_seconds": resume_seconds,
        "replays": load is None,
    }


def _cpu_seconds(daemon: int | None) -> float:
    """Return the processor time of this process, its workers and the daemon."""
    import psutil

    this = psutil.Process()
    processes = [*this.children(recursive=True), *([psutil.Process(daemon)] if daemon else [])]
    seconds = time.process_time()
    for process in processes:
        times = process.cpu_times()
        seconds += times.user + times.system
    return seconds


def main() -> None:
    """Run the round that the only argument describes, and print its result as JSON."""
    work = Round(**json.loads(sys.argv[1]))
    result = run_round(work)
    assert result.get("batch_rows", [BATCH_ROWS]) == [BATCH_ROWS], result["batch_rows"]
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
