"""The worker of a run: ``python -m splitarrow.benchmarks.worker`` serves or reads a file.

Its commands are ``{"do": "prepare"}``, ``{"do": "read", "consume": name,
"check": bool, "start_at": seconds}`` and ``{"do": "usage"}``. All clients prepare before the first
one reads, so that none of them takes time from another one's read.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .backends import Backend, find_backend
from .consumer import Consumer
from .dataset import Dataset
from .memory import read_memory, reset_peak
from .options import Consume, Read, Validate
from .worker_loop import Handler, run_worker


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """The job of a worker: a server, a client, or both in one process."""

    backend: str
    """The name of the backend."""
    dataset: Dataset
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

    `start_at`: all times are those of the monotonic clock in seconds, which the processes of a host
    share.
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
    job = WorkerJob(dataset=Dataset(**fields.pop("dataset")), **fields)
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
