"""Running a round of the benchmark of loaders in a process of its own, and sampling its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from ..errors import SplitArrowError
from .loader_round import Round
from .memory import read_shared_memory

_SAMPLE_SECONDS = 0.1
_ROUND_SECONDS = 900.0


def run_process(work: Round, *, sample: bool) -> tuple[dict[str, Any], int]:
    """Run a round in a process of its own.

    Raises `SplitArrowError` if the process fails, or takes too long. The message has the end of its
    output.
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
