"""Programs that read into page-locked memory and devices, for ``tests/gpu``.

``python -c "from helpers.cuda_cases import main; main()"`` imports everything once, without using
CUDA. It reads cases as lines of JSON from standard input, runs each one in a forked child, and
writes how the child has ended. A case with ``seeds`` is a row of random schedules, of which it also
writes how many had ended.
"""

from __future__ import annotations

import gc
import itertools
import json
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa

import splitarrow
from helpers import cuda
from helpers.waiting import wait_until
from splitarrow.memory import CudaMemory, DeviceBatch, PinnedMemory
from splitarrow.memory.interfaces import DLTensor, find_pointer
from splitarrow.transport.ucx import links

PROGRAM = "from helpers.cuda_cases import main; main()"
_MODULES = (
    "cuda.bindings.driver",
    "pandas",  # by pyarrow
    "splitarrow.client.open",
    "splitarrow.client.stream.device_stream",
    "splitarrow.client.stream.opening",
    "splitarrow.client.stream.remote_bodies",
    "splitarrow.transport.shm",
    "splitarrow.transport.tcp",
)
"""What reads import when they need it, which takes most of the time of a short process."""
BATCH_ROWS = (None, 1000, 7000, 30000)
ENDS = ("drop", "keep", "kill")
"""How a case ends: it drops its batches in mid-stream; it keeps them after the stream, the client
and the daemon are gone; or it is killed in mid-stream."""


@contextmanager
def open_memories() -> Generator[dict[str, Any]]:
    """Yield page-locked memory and memory of a device, which must not be in use afterwards."""
    program = cuda.Program()  # the context and the counters exist before anything is counted
    before = count_resources()
    pinned = PinnedMemory("64MiB")
    memories = {"pinned": pinned, "device": CudaMemory(budget="64MiB", staging=pinned)}
    yield memories
    wait_until(lambda: not _count_used(memories), "the end of the use of all memory")
    memories.clear()
    del pinned
    wait_until(lambda: count_resources() == before, "the end of all memory")
    del program


def _count_used(memories: dict[str, Any]) -> int:
    gc.collect()
    return sum(each.used_bytes for each in memories.values())


def count_resources() -> dict[str, int]:
    """Return how many pieces of memory of each kind this process has, by the checking driver."""
    gc.collect()
    found = cuda.count_live() if cuda.is_checking() else {}
    return {kind: found.get(kind, 0) for kind in ("device", "pinned", "registered", "opened")}


def to_table(batches: list[Any]) -> pa.Table:
    return pa.Table.from_batches(
        [each.to_arrow() if isinstance(each, DeviceBatch) else each for each in batches]
    )


