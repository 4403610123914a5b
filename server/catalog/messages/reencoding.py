"""Re-encoding: applying a selection to decoded record batches, and encoding new messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ....errors import DatasetError, ProtocolError
from ....formats.arrow.decoding import validate_memory
from ....formats.arrow.encoder import MessageEncoder
from ....formats.arrow.lengths import measure_lengths
from ....formats.arrow.schema_rewriter import adopt_schema
from ....formats.arrow.supported_types import hide_intervals, hide_schema_intervals
from ....formats.arrow.truncation import has_offsets, needs_truncation, truncate
from ....protocol.splitter import SourceMessage
from ..dataset import ENCODED_GROUP_BYTES, GROUP_BYTES, Measures, MessageGroups
from ..selection import Selection

Batch = tuple[pa.RecordBatch, Mapping[Any, Any] | None]
"""A record batch, and the custom metadata of its message."""
Batches = Generator[Batch, None, None]
"""A generator of record batches."""

_MAX_GROUP_SECONDS = 0.01
_NO_LENGTHS: Any = pa.nulls(0, pa.int32())  # pyarrow.array would import pandas


def encode_groups(
    selection: Selection,
    batches: Batches,
    label: str,
    *,
    is_valid: bool = True,
    schema_metadata: bytes | None = None,
) -> MessageGroups:
    """Yield a group with the schema message, and then groups of the messages of the batches.

    Each group takes a change of threads. So the groups grow from GROUP_BYTES to
    ENCODED_GROUP_BYTES, but not beyond the size that a batch should have now. A group also ends
    when it took 10 ms to make, so that the batches of a slow source are sent as they come. Batches
    that may be invalid are validated before they are cut, because Arrow follows invalid offsets out
    of bounds. Intervals that pyarrow cannot select are integers until they are encoded. This
    generator closes `batches`. Raises `DatasetError` if a batch is not valid or
    cannot be encoded.
    """
    with closing(batches), _map_errors(label):
        hidden = hide_schema_intervals(selection.schema)
        encoder = MessageEncoder(hidden, selection.codec)
        schema_message = encoder.schema_message
        if hidden is not selection.schema:
            schema_message = MessageEncoder(selection.schema).schema_message
        if schema_metadata is not None and selection.derivation is None:
            adopted = adopt_schema(schema_metadata, schema_message.metadata, selection.columns)
            schema_message = schema_message._replace(metadata=adopted)
        yield [SourceMessage(*schema_message)]
        group: list[SourceMessage] = []
        nbytes, started, most = 0, time.monotonic(), GROUP_BYTES
        for batch, custom_metadata in _select_rows(selection, batches, is_valid=is_valid):
            before = nbytes
            for message in encoder.encode(batch, custom_metadata):
                group.append(SourceMessage(*message))
                nbytes += message.body_length
            is_full = nbytes + (nbytes - before) > most  # another batch would exceed it
            if is_full or time.monotonic() - started > _MAX_GROUP_SECONDS:
                yield group
                group = []
                most = min(2 * most, ENCODED_GROUP_BYTES)
                most = max(min(most, selection.budget.find_batch_bytes()), GROUP_BYTES)
                nbytes, started = 0, time.monotonic()
        if group:
            yield group
        encoder.close()


@contextmanager
def _map_errors(label: str) -> Generator[None]:
    """Turn the errors of Arrow into a `DatasetError` of one line."""
    try:
        yield
    except ProtocolError as error:
        raise DatasetError(f"{label}: {error.message}") from None
    except (pa.ArrowException, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(f"{label} has invalid data: {reason}") from None


def measure_batches(
    selection: Selection,
    read_batches: Callable[[Selection], Batches],
    stored_rows: Sequence[int],
    label: str,
    *,
    is_valid: bool,
) -> Measures:
    """Yield a measure of each stored batch; see `ServedDataset.measure_batches`.

    The batches that are read may be others than the stored ones. Raises `DatasetError` if one is
    not valid, or the number of rows differs from `stored_rows`.
    """
    lengths = selection.only_lengths
    if selection.filter is None and not lengths:
        yield from stored_rows
        return
    stored = replace(
        selection.for_storage(), filter=None, only_lengths=lengths and selection.filter is None
    )
    with _map_errors(label), closing(read_batches(stored)) as batches:
        checked = (
            _check_measured(selection, batch, is_valid=is_valid)
            for batch, _ in batches
            if batch.num_rows
        )
        batch = next(checked, None)
        for rows in stored_rows:
            parts: list[Any] = []
            while rows:
                if batch is None:
                    raise DatasetError(f"{label} has fewer rows than its metadata states")
                part, batch = batch.slice(0, rows), batch.slice(rows)
                parts.append(_measure(selection, part))
                rows -= part.num_rows
                if not batch.num_rows:
                    batch = next(checked, None)
            yield pa.concat_arrays([_NO_LENGTHS, *parts]) if lengths else sum(parts)
        if batch is not None:
            raise DatasetError(f"{label} has more rows than its metadata states")


def _check_measured(
    selection: Selection, batch: pa.RecordBatch, *, is_valid: bool
) -> pa.RecordBatch:
    """Return the columns to measure and to filter of a batch, validated."""
    batch = _derive_fields(selection, hide_intervals(batch), is_valid=is_valid)
    if not is_valid:
        batch.validate()
        _validate_filtered_columns(selection, batch)
    return batch


def _measure(selection: Selection, batch: pa.RecordBatch) -> Any:
    """Return the number of rows that pass the filter, or the lengths of their values."""
    found = None
    if selection.filter is not None:
        found = selection.filter.find_rows(
            batch, selection.read_columns or range(batch.num_columns)
        )
    if not selection.only_lengths:
        return batch.num_rows if found is None else found.true_count
    lengths = measure_lengths(batch.column(0))
    return lengths if found is None else lengths.filter(found)


def _select_rows(
    selection: Selection, batches: Iterable[Batch], *, is_valid: bool
) -> Iterator[Batch]:
    """Apply the rows, filter, offset, limit and batch size of a selection."""
    if selection.limit == 0:
        return
    cutter = _BatchCutter(selection)
    is_cut = cutter.may_cut or selection.filter is not None
    row = 0
    for batch, custom_metadata in batches:
        batch = _derive_fields(selection, hide_intervals(batch), is_valid=is_valid)
        if not is_valid:
            _validate(batch, offsets=is_cut)
            _validate_filtered_columns(selection, batch)
        if selection.rows is not None:
            first, end = (min(max(each - row, 0), batch.num_rows) for each in selection.rows)
            row += batch.num_rows
            batch = batch.slice(first, end - first)
        if selection.filter is not None:
            batch = selection.apply_filter(batch)
            if not batch.num_rows:
                continue
        for part in cutter.cut(batch):
            yield part, custom_metadata
        if cutter.is_done:
            return


class _BatchCutter:
    """Cuts batches to the offset, limit and batch size of a selection.

    The slices of some types still refer to the whole batch. They are truncated, so that only the
    rows of the slice are sent.
    """

    def __init__(self, selection: Selection) -> None:
        self._offset = selection.offset
        self._limit = selection.limit
        self._batch_rows = selection.batch_rows
        self._truncates = needs_truncation(selection.schema)
        self.may_cut = (
            self._truncates
            or selection.offset > 0
            or selection.limit is not None
            or selection.batch_rows is not None
        )
        """Whether a batch may be sliced or truncated."""

    @property
    def is_done(self) -> bool:
        """Whether the limit is reached."""
        return self._limit == 0

    def cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the parts of a batch that are to be sent."""
        if self._offset:
            skipped = min(self._offset, batch.num_rows)
            self._offset -= skipped
            if skipped == batch.num_rows:
                return
            batch = self._slice(batch, skipped)
        rows = batch.num_rows
        if self._limit is not None:
            rows = min(rows, self._limit)
            self._limit -= rows
        step = rows if self._batch_rows is None else min(rows, self._batch_rows)
        if step == batch.num_rows:
            yield batch
            return
        for start in range(0, rows, step):
            yield self._slice(batch, start, min(step, rows - start))

    def _slice(self, batch: pa.RecordBatch, start: int, rows: int | None = None) -> pa.RecordBatch:
        part = batch.slice(start, rows)
        return truncate(part) if self._truncates else part


