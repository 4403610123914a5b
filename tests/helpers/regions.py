"""Regions in the memory of this process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from splitarrow.errors import DatasetError


class MemoryRegion:
    """A region in this process, which may hold the metadata in front of a body."""

    def __init__(self, data: bytes) -> None:
        self.data = pa.py_buffer(data)
        self.size = len(data)
        self.has_changed = False

    def check(self) -> None:
        if self.has_changed:
            raise DatasetError("changed")

    def prefixed_buffer(self, prefix: bytes, offset: int, nbytes: int, owner: object) -> Any:
        begin = offset - len(prefix)
        if begin < 0 or self.data[begin:offset].to_pybytes() != prefix:
            return None
        return self.data.slice(begin, len(prefix) + nbytes)

    def repeats(self, data: bytes, begin: int, period: int, count: int) -> bool:
        places = range(begin, begin + count * period, period)
        return begin >= 0 and all(
            self.data[at : at + len(data)].to_pybytes() == data for at in places
        )

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        assert 0 <= offset <= offset + nbytes <= self.size
        return self.data.slice(offset, nbytes)
