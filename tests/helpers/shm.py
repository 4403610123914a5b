"""Data for the tests of shared memory, and the memory of this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import splitarrow


def make_number_batches(batches: int = 8, rows: int = 1000, start: int = 0) -> list[pa.RecordBatch]:
    """Return batches of one column of consecutive integers, without nulls."""
    return [
        pa.record_batch(
            {"n": pa.array(range(first, first + rows), pa.int64())},
        )
        for first in range(start, start + batches * rows, rows)
    ]


def make_mixed_batches(batches: int = 6, rows: int = 500) -> list[pa.RecordBatch]:
    """Return batches of integers, strings with nulls, lists and a dictionary."""
    words = pa.array(["one", "two", "three"])
    made: list[pa.RecordBatch] = []
    for number in range(batches):
        values = range(number * rows, (number + 1) * rows)
        texts = [None if value % 7 == 0 else f"text {value}" for value in values]
        lists = [[value, None] if value % 3 else None for value in values]
        indices: Any = pa.array([value % 3 for value in values], pa.int8())
        made.append(
            pa.record_batch(
                {
                    "n": pa.array(values, pa.int64()),
                    "t": pa.array(texts, pa.string()),
                    "l": pa.array(lists, pa.list_(pa.int32())),
                    "d": pa.DictionaryArray.from_arrays(indices, words),
                }
            )
        )
    return made


def make_filled_batches(batches: int, nbytes: int, value: int = 7) -> list[pa.RecordBatch]:
    """Return batches of `nbytes` bytes, each filled with 1000 * `value` plus its number."""
    return [
        pa.record_batch({"n": pa.repeat(pa.scalar(value * 1000 + number, pa.int64()), nbytes // 8)})
        for number in range(batches)
    ]


def make_table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return a table of batches."""
    return pa.Table.from_batches(list(batches))


def read_table(uri: str, **options: Any) -> pa.Table:
    """Read a stream to its end with full validation."""
    chosen: dict[str, Any] = {"validate": "full", **options}
    with splitarrow.open(uri, **chosen) as stream:
        return stream.read_all()


def has_no_leases(server: splitarrow.Server) -> Callable[[], bool]:
    """Return the condition that no reader of a server holds a lease."""

    def condition() -> bool:
        stats = server.stats()
        return (stats["leases"], stats["leased_bytes"], stats["lease_seconds"]) == (0, 0, 0)

    return condition


class Mapping(NamedTuple):
    """A line of ``/proc/self/maps``."""

    begin: int
    end: int
    rights: str
    inode: int
    name: str


def list_mappings() -> list[Mapping]:
    """Return the mappings of this process."""
    found: list[Mapping] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        found.append(
            Mapping(int(begin, 16), int(end, 16), rights, int(inode), name[0] if name else "")
        )
    return found


def list_buffers(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """Return the buffers of a batch that are not empty."""
    return [
        buffer
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    ]


def find_mappings(batches: Iterable[pa.RecordBatch]) -> set[Mapping]:
    """Return the mappings that hold the buffers of batches. No buffer may span two mappings."""
    mapped = list_mappings()
    found: set[Mapping] = set()
    for batch in batches:
        for buffer in list_buffers(batch):
            end = buffer.address + buffer.size
            (mapping,) = [m for m in mapped if m.begin <= buffer.address and end <= m.end]
            found.add(mapping)
    return found


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel reports no anonymous memory")


def open_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def open_memory() -> set[int]:
    """Return the inodes of the sealed memory that descriptors of this process hold open."""
    inodes: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:"):
                inodes.add(os.stat(f"/proc/self/fd/{name}").st_ino)
    return inodes
