"""A process of the demonstration: the peer's server, or the reader of one transport.

``python -m splitarrow.cli.demo_worker`` reads a job, a line of JSON, from its input; then
commands, and answers each with a line of JSON. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, TextIO

import pyarrow as pa

from ..benchmarks.backends import Backend, backend
from ..benchmarks.consumer import Consumer
from ..benchmarks.dataset import Dataset
from ..errors import InvalidDataError


class Comparison(Consumer):
    """Compares each batch with that of the file, value by value."""

    def drain(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take every batch.

        Raises
        ------
        InvalidDataError
            If one differs, or there are more or fewer than in the file.
        """
        with pa.memory_map(self.dataset.path) as source:
            file = pa.ipc.open_file(source)
            for batch in batches:
                if self.batches >= file.num_record_batches:
                    raise InvalidDataError(f"more than {self.batches} batches came")
                if not batch.equals(file.get_batch(self.batches), check_metadata=True):
                    raise InvalidDataError(f"batch {self.batches} differs from the file's")
                self.batches += 1
                self.rows += batch.num_rows
            if self.batches != file.num_record_batches:
                raise InvalidDataError(
                    f"{self.batches} batches came; the file has {file.num_record_batches}"
                )


def read(entry: Backend, address: str, path: str, *, compare: bool) -> dict[str, Any]:
    """Read everything once; return what came, and how long it took in seconds."""
    dataset = Dataset(path, 0, 0)
    consumer = Comparison(dataset) if compare else Consumer(dataset)
    begin = time.perf_counter()
    entry.read(address, consumer)
    seconds = time.perf_counter() - begin
    return {"rows": consumer.rows, "batches": consumer.batches, "seconds": seconds}


def work(commands: TextIO, answers: TextIO) -> None:
    """Do a job: first say that all is ready, then obey until there are no more commands."""

    def answer(reply: dict[str, Any]) -> None:
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    job = json.loads(commands.readline())
    entry, path = backend(job["backend"]), job["path"]
    with ExitStack() as stack:
        try:
            address = job.get("address")
            if address is None:
                address = stack.enter_context(entry.serve(Dataset(path, 0, 0)))
            answer({"address": address})
            for line in commands:
                answer(read(entry, address, path, compare=json.loads(line)["compare"]))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Run one worker. What libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work(sys.stdin, answers)
    except BrokenPipeError:
        pass  # who asked is gone


if __name__ == "__main__":
    main()