def _derive_fields(
    selection: Selection, batch: pa.RecordBatch, *, is_valid: bool
) -> pa.RecordBatch:
    """Return the columns to send and to filter of a batch that the dataset has read."""
    derivation = selection.derivation
    if derivation is None:
        return batch
    if not is_valid:
        batch.validate()
        for column in derivation.variants:
            validate_memory(batch.column(column))
    return derivation.apply(batch)


def _validate_filtered_columns(selection: Selection, batch: pa.RecordBatch) -> None:
    """Fully validate the columns that the filter refers to; raise ``pyarrow.ArrowInvalid``."""
    if selection.filter is not None:
        columns = selection.read_columns or range(batch.num_columns)
        for column, array in zip(columns, batch.columns, strict=True):
            if column in selection.filter.columns and not pa.types.is_primitive(array.type):
                validate_memory(array)


def _validate(batch: pa.RecordBatch, *, offsets: bool) -> None:
    """Validate what cutting and encoding a batch rely on; raise ``pyarrow.ArrowInvalid``.

    Columns of fixed-width values are not validated in full. Any values can be cut, and other
    writers' files hold some that pyarrow calls invalid.
    """
    batch.validate()
    if offsets:
        for index, field in enumerate(batch.schema):
            if has_offsets(field.type):
                validate_memory(batch.column(index))
