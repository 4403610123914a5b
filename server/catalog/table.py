"""Datasets in memory: tables, record batches, and readers that can be read once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from ...errors import DatasetError, UsageError, remote_error
from ...formats.arrow.truncation import needs_truncation, truncated
from ...protocol.request import Request
from .asked import asked_shards, check_version
from .base import Encoding, Shard
from .encoded import Batches, encoded_groups
from .selection import Selection, difference
from .source import GroupSource

BATCH_BYTES = 64 << 20
"""About how large a batch of a table may be; larger ones are sent in slices."""


class TableDataset:
    """A table, or a row of record batches, in memory. It can be read any number of times.

    The memory is shared with the caller; Arrow data is immutable.

    Parameters
    ----------
    data : pyarrow.Table, pyarrow.RecordBatch, or sequence of pyarrow.RecordBatch
        All batches have the same schema. Very large ones are sent in slices.

    Raises
    ------
    UsageError
        If there is no batch, and so no schema, or a batch has another schema.
    """

    kind = "table"

    def __init__(self, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> None:
        if isinstance(data, pa.Table):
            self.schema: pa.Schema = data.schema
            found = data.to_batches()
        else:
            found = [data] if isinstance(data, pa.RecordBatch) else list(data)
            if not found:
                raise UsageError("an empty list of record batches has no schema")
            self.schema = found[0].schema
            for number, batch in enumerate(found):
                if (why := difference(self.schema, batch.schema)) is not None:
                    raise UsageError(f"record batch {number} differs from the first one: {why}")
        self._batches = list(_in_slices(found, leaky=needs_truncation(self.schema)))
        self.rows: int | None = sum(batch.num_rows for batch in found)
        self.nbytes: int | None = sum(batch.nbytes for batch in self._batches)
        self.version: str = uuid.uuid4().hex

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The one shard that it is."""
        return (Shard(self.rows, self.nbytes),)

    def open(self, request: Request, encoding: Encoding) -> GroupSource:
        """Begin to read it for one reader; see `Dataset`."""
        check_version(request, self.version)
        asked_shards(request, self.shards)
        selection = Selection.resolve(request, encoding, self.schema)
        batches = _selected(self._batches, selection.to_read(self.schema))
        cut = (selection.limit, selection.batch_rows) != (None, None) or selection.offset > 0
        return GroupSource(
            encoded_groups(selection, batches, "the table"),
            # Only compression, filters and copying take long; the rest lays out metadata.
            blocking=selection.codec is not None
            or selection.filter is not None
            or (cut and needs_truncation(self.schema)),
            on_close=_nothing,
        )

    def close(self) -> None:
        """Let go of the table. Sources already open go on."""
        self._batches = []


class ReaderDataset:
    """A ``pyarrow.RecordBatchReader``: what it yields goes to the first reader, and is gone.

    A second reader gets a `RemoteError` with the code FAILED_PRECONDITION. Nothing is kept, so
    that a reader may stand for more data than fits in memory.

    Parameters
    ----------
    reader : pyarrow.RecordBatchReader
        The dataset owns it from here on, and closes it.
    """

    kind = "record batch reader"

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.schema: pa.Schema = reader.schema
        self.rows: int | None = None
        self.nbytes: int | None = None
        self.version: str = uuid.uuid4().hex
        self._reader: pa.RecordBatchReader | None = reader
        self._lock = threading.Lock()

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The one shard that it is."""
        return (Shard(self.rows, self.nbytes),)

    def open(self, request: Request, encoding: Encoding) -> GroupSource:
        """Begin to read it for the one reader that it has; see `Dataset`.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if it has been read, or closed.
        """
        check_version(request, self.version)
        asked_shards(request, self.shards)
        selection = Selection.resolve(request, encoding, self.schema)
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is None:
            raise remote_error(
                "FAILED_PRECONDITION",
                "the dataset is a record batch reader and was read once already; "
                "serve a table or a file for more than one reader",
                stream=request.dataset,
            )
        batches = _selected(_read(reader), selection.to_read(self.schema))
        groups = encoded_groups(selection, batches, "the record batch reader")
        return GroupSource(groups, blocking=True, on_close=lambda: _close(reader))

    def close(self) -> None:
        """Close the reader, unless someone is reading it."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            _close(reader)


def _in_slices(batches: Iterable[pa.RecordBatch], *, leaky: bool) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        step = batch.num_rows
        if batch.nbytes > BATCH_BYTES:
            step = max(BATCH_BYTES * step // batch.nbytes, 1)
            step = step & ~63 or step  # bitmaps that begin at a byte need no copy
        for start in range(0, max(batch.num_rows, 1), max(step, 1)):
            part = batch.slice(start, step)
            yield truncated(part) if leaky else part


def _selected(batches: Iterable[pa.RecordBatch], selection: Selection) -> Batches:
    for batch in batches:
        if selection.columns is not None:
            batch = batch.select(list(selection.columns))
        yield batch, None


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    leaky = needs_truncation(reader.schema)
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except Exception as error:  # behind a reader there may be anything
            raise DatasetError(f"the record batch reader failed: {error}") from error
        yield truncated(batch) if leaky else batch


def _close(reader: pa.RecordBatchReader) -> None:
    with suppress(pa.ArrowException, OSError, ValueError):
        reader.close()


def _nothing() -> None:
    pass
