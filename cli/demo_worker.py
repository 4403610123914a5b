"""A worker process of the demo: the Flight server, or a reader over one transport.

``python -m splitarrow.cli.demo_worker`` reads a job from standard input, then commands, and
replies to each. All are lines of JSON. The worker exits at the end of its input.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from ..benchmarks.backends import Backend, find_backend
from ..benchmarks.consumer import Consumer
from ..benchmarks.dataset import Dataset
from ..benchmarks.worker_loop import Handler, run_worker
from ..errors import InvalidDataError


class Comparison(Consumer):
    """Compares each record batch with that of the file, value by value."""

    def consume_batches(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Compare all batches.

        Raises `InvalidDataError` if a batch differs, or the number of batches does.
        """
        with pa.memory_map(self.dataset.path) as source:
            file = pa.ipc.open_file(source)
            for batch in batches:
                if self.batches >= file.num_record_batches:
                    raise InvalidDataError(f"received more than {self.batches} batches")
                if not batch.equals(file.get_batch(self.batches), check_metadata=True):
                    raise InvalidDataError(f"batch {self.batches} differs from the file's")
                self.batches += 1
                self.rows += batch.num_rows
            if self.batches != file.num_record_batches:
                raise InvalidDataError(
                    f"received {self.batches} batches; the file has {file.num_record_batches}"
                )


def read(backend: Backend, address: str, path: str, *, compare: bool) -> dict[str, Any]:
    """Read the dataset once, and return the numbers of rows and batches and the seconds."""
    dataset = Dataset(path, 0, 0)
    consumer = Comparison(dataset) if compare else Consumer(dataset)
    started = time.perf_counter()
    backend.read(address, consumer)
    seconds = time.perf_counter() - started
    return {"rows": consumer.rows, "batches": consumer.batches, "seconds": seconds}


def _setup(job: dict[str, Any], stack: ExitStack) -> tuple[dict[str, Any], Handler]:
    backend, path = find_backend(job["backend"]), job["path"]
    address = job.get("address")
    if address is None:
        address = stack.enter_context(backend.serve(Dataset(path, 0, 0)))

    def handle(command: dict[str, Any]) -> dict[str, Any]:
        return read(backend, address, path, compare=command["compare"])

    return {"address": address}, handle


if __name__ == "__main__":
    run_worker(_setup)
