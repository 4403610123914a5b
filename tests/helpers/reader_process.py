"""A process that forks a reader for each job, so that readers start quickly and can be killed.

Run it as ``python reader_process.py DESCRIPTOR``. Each line of standard input is a job, and each
message to the descriptor, a socket, is an event of a job; both are JSON objects. A job has an
``id``, a ``task`` (a function of `TASKS`) and the arguments of that function. Its events are
``started``, with the process id; those of its task; and ``done``, with the result of the task, or
``failed``, with a traceback, if the job itself is wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

import splitarrow
from splitarrow.errors import SplitArrowError

Job = dict[str, Any]
Result = dict[str, Any]
Report = Callable[..., None]


class Checksum:
    """The checksum of fixed-width columns without nulls, however the rows are split."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: dict[int, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for index, column in enumerate(batch.columns):
            values = column.buffers()[1]
            if values is None or column.null_count:
                raise AssertionError(f"column {index} is not a plain column without nulls")
            width = column.type.bit_width // 8
            begin = column.offset * width
            data = memoryview(values)[begin : begin + len(column) * width]
            self._columns[index] = zlib.crc32(data, self._columns.get(index, 0))
        self.rows += batch.num_rows

    def __str__(self) -> str:
        return "-".join([str(self.rows), *(f"{crc:08x}" for crc in self._columns.values())])


@contextmanager
def open_stream(job: Job, client: Any = None) -> Generator[Any]:
    """Open the stream of a job: of a URI, or of a dataset at a control plane."""
    options = job.get("options", {})
    if "uri" in job:
        with splitarrow.open(job["uri"], **options) as stream:
            yield stream
    elif client is not None:
        with client.read(job["name"], **options) as stream:
            yield stream
    else:
        with (
            splitarrow.connect(job["control"]) as own,
            own.read(job["name"], **options) as stream,
        ):
            yield stream


def read(job: Job, report: Report, client: Any = None) -> Result:
    """Read a stream once: its checksum, or the class of its error.

    ``pause`` seconds pass after every batch, or after ``pause_every`` batches. ``pace`` bounds the
    bytes per second. With ``hold``, the reader keeps all batches. After the first batch, it reports
    ``reading``, and waits until the file ``gate`` exists. A reader with a pace stops once the file
    ``until`` exists.
    """
    checksum, held, size = Checksum(), list[pa.RecordBatch](), 0
    begin = last = time.monotonic()
    silence = 0.0
    result: Result = {}
    try:
        with open_stream(job, client) as stream:
            for number, batch in enumerate(stream, 1):
                now = time.monotonic()
                silence, last = max(silence, now - last), now
                checksum.add(batch)
                size += batch.nbytes
                if job.get("hold"):
                    held.append(batch)
                if batch.num_rows and checksum.rows == batch.num_rows:
                    report("reading")
                    if "gate" in job:
                        wait_for_file(Path(job["gate"]))
                if pause := pause_after(job, number, size, begin):
                    time.sleep(pause)
                    last = time.monotonic()
                if "pace" in job and "until" in job and Path(job["until"]).exists():
                    return {"outcome": "stopped", "message": "", "bytes": size}
        result["outcome"] = "complete"
    except SplitArrowError as error:
        result |= {"outcome": type(error).__name__, "message": str(error)}
    ended = time.monotonic()
    return result | {
        "checksum": str(checksum),
        "rows": checksum.rows,
        "bytes": size,
        "seconds": ended - begin,
        "last_wait": ended - last,
        "longest_wait": silence,
    }


def pause_after(job: Job, number: int, size: int, begin: float) -> float:
    """Return how long a reader sleeps after a batch, in seconds."""
    if pace := job.get("pace"):
        return max(0.0, begin + size / pace - time.monotonic())
    return 0.0 if number % job.get("pause_every", 1) else job.get("pause", 0.0)


def wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def repeat(job: Job, report: Report) -> Result:
    """Read the stream again and again, until the file ``until`` exists.

    The result counts the outcomes and, for complete reads, the checksums. The job reports
    ``reading`` once, because a test that does not receive events for long would stop its readers.
    """
    outcomes, checksums = Counter[str](), Counter[str]()
    messages: dict[str, str] = {}
    reported = set[str]()

    def report_once(event: str) -> None:
        if event not in reported:
            reported.add(event)
            report(event)

    size, longest = 0, 0.0
    begin = time.monotonic()
    until, client = Path(job["until"]), None
    done: Result
    while not until.exists():
        try:
            if "control" in job and client is None:
                client = splitarrow.connect(job["control"])
            done = read(job, report_once, client)
        except SplitArrowError as error:
            done = {"outcome": type(error).__name__, "message": str(error), "bytes": 0}
        outcomes[done["outcome"]] += 1
        size += done["bytes"]
        if done["outcome"] == "complete":
            checksums[done["checksum"]] += 1
            longest = max(longest, done["seconds"])
        else:
            messages[done["outcome"]] = done["message"]
            time.sleep(0.01)
    if client is not None:
        client.close()
    return {
        "outcomes": outcomes,
        "checksums": checksums,
        "messages": messages,
        "bytes": size,
        "seconds": time.monotonic() - begin,
        "longest": longest,
    }


