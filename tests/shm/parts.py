"""What the tests of shared memory have in common: data, waiting, and looking at the process."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import splitarrow


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition; fail if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        threading.Event().wait(0.002)


def numbers(batches: int = 8, rows: int = 1000, start: int = 0) -> list[pa.RecordBatch]:
    """Return batches of one column of integers that count up, without nulls."""
    return [
        pa.record_batch(
            {"n": pa.array(range(first, first + rows), pa.int64())},
        )
        for first in range(start, start + batches * rows, rows)
    ]


def mixed(batches: int = 6, rows: int = 500) -> list[pa.RecordBatch]:
    """Return batches of numbers, texts with nulls, lists and a dictionary."""
    words = pa.array(["one", "two", "three"])
    made: list[pa.RecordBatch] = []
    for number in range(batches):
        values = range(number * rows, (number + 1) * rows)
        texts = [None if value % 7 == 0 else f"text {value}" for value in values]
        lists = [[value, None] if value % 3 else None for value in values]
        places: Any = pa.array([value % 3 for value in values], pa.int8())
        made.append(
            pa.record_batch(
                {
                    "n": pa.array(values, pa.int64()),
                    "t": pa.array(texts, pa.string()),
                    "l": pa.array(lists, pa.list_(pa.int32())),
                    "d": pa.DictionaryArray.from_arrays(places, words),
                }
            )
        )
    return made


def filled(batches: int, nbytes: int, value: int = 7) -> list[pa.RecordBatch]:
    """Return batches of `nbytes` bytes each; each value tells its batch and `value`."""
    return [
        pa.record_batch({"n": pa.repeat(pa.scalar(value * 1000 + number, pa.int64()), nbytes // 8)})
        for number in range(batches)
    ]


def write_file(path: Path, batches: Iterable[pa.RecordBatch], **options: Any) -> Path:
    """Write an Arrow IPC file; it takes the place of one that was there."""
    found = list(batches)
    chosen = pa.ipc.IpcWriteOptions(**options)
    beside = path.with_name(f"{path.name}.new")
    with (
        pa.OSFile(str(beside), "wb") as sink,
        pa.ipc.new_file(sink, found[0].schema, options=chosen) as writer,
    ):
        for batch in found:
            writer.write_batch(batch)
    beside.rename(path)
    return path


def table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the table that batches make up."""
    return pa.Table.from_batches(list(batches))


def read_table(uri: str, **options: Any) -> pa.Table:
    """Read a stream to its end; every batch is checked in full."""
    chosen: dict[str, Any] = {"validate": "full", **options}
    with splitarrow.open(uri, **chosen) as stream:
        return stream.read_all()


def free_of_leases(server: splitarrow.Server) -> Callable[[], bool]:
    """Return a condition: nobody holds anything of the server's memory."""

    def holds() -> bool:
        stats = server.stats()
        return (stats["leases"], stats["leased_bytes"], stats["lease_seconds"]) == (0, 0, 0)

    return holds


class Mapping(NamedTuple):
    """A line of ``/proc/self/maps``."""

    begin: int
    end: int
    rights: str
    inode: int
    name: str


def mappings() -> list[Mapping]:
    """Return what is mapped into this process."""
    found: list[Mapping] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        found.append(
            Mapping(int(begin, 16), int(end, 16), rights, int(inode), name[0] if name else "")
        )
    return found


def buffers_of(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """Return the buffers of a batch that hold something."""
    return [
        buffer
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    ]


def places_of(batches: Iterable[pa.RecordBatch]) -> set[Mapping]:
    """Return the mappings that the buffers of batches lie in; each lies in one as a whole."""
    mapped = mappings()
    found: set[Mapping] = set()
    for batch in batches:
        for buffer in buffers_of(batch):
            end = buffer.address + buffer.size
            (place,) = [m for m in mapped if m.begin <= buffer.address and end <= m.end]
            found.add(place)
    return found


def anonymous_bytes() -> int:
    """Return how much memory this process has that is no file's and nobody else's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel tells of no anonymous memory")


def open_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def open_memory() -> int:
    """Return how many descriptors of memory without a name this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was the list's own
            count += os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:")
    return count
