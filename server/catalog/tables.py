"""Datasets in memory: tables, record batches, and readers that can be read once."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, RemoteError, UsageError, remote_error
from ...formats.arrow.schema import describe_difference
from ...formats.arrow.truncation import needs_truncation, truncate
from ...protocol.request import Request
from .dataset import Encoding, FixedDataset, GeneratorSource, Measures, check_batches
from .messages.reencoding import Batches, encode_groups, measure_batches
from .selection import Selection

BATCH_BYTES = 64 << 20
"""The approximate size in bytes from which a batch of a table is sent in slices."""


class SlicedDataset(FixedDataset):
    """A dataset in memory, whose slices are its record batches."""

    _slices: Sequence[Any]

    @abstractmethod
    def _read_slices(self, slices: Sequence[Any], selection: Selection) -> Batches:
        """Yield slices as record batches with the selected columns."""

    def _select(self, selection: Selection) -> Sequence[Any]:
        return selection.batches.select(self._slices)

    def _read_batches(self, selection: Selection) -> Batches:
        return self._read_slices(self._select(selection), selection)

    def _resolve(self, request: Request, encoding: Encoding) -> Selection:
        self.check_request(request)
        selection = Selection.resolve(request, encoding, self.schema)
        check_batches(request, len(self._slices))
        return selection

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each slice; see `ServedDataset.measure_batches`."""
        self.check_request(request)
        rows = [each.num_rows for each in self._slices]
        selection = Selection.for_measuring(request, encoding, self.schema)
        label = f"the {self.kind}"
        return measure_batches(selection, self._read_batches, rows, label, is_valid=True)


class TableDataset(SlicedDataset):
    """A table or a list of record batches in memory, which the caller shares.

    Raises `UsageError` if there is no batch, and therefore no schema, or the schemas of the
    batches differ.
    """

    _kind = "table"

    def __init__(self, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> None:
        if isinstance(data, pa.Table):
            schema, batches = data.schema, data.to_batches()
        else:
            batches = [data] if isinstance(data, pa.RecordBatch) else list(data)
            schema = _common_schema(batches)
        self._slices = list(_slice_large(batches, truncates=needs_truncation(schema)))
        rows = sum(batch.num_rows for batch in batches)
        super().__init__(schema, rows, sum(batch.nbytes for batch in self._slices))

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the table for one reader; see `ServedDataset.open`."""
        selection = self._resolve(request, encoding)
        batches = self._read_batches(selection.for_reading(self.schema))
        groups = encode_groups(selection, batches, "the table")
        return GeneratorSource(groups, blocking=_is_expensive(selection, self.schema))

    def _read_slices(self, slices: Sequence[Any], selection: Selection) -> Batches:
        for batch in slices:
            yield selection.select_columns(batch), None


class ReaderDataset(FixedDataset):
    """A ``pyarrow.RecordBatchReader``, whose batches go to the first reader.

    Nothing is kept, so a reader may yield more data than fits into memory. The dataset owns the
    reader and closes it.
    """

    _kind = "record batch reader"

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        super().__init__(reader.schema, None, None)
        self._reader: pa.RecordBatchReader | None = reader
        self._lock = threading.Lock()

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the reader for the only time; see `ServedDataset.open`."""
        self.check_request(request)
        if request.batches is not None:
            raise _no_random_access(request)
        selection = Selection.resolve(request, encoding, self.schema)
        reader = self._take_reader()
        if reader is None:
            raise remote_error(
                "FAILED_PRECONDITION",
                "the dataset is a record batch reader, which can be read only once, and it was "
                "read already; serve a table or a file instead",
                stream=request.dataset,
            )
        batches = _read_batches(reader, selection.for_reading(self.schema))
        groups = encode_groups(selection, batches, "the record batch reader")
        source = GeneratorSource(groups, blocking=True)
        source.call_on_close(lambda: _close_reader(reader))
        return source

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Refuse: counting the rows would use up the reader."""
        raise _no_random_access(request)

    def close(self) -> None:
        """Close the reader, unless a source reads it."""
        reader = self._take_reader()
        if reader is not None:
            _close_reader(reader)

    def _take_reader(self) -> pa.RecordBatchReader | None:
        with self._lock:
            reader, self._reader = self._reader, None
        return reader


def _no_random_access(request: Request) -> RemoteError:
    return remote_error(
        "FAILED_PRECONDITION",
        "the dataset is a record batch reader, which has no random access; serve a table or a "
        "file instead",
        stream=request.dataset,
    )


def _common_schema(batches: list[pa.RecordBatch]) -> pa.Schema:
    if not batches:
        raise UsageError("an empty list of record batches has no schema; use an empty table")
    schema = batches[0].schema
    for number, batch in enumerate(batches):
        if (difference := describe_difference(schema, batch.schema)) is not None:
            raise UsageError(f"record batch {number} differs from the first one: {difference}")
    return schema


def _is_expensive(selection: Selection, schema: pa.Schema) -> bool:
    """Return whether encoding compresses, filters or copies, beyond writing metadata."""
    is_cut = selection.limit is not None or selection.batch_rows is not None or selection.offset > 0
    return (
        selection.codec is not None
        or selection.filter is not None
        or selection.derivation is not None
        or (is_cut and needs_truncation(schema))
    )


def _slice_large(batches: Iterable[pa.RecordBatch], *, truncates: bool) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and those that are larger than BATCH_BYTES in slices."""
    for batch in batches:
        rows = batch.num_rows
        if batch.nbytes > BATCH_BYTES:
            rows = max(BATCH_BYTES * rows // batch.nbytes, 1)
            rows = rows & ~63 or rows  # a bitmap that begins at a byte is not copied
        for start in range(0, max(batch.num_rows, 1), max(rows, 1)):
            part = batch.slice(start, rows)
            yield truncate(part) if truncates else part


def _read_batches(reader: pa.RecordBatchReader, selection: Selection) -> Batches:
    truncates = needs_truncation(reader.schema)
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except Exception as error:  # a reader may run any code
            raise DatasetError(f"the record batch reader failed: {error}") from error
        yield selection.select_columns(truncate(batch) if truncates else batch), None


def _close_reader(reader: pa.RecordBatchReader) -> None:
    with suppress(pa.ArrowException, OSError, ValueError):
        reader.close()