def run_case(case: dict[str, Any], wait_for_end: Callable[[], None]) -> None:
    """Read the datasets of a case, and compare them with the files that the daemon serves."""
    threads = 3 if case["process"] == "threads" else 1
    read = _read_async if case["mode"] == "async" else _read
    count = None if case["end"] == "keep" else 1
    results: list[tuple[str, list[Any] | BaseException]] = []

    def read_all(memory: Any) -> None:
        for name in case["files"]:
            try:
                results.append((name, read(case, name, memory, count)))
            except BaseException as error:
                results.append((name, error))
                raise

    with open_memories() as memories:
        memory = memories[case["memory"]]
        others = [threading.Thread(target=read_all, args=(memory,)) for _ in range(threads - 1)]
        for other in others:
            other.start()
        read_all(memory)
        for other in others:
            other.join()
        if case["end"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if case["end"] == "keep":
            wait_for_end()
        assert len(results) == threads * len(case["files"])
        for name, batches in results:
            assert isinstance(batches, list), batches
            _compare(case["files"][name], batches, is_whole=count is None)
        batches = memory = None
        results.clear()


def _compare(path: str, batches: list[Any], *, is_whole: bool) -> None:
    with pa.ipc.open_file(path) as file:
        expected = file.read_all()
    found = to_table(batches)
    assert found.equals(expected.slice(0, found.num_rows)), f"{path} differs"
    assert found.num_rows == expected.num_rows or not is_whole


def _options(case: dict[str, Any], name: str, memory: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"memory": memory, "batch_rows": case["batch_rows"]}
    if case["scheme"] == "do_get":
        return options | {"name": name, "transport": "flight"}
    if case["scheme"] == "tcp+tls":
        options["tls"] = splitarrow.TlsOptions(ca_file=case["ca"])
    return options | {"uri": case["uris"][name][case["scheme"]]}


def _read(case: dict[str, Any], name: str, memory: Any, count: int | None) -> list[Any]:
    options = _options(case, name, memory)
    with ExitStack() as stack:
        if "name" in options:
            client = stack.enter_context(splitarrow.connect(case["control"]))
            stream: Any = stack.enter_context(client.read(options.pop("name"), **options))
        else:
            stream = stack.enter_context(splitarrow.open(options.pop("uri"), **options))
        return [batch for batch, _ in zip(stream, range(count or 1 << 30), strict=False)]


def _read_async(case: dict[str, Any], name: str, memory: Any, count: int | None) -> list[Any]:
    options = _options(case, name, memory)

    async def take(stream: Any) -> list[Any]:
        batches: list[Any] = []
        async with stream:
            async for batch in stream:
                batches.append(batch)
                if len(batches) == count:
                    break
        return batches

    async def run() -> list[Any]:
        if "name" not in options:
            return await take(splitarrow.aio.open(options.pop("uri"), **options))
        async with splitarrow.aio.connect(case["control"]) as client:
            return await take(client.read(options.pop("name"), **options))

    return anyio.run(run)


class Schedule:
    """Random steps of a program that reads, by a seed."""

    def __init__(self, seed: int, uris: list[str], memories: dict[str, Any]) -> None:
        self._random = random.Random(seed)
        self._uris = uris
        self._memories = memories
        self._program = cuda.Program()
        self._stream = self._program.open_stream()
        self._streams: list[list[Any]] = []
        """The open streams, each with the number of the next row."""
        self._batches: list[tuple[Any, int]] = []
        self._copies: list[tuple[int, int, int]] = []
        """The copies that were queued: their target, and the first row and the number of rows."""

    def run(self) -> None:
        """Make the steps. It ends with a check of all copies, or the process is killed."""
        steps = (self.open, self.next, self.next, self.next, self.check, self.use, self.use)
        for _ in range(self._random.randint(5, 25)):
            step = self._random.choice((*steps, self.drop, self.close))
            step()
        if self._random.random() < 0.2:
            self.fork()
        if self._random.random() < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)
        self._program.synchronize(self._stream)
        for target, first, rows in self._copies:
            found = self._program.read(target, "int64", rows)
            assert (found == np.arange(first, first + rows)).all(), "a copy has wrong values"
            self._program.free(target)
        while self._batches:
            self.check(pops=True)
        for stream, _ in self._streams:
            stream.close()
        self._streams.clear()

    def open(self) -> None:
        if len(self._streams) < 3:
            memory = self._memories[self._random.choice(["pinned", "device"])]
            uri = self._random.choice(self._uris)
            batch_rows = self._random.choice(BATCH_ROWS)
            self._streams.append([splitarrow.open(uri, memory=memory, batch_rows=batch_rows), 0])

    def next(self) -> None:
        if self._streams and len(self._batches) < 10:
            chosen = self._random.choice(self._streams)
            batch = next(chosen[0], None)
            if batch is None:
                self._streams.remove(chosen)
            else:
                self._batches.append((batch, chosen[1]))
                chosen[1] += batch.num_rows

    def _pick(self) -> int:
        return self._random.randrange(len(self._batches))

    def check(self, *, pops: bool = False) -> None:
        if self._batches:
            index = self._pick()
            batch, first = self._batches.pop(index) if pops else self._batches[index]
            (values,) = to_table([batch])["n"].chunks
            expected = pa.array(np.arange(first, first + batch.num_rows))
            assert values.equals(expected), "wrong values"

    def use(self) -> None:
        """Copy a batch as a program does on a stream of its own, and drop the batch at once."""
        if not self._batches or len(self._copies) > 5:
            return
        batch, first = self._batches.pop(self._pick())
        rows = batch.num_rows
        target = self._program.allocate(rows * 8)
        if isinstance(batch, DeviceBatch):
            capsule = batch["n"].__dlpack__(stream=self._stream)
            source = DLTensor.from_address(find_pointer(capsule, b"dltensor")).data or 0
            self._program.copy_within(target, source, rows * 8, self._stream)
        else:
            source = batch.column(0).buffers()[1].address + 8 * batch.column(0).offset
            self._program.copy_in(target, source, rows * 8, self._stream)
        self._copies.append((target, first, rows))

    def drop(self) -> None:
        if self._batches:
            self._batches.pop(self._pick())

    def close(self) -> None:
        if self._streams:
            self._streams.pop(self._random.randrange(len(self._streams)))[0].close()

    def fork(self) -> None:
        """Fork a child that drops its batches, as the workers of a loader do."""
        child = os.fork()
        if child == 0:
            self._batches.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def _read_all(uris: list[str], memories: dict[str, Any]) -> None:
    """Read every dataset in each way, so that all that a server opens only once is open."""
    for uri, memory, batch_rows in itertools.product(uris, memories.values(), BATCH_ROWS):
        with splitarrow.open(uri, memory=memory, batch_rows=batch_rows) as stream:
            assert sum(batch.num_rows for batch in stream)


