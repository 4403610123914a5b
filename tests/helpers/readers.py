"""Readers in processes of their own, which tests stop, kill and count."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from helpers.waiting import PATIENCE
from splitarrow.testing import Daemon

_PROGRAM = Path(__file__).with_name("reader_process.py")
FLIGHT = "flight"


def source(
    daemon: Daemon, name: str, transport: str, resume_attempts: int = 8, **options: Any
) -> dict[str, Any]:
    """Return the part of a job that names a dataset, the way to it, and the options of a read."""
    if transport != FLIGHT:
        return {"uri": daemon.uri(name, transport), "options": options}
    options |= {"transport": FLIGHT, "resume_attempts": resume_attempts}
    return {"control": daemon.control_uri, "name": name, "options": options}


class Reader:
    """A reader that runs, ran or was killed."""

    def __init__(self, pool: ReaderPool, number: int) -> None:
        self._pool = pool
        self._number = number
        self.events: dict[str, dict[str, Any]] = {}
        self.is_killed = False

    @property
    def pid(self) -> int:
        return self.wait("started")["pid"]

    @property
    def is_running(self) -> bool:
        return not (self.is_killed or self.events.keys() & {"done", "failed"})

    def wait(self, event: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait for an event of the reader, and return it."""
        deadline = time.monotonic() + seconds
        while event not in self.events:
            left = deadline - time.monotonic()
            assert left > 0, f"reader {self._number}: no {event!r} within {seconds:g} s"
            self._pool.receive(left)
            assert "failed" not in self.events, self.events["failed"]["message"]
        return self.events[event]

    def result(self, seconds: float = PATIENCE) -> dict[str, Any]:
        return self.wait("done", seconds)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> bool:
        """Kill the process; return whether it had not finished by then."""
        self._pool.receive(0)
        if not self.is_running:
            return False
        self.is_killed = True
        try:
            self.send_signal(signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


class ReaderPool:
    """A process that forks readers, and the readers.

    Parameters
    ----------
    environment : mapping, optional
        Variables to add to the environment of this process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        # A message of this kind of socket arrives whole, whichever process sends it.
        self._events, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(theirs.fileno())],
                stdin=subprocess.PIPE,
                env={**os.environ, **(environment or {})},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._readers: dict[int, Reader] = {}
        self._numbers = count(1)

    def start(self, task: str, **job: Any) -> Reader:
        """Start a reader; see `reader_process` for the tasks."""
        number = next(self._numbers)
        self._readers[number] = Reader(self, number)
        assert self._process.stdin is not None
        line = json.dumps({"id": number, "task": task, **job})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return self._readers[number]

    def receive(self, seconds: float) -> None:
        """Wait until events arrive, and give them to their readers."""
        while select.select([self._events], [], [], seconds)[0]:
            message = self._events.recv(1 << 20)
            assert message, "the process of the readers died"
            event = json.loads(message)
            if reader := self._readers.get(event["id"]):
                reader.events[event["event"]] = event
            seconds = 0

    def forget(self, readers: Iterable[Reader]) -> None:
        """Drop the events of readers that are no longer needed."""
        gone = set(readers)
        self._readers = {n: reader for n, reader in self._readers.items() if reader not in gone}

    def close(self) -> None:
        """Kill the readers that still run, and end the process."""
        for reader in list(self._readers.values()):
            reader.kill()
        with self._process:
            self._process.kill()
        self._events.close()


@contextmanager
def reader_pool(environment: Mapping[str, str] | None = None) -> Generator[ReaderPool]:
    """Start readers within a block; those that still run at its end are killed."""
    pool = ReaderPool(environment)
    try:
        yield pool
    finally:
        pool.close()


def run_together(readers: Iterable[Reader], seconds: float = PATIENCE) -> list[dict[str, Any]]:
    """Return the results of readers that run at the same time."""
    return [reader.result(seconds) for reader in readers]