def crowd(job: Job, report: Report) -> Result:
    """Open ``streams`` streams at once; read them to the end once the file ``gate`` exists."""
    return asyncio.run(_crowd(job, report))


async def _crowd(job: Job, report: Report) -> Result:
    checksums, outcomes = Counter[str](), Counter[str]()
    opened = 0
    gate = asyncio.Event()
    options = job.get("options", {})

    async def consume(stream: Any) -> str:
        nonlocal opened
        checksum = Checksum()
        async for batch in stream:
            checksum.add(batch)
            if checksum.rows == batch.num_rows:
                opened += 1
                if opened == job["streams"]:
                    report("reading")
                await gate.wait()
        return str(checksum)

    async def one(client: Any) -> None:
        opening = (
            splitarrow.aio.open(job["uri"], **options)
            if client is None
            else client.read(job["name"], **options)
        )
        try:
            async with opening as stream:
                checksums[await consume(stream)] += 1
            outcomes["complete"] += 1
        except SplitArrowError as error:
            outcomes[f"{type(error).__name__}: {error}"] += 1

    async def watch_gate() -> None:
        while not Path(job["gate"]).exists():
            await asyncio.sleep(0.02)
        gate.set()

    async with AsyncExitStack() as stack:
        client = None
        if "control" in job:
            client = await stack.enter_async_context(splitarrow.aio.connect(job["control"]))
        tasks = [watch_gate(), *(one(client) for _ in range(job["streams"]))]
        await asyncio.gather(*tasks)
    return {"outcomes": outcomes, "checksums": checksums}


def churn(job: Job, report: Report) -> Result:
    """Read ``streams`` streams in each of ``rounds`` rounds, and cancel every second of them.

    Threads read four streams at a time. After a round, the job reports ``round N`` and waits until
    the file ``next`` with the suffix N exists.
    """
    checksums, outcomes = Counter[str](), Counter[str]()
    client = splitarrow.connect(job["control"]) if "control" in job else None

    def read_or_cancel(number: int) -> Result:
        if number % 2:
            return read(job, lambda *_: None, client)
        draw = random.Random(number)
        with open_stream(job, client) as stream:
            for _, _ in zip(range(draw.randrange(4)), stream, strict=False):
                pass
            if draw.random() < 0.5:
                stream.cancel()
        return {"outcome": "cancelled", "checksum": ""}

    streams = job["streams"]
    with ThreadPoolExecutor(4) as threads:
        for number in range(job["rounds"]):
            numbers = range(number * streams, (number + 1) * streams)
            for done in threads.map(read_or_cancel, numbers):
                outcomes[done["outcome"]] += 1
                checksums[done["checksum"]] += done["outcome"] == "complete"
            report(f"round {number}")
            wait_for_file(Path(job["next"]).with_suffix(f".{number}"))
    if client is not None:
        client.close()
    return {"outcomes": outcomes, "checksums": +checksums}


TASKS: dict[str, Callable[[Job, Report], Result]] = {
    "read": read,
    "repeat": repeat,
    "crowd": crowd,
    "churn": churn,
}


def report_event(number: int, event: str, **facts: Any) -> None:
    """Send one message. The socket keeps the messages of several processes apart."""
    os.write(int(sys.argv[1]), json.dumps({"id": number, "event": event, **facts}).encode())


def run(job: Job) -> None:
    """Do a job, in the child process."""

    def report(event: str) -> None:
        report_event(job["id"], event)

    try:
        report_event(job["id"], "done", **TASKS[job["task"]](job, report))
    except BaseException:
        report_event(job["id"], "failed", message=traceback.format_exc()[-3000:])


def main() -> None:
    """Fork a child for each line of standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        job = cast(Job, json.loads(line))
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run(job)
            os._exit(0)
        report_event(job["id"], "started", pid=pid)


if __name__ == "__main__":
    # Imported here, and not in each child.
    _ = (splitarrow.open, splitarrow.connect, splitarrow.aio.open, splitarrow.aio.connect)
    import_module("splitarrow.transport.ucx.transport")
    main()