def run_schedules(case: dict[str, Any], count: Callable[[], None]) -> None:
    """Run random schedules, check that nothing is left of each, and count it.

    The seed None reads everything instead.
    """
    for seed in case["seeds"]:
        try:
            with open_memories() as memories:
                if seed is None:
                    _read_all(case["uris"], memories)
                else:
                    Schedule(seed, case["uris"], memories).run()
        except BaseException:
            print("seed", seed, file=sys.stderr)
            raise
        count()


class Zygote:
    """A process that runs each case in a child, which it forks."""

    def __init__(self, log: Path, **environment: str) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=cuda.make_environment() | environment,
            )
        self._input: Any = self._process.stdin
        self._output: Any = self._process.stdout

    def start(self, case: dict[str, Any]) -> None:
        """Start a case."""
        self._input.write(json.dumps(case) + "\n")
        self._input.flush()

    def resume(self) -> None:
        """Let the case that waits go on."""
        self._input.write("\n")
        self._input.flush()

    def wait(self) -> str:
        """Return the next line: ``ready`` if a case waits, or its exit status."""
        return self._output.readline().strip()

    def has_ended(self, seconds: float) -> bool:
        """Wait for the end of a case, and return whether it has come."""
        return bool(select.select([self._output], [], [], seconds)[0])

    def close(self) -> None:
        """End the process, once its case has ended."""
        self._input.close()
        self._output.close()
        self._process.wait()

    def read_log(self) -> str:
        """Return what the cases have written to standard error."""
        return self._log.read_text()


def main() -> None:
    """Run cases in children: see the module."""
    for name in _MODULES:
        import_module(name)
    gc.freeze()  # so that the collections of a child take little time
    counter = mmap.mmap(-1, 1)
    for line in sys.stdin:
        case = json.loads(line)
        counter[0] = 0
        child = os.fork()
        if child == 0:
            _run_child(case, counter)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, *([counter[0]] if "seeds" in case else []), flush=True)


def _run_child(case: dict[str, Any], counter: Any = None) -> None:
    def wait_for_end() -> None:
        print("ready", flush=True)
        os.read(sys.stdin.fileno(), 1)

    def count() -> None:
        counter[0] += 1

    links._RETENTION_SECONDS = 0.1
    try:
        if case.get("process") == "spawn":
            code = (
                "import sys; from helpers.cuda_cases import run_spawned; run_spawned(sys.argv[1])"
            )
            os.execv(sys.executable, [sys.executable, "-W", "error", "-c", code, json.dumps(case)])
        if "seeds" in case:
            run_schedules(case, count)
        else:
            run_case(case, wait_for_end)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def run_spawned(case: str) -> None:
    """Run a case in a new process."""
    _run_child(json.loads(case) | {"process": "spawned"})
