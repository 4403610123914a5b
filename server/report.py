"""What the processes of a server do now: their metrics, running streams and refusals.

The control plane and the HTTP listener ask a `Reporter`: a `Daemon`, or the `WorkerPool` of a
server with several processes.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, TypeVar

from .auth.principal import Principal
from .metrics import Labelled, Sample
from .refusals import Refusals
from .streams import RunningStream

MAIN = "main"
"""The name of the process that was started; the others are its workers."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The figures of a `RunningStream` at one moment."""

    process: str
    """The process that sends it."""
    number: int
    dataset: str
    principal: str
    peer: str
    transport: str
    rows: int
    nbytes: int
    seconds: float
    """The age of the stream, in seconds."""
    waited_seconds: float
    """The time that it waited for its reader, in seconds."""
    compression: str | None

    @classmethod
    def of(cls, stream: RunningStream, process: str) -> StreamReport:
        """Return the report on a stream."""
        stream.update()
        return cls(
            process,
            stream.number,
            stream.dataset,
            stream.principal,
            stream.peer,
            stream.transport,
            stream.rows,
            stream.nbytes,
            stream.seconds,
            stream.waits.seconds - stream.waited_before,
            stream.compression,
        )

    def may_be_cancelled_by(self, principal: Principal) -> bool:
        """Return whether a principal may cancel the stream: it is its own, or it is an operator."""
        return self.principal == principal.name or principal.is_operator


@dataclass(slots=True)
class ProcessReport:
    """What one process of a server does now. Processes send it to each other."""

    process: str
    samples: list[Sample]
    serves: bool
    """Whether it serves data."""
    has_room: bool
    """Whether it has descriptors and connections left for another reader."""
    streams: list[StreamReport] = field(default_factory=list[StreamReport])
    """The streams that it sends, the oldest first."""
    refusals: list[Refusals] = field(default_factory=list[Refusals])
    """Its recent refusals, the last one first."""


class Reporter(Protocol):
    """The processes of a server, as its services see them.

    Any thread may use it, except that of the event loop.
    """

    @property
    def draining(self) -> bool:
        """Whether the server refuses new reads."""
        ...

    def responds(self) -> bool:
        """Return whether the event loop of this process runs. It waits for at most seconds."""
        ...

    def reports(self, *, streams: bool = False) -> list[ProcessReport]:
        """Return the reports of the processes that respond."""
        ...

    def cancel(self, process: str, number: int, owner: str | None) -> bool:
        """Cancel a stream of a process, and return whether it exists. None allows any owner."""
        ...

    def cancel_number(self, number: int, owner: str | None) -> bool:
        """Cancel a stream of any process, and return whether it exists."""
        ...

    def cancel_ticket(self, ticket: bytes, principal: str) -> bool:
        """Cancel a principal's streams of one signed ticket, and return whether there are any."""
        ...


def measure_process(process: str) -> dict[str, Labelled]:
    """Return what a process uses of the host, for its metrics."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[1])
    labels = (process,)
    return {
        "process_open_fds": {labels: count_descriptors()},
        "process_max_fds": {labels: limit},
        "process_resident_memory_bytes": {labels: pages * resource.getpagesize()},
        "process_cpu_seconds": {labels: time.process_time()},
    }


def count_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1  # without the one that lists the others


def has_free_descriptors() -> bool:
    """Return whether this process can open some more files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or count_descriptors() + _MIN_FREE <= limit


_MIN_FREE = 8
"""The free descriptors below which a process counts as out of descriptors."""


def package_version() -> str:
    """Return the version of splitarrow."""
    try:
        return version("splitarrow")
    except PackageNotFoundError:
        return "unknown"  # run from a source tree


_RESPONSE_SECONDS = 5.0
"""The time in which an event loop that works responds."""
_T = TypeVar("_T")


def responds(loop: AbstractEventLoop) -> bool:
    """Return whether an event loop runs."""
    return call_in_time(loop, lambda: True) is not None


def call_in_time(loop: AbstractEventLoop, function: Callable[[], _T]) -> _T | None:
    """Return the result of a function that another thread's event loop calls; None if it is late.

    The function must not raise.
    """

    async def call() -> _T:
        return function()

    # In a task, because functions of anyio need one.
    coroutine = call()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:  # the loop is closed
        coroutine.close()
        return None
    try:
        return future.result(_RESPONSE_SECONDS)
    except TimeoutError:
        future.cancel()
        return None
