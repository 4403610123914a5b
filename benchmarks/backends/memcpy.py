"""The reference: one copy of each body in memory, on one thread."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import pyarrow as pa

from ..consumer import Consumer
from ..dataset import Dataset
from ..options import Validate


class MemcpyBackend:
    """Copies each body from the mapped file to the same buffer."""

    name = "memcpy"
    summary = "no transport: each body is copied once, from the mapped file to one buffer"
    in_process = True
    baseline: str | None = None

    def __init__(self) -> None:
        self._source: memoryview | None = None
        self._offsets: list[int] = []

    def unavailable_reason(self) -> str | None:
        """Return None: this backend can always run."""
        return None

    @contextmanager
    def serve(self, dataset: Dataset) -> Generator[str]:
        """Map the file; see `Backend.serve`."""
        with pa.memory_map(dataset.path) as file:
            self._source = memoryview(file.read_buffer()).cast("B")
            self._offsets = dataset.body_offsets()
            try:
                yield dataset.path
            finally:
                self._source = None

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Copy all bodies. The consumer only counts them; see `Backend.read`."""
        source = self._source
        assert source is not None, "serve() is active"
        nbytes = consumer.dataset.batch_bytes
        target = memoryview(pa.allocate_buffer(nbytes)).cast("B")
        for offset in self._offsets:
            target[:] = source[offset : offset + nbytes]
            if not consumer.batches:
                consumer.first_at = time.monotonic()
            consumer.batches += 1
        consumer.rows = consumer.batches * consumer.dataset.batch_rows
