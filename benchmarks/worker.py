"""The worker processes of a run: ``python -m splitarrow.benchmarks.worker``.

A worker serves or reads a file. The runner starts it, sends commands and receives replies, all as
lines of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

from ..errors import SplitArrowError
from .backends import Backend, find_backend
from .backends.backend import Consumer
from .datasets import BatchFile
from .machine import read_memory, reset_peak
from .options import Consume, Read, Validate

Handler = Callable[[dict[str, Any]], dict[str, Any]]
"""Executes a command, and returns the reply."""
Setup = Callable[[dict[str, Any], ExitStack], tuple[dict[str, Any], Handler]]
"""Prepares for a job: returns the first reply, and the handler of the commands that follow.

The stack closes what it holds when the worker ends.
"""


def run_worker(setup: Setup) -> None:
    """Run a worker until its input ends.

    The first line of the input is the job, and every further line is a command. If `setup` or a
    handler raises, the reply is ``{"error": message}``, and the worker ends.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # The output of libraries must not mix with the replies.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _handle_commands(setup, sys.stdin, replies)
    except BrokenPipeError:
        pass  # the runner has exited


def _handle_commands(setup: Setup, commands: TextIO, replies: TextIO) -> None:
    def send(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    job = json.loads(commands.readline())
    with ExitStack() as stack:
        try:
            reply, handle = setup(job, stack)
            send(reply)
            for line in commands:
                send(handle(json.loads(line)))
        except Exception as error:
            send({"error": f"{type(error).__name__}: {error}"})


_EXIT_SECONDS = 5.0
_LOG_TAIL_BYTES = 2000
_READ_BYTES = 1 << 16


class WorkerProcess:
    """A worker process: a context manager that ends it.

    The first reply of the worker reports that it is ready. Every method raises `SplitArrowError` if
    the worker reports an error or exits.
    """

    def __init__(
        self, label: str, job: dict[str, Any], module: str = "splitarrow.benchmarks.worker"
    ) -> None:
        self.label = label
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._received = b""
        try:
            # In its own session, the worker gets no Ctrl-C from the terminal: the runner
            # handles it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise SplitArrowError(f"cannot start {label}: {error}") from None
        self.send(job)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a reply arrives."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, command: dict[str, Any]) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._exit_error() from None

    def receive(self) -> dict[str, Any] | None:
        """Read from the readable descriptor; return the reply, or None if it is incomplete."""
        received = os.read(self.fileno(), _READ_BYTES)
        if not received:
            raise self._exit_error()
        self._received += received
        if not self._received.endswith(b"\n"):
            return None
        reply = json.loads(self._received)
        self._received = b""
        if "error" in reply:
            raise SplitArrowError(f"{self.label} failed: {reply['error']}{self._log_tail()}")
        return reply

    def request(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a command, and return its reply; wait for at most `timeout` seconds."""
        self.send(command)
        return receive_replies([self], timeout)[0]

    def close(self, *, kill: bool = False) -> None:
        """End the process. Idempotent.

        Without `kill`, its input ends, and it gets 5 seconds to exit.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            if not kill:
                process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
            self._log.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(kill=error is not None)

    def _exit_error(self) -> SplitArrowError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS)
        status = self._process.returncode
        cause = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return SplitArrowError(f"{self.label} exited with {cause}{self._log_tail()}")

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        text = self._log.read().decode(errors="replace").strip()
        return f"; its output ends with:\n{text}" if text else ""


def receive_replies(workers: Sequence[WorkerProcess], timeout: float) -> list[dict[str, Any]]:
    """Return one reply of each worker, in their order; wait for at most `timeout` seconds.

    Raises `SplitArrowError` if a worker fails, exits, or does not reply in time.
    """
    deadline = time.monotonic() + timeout
    pending = {worker.fileno(): worker for worker in workers}
    replies: dict[int, dict[str, Any]] = {}
    poll = select.poll()
    for descriptor in pending:
        poll.register(descriptor, select.POLLIN)
    while pending:
        readable = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not readable:
            late = next(iter(pending.values()))
            raise SplitArrowError(f"{late.label} did not reply within {timeout:g} s")
        for descriptor, _ in readable:
            reply = pending[descriptor].receive()
            if reply is not None:
                replies[descriptor] = reply
                poll.unregister(descriptor)
                del pending[descriptor]
    return [replies[worker.fileno()] for worker in workers]


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """The job of a worker: a server, a client, or both in one process."""

    backend: str
    """The name of the backend."""
    dataset: BatchFile
    """The file."""
    read: Read
    """Whether a client iterates over batches or reads one table."""
    validate: Validate | None
    """How a client validates batches."""
    address: str | None
    """The address to read from; None makes the worker serve the file itself."""


def cpu_seconds() -> float:
    """Return the CPU time that this process has used, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure_read(
    backend: Backend,
    address: str,
    job: WorkerJob,
    *,
    consume: Consume,
    check: bool,
    start_at: float,
) -> dict[str, Any]:
    """Read the whole file once, and return the measurements.

    All times are those of the monotonic clock in seconds, which the processes of a host share.
    """
    consumer = Consumer(job.dataset, consume, job.read, check)
    time.sleep(max(0.0, start_at - time.monotonic()))
    cpu_before, begin = cpu_seconds(), time.monotonic()
    backend.read(address, consumer, validate=job.validate)
    end, cpu_used = time.monotonic(), cpu_seconds() - cpu_before
    consumer.verify()
    return {
        "begin": begin,
        "end": end,
        "first_at": consumer.first_at,
        "cpu_seconds": cpu_used,
        "peak": read_memory(os.getpid()).peak,
    }


def _setup(fields: dict[str, Any], stack: ExitStack) -> tuple[dict[str, Any], Handler]:
    job = WorkerJob(dataset=BatchFile(**fields.pop("dataset")), **fields)
    backend = find_backend(job.backend)
    if job.address is None:
        address = stack.enter_context(backend.serve(job.dataset))
    else:
        address = job.address

    def handle(command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "usage":
            return {"cpu_seconds": cpu_seconds()}
        if command["do"] == "prepare":
            gc.collect()
            reset_peak(os.getpid())
            return {}
        del command["do"]
        return measure_read(backend, address, job, **command)

    return {"address": address}, handle


if __name__ == "__main__":
    run_worker(_setup)
