"""A process of a run: the server or a client of one backend, steered over a pipe.

``python -m splitarrow.benchmarks.worker`` reads a job, a line of JSON, from its input; then
commands, and answers each with a line of JSON. It ends with its input.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from contextlib import ExitStack
from typing import Any, TextIO

from .backends import Backend, backend
from .consumer import Consumer
from .dataset import Dataset
from .memory import memory_of, reset_peak


def cpu_seconds() -> float:
    """Return the processor time that this process has used, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(
    entry: Backend, address: str, dataset: Dataset, job: dict[str, Any], command: dict[str, Any]
) -> dict[str, Any]:
    """Read the whole file once; return what it took.

    Times are those of the system's monotonic clock in seconds, which all processes share.
    """
    check = bool(command.get("check"))
    consumer = Consumer(dataset, job["consume"], job["read"], check)
    gc.collect()
    reset_peak(os.getpid())
    time.sleep(max(0.0, command.get("start_at", 0.0) - time.monotonic()))
    cpu, begin = cpu_seconds(), time.monotonic()
    entry.read(address, consumer, validate=job["validate"])
    end, used = time.monotonic(), cpu_seconds() - cpu
    consumer.verify()
    return {
        "begin": begin,
        "end": end,
        "first_at": consumer.first_at,
        "cpu_seconds": used,
        "peak": memory_of(os.getpid()).peak,
    }


def work(commands: TextIO, answers: TextIO) -> None:
    """Do a job: first say that all is ready, then obey until there are no more commands."""

    def answer(reply: dict[str, Any]) -> None:
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    job = json.loads(commands.readline())
    entry = backend(job["backend"])
    dataset = Dataset(**job["dataset"])
    with ExitStack() as stack:
        try:
            if job["role"] == "server" or entry.in_process:
                address = stack.enter_context(entry.serve(dataset))
            else:
                address = job["address"]
            answer({"address": address})
            for line in commands:
                command = json.loads(line)
                if command["do"] == "read":
                    answer(measure(entry, address, dataset, job, command))
                else:
                    answer({"cpu_seconds": cpu_seconds()})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Run one worker. What libraries print goes to the standard error, not to the runner."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work(sys.stdin, answers)
    except BrokenPipeError:
        pass  # the runner is gone


if __name__ == "__main__":
    main()
