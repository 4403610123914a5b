"""The processes of a run, on the runner's side: starting, asking, ending."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from ..errors import SplitArrowError

_MODULE = "splitarrow.benchmarks.worker"
_POLL_SECONDS = 0.02
_END_SECONDS = 5.0
_LOG_TAIL = 2000


class Worker:
    """A worker process; a context manager that ends it.

    Parameters
    ----------
    label : str
        What it is, for errors.
    job : dict
        What it is told first.
    module : str
        What it runs.

    Raises
    ------
    SplitArrowError
        If it cannot be started, from any method if it reports an error or ends.
    """

    def __init__(self, label: str, job: dict[str, Any], module: str = _MODULE) -> None:
        self.label = label
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._received = b""
        try:
            # A session of its own: an interrupt from the terminal is the runner's to handle.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise SplitArrowError(f"{label} cannot be started: {error}") from None
        self.tell(job)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when an answer comes."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def tell(self, command: dict[str, Any]) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def take(self) -> dict[str, Any] | None:
        """Return the answer, if all of it has come; to be called when `fileno` is readable."""
        more = os.read(self.fileno(), 1 << 16)
        if not more:
            raise self._ended()
        self._received += more
        if not self._received.endswith(b"\n"):
            return None
        answer = json.loads(self._received)
        self._received = b""
        if "error" in answer:
            raise SplitArrowError(f"{self.label} failed: {answer['error']}{self._logged()}")
        return answer

    def ask(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a command and return the answer."""
        self.tell(command)
        return answers_of([self], timeout)[0]

    def _ended(self) -> SplitArrowError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        status = self._process.returncode
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return SplitArrowError(f"{self.label} ended with {how}{self._logged()}")

    def _logged(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL))
        text = self._log.read().decode(errors="replace").strip()
        return f"; it wrote:\n{text}" if text else ""

    def close(self, *, kill: bool = False) -> None:
        """End the process: by the end of its input, or at once. Idempotent."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            if not kill:
                process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
            self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(kill=error is not None)


def answers_of(
    workers: Sequence[Worker], timeout: float, watch: Callable[[], None] | None = None
) -> list[dict[str, Any]]:
    """Wait for one answer of each worker.

    Parameters
    ----------
    workers : sequence of Worker
        All have been told a command.
    timeout : float
        The longest time to wait for all of them, in seconds.
    watch : callable, optional
        Called every 20 ms while waiting, and once after the last answer.

    Raises
    ------
    SplitArrowError
        If a worker fails, ends, or does not answer in time.
    """
    deadline = time.monotonic() + timeout
    answers: dict[int, dict[str, Any]] = {}
    poll = select.poll()
    by_descriptor = {worker.fileno(): (index, worker) for index, worker in enumerate(workers)}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    while len(answers) < len(workers):
        for descriptor, _ in poll.poll(_POLL_SECONDS * 1000):
            index, worker = by_descriptor[descriptor]
            answer = worker.take()
            if answer is not None:
                answers[index] = answer
                poll.unregister(descriptor)
        if watch is not None:
            watch()
        if time.monotonic() > deadline and len(answers) < len(workers):
            late = next(w for i, w in enumerate(workers) if i not in answers)
            raise SplitArrowError(f"{late.label} did not answer within {timeout:g} s")
    return [answers[index] for index in range(len(workers))]
