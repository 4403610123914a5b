"""Worker processes as the runner uses them: start, send commands, receive replies, end.

A worker reads commands from its standard input and writes replies to its standard output, as one
line of JSON each. `worker_loop` is the other side of these pipes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from ..errors import SplitArrowError

_EXIT_SECONDS = 5.0
_LOG_TAIL_BYTES = 2000
_READ_BYTES = 1 << 16


class WorkerProcess:
    """A worker process: a context manager that ends it.

    The first reply of the worker reports that it is ready.

    Raises `SplitArrowError` if the process cannot be started. Every method raises it if the worker
    reports an error or exits.
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
        """Send a command and return its reply.

        `timeout` is the longest time to wait for the reply, in seconds.
        """
        self.send(command)
        return receive_replies([self], timeout)[0]

    def close(self, *, kill: bool = False) -> None:
        """End the process. Idempotent.

        `kill`: Otherwise its input ends, and it is killed only if it does not exit within 5
        seconds.
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
    """Wait for one reply of each worker, and return the replies in the order of the workers.

    `workers`: each has received a command. `timeout` is the longest time to wait for all replies,
    in seconds. Raises `SplitArrowError` if a worker fails, exits, or does not reply in time.
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
