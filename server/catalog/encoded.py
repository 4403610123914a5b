"""Record batches that are encoded anew: cut to a limit and a size, compressed, grouped."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, ProtocolError
from ...formats.arrow.encoder import MessageEncoder
from ...formats.arrow.truncation import has_offsets, needs_truncation, truncated
from ...protocol.splitter import SourceMessage
from .base import GROUP_BYTES
from .selection import Selection
from .source import Groups

Batch = tuple[pa.RecordBatch, Mapping[Any, Any] | None]
"""A record batch, and the custom metadata of its message."""
Batches = Generator[Batch, None, None]

_GROUP_SECONDS = 0.01


def encoded_groups(
    selection: Selection, batches: Batches, what: str, *, is_valid: bool = True
) -> Groups:
    """Yield the schema, and then groups of the messages that `batches` make.

    A group ends when it has GROUP_BYTES, or when it took 10 ms to make, so that what a slow
    source has given is not held back until it gives more.

    Parameters
    ----------
    selection : Selection
        The columns have been applied to the batches; filter, offset, limit, size and codec are
        applied here.
    batches : generator
        Yields batches of what `Selection.to_read` says. It is closed here.
    what : str
        The source, for errors.
    is_valid : bool
        Whether the batches are known to be valid. If they come from a file as they lay in it,
        they have to be checked before they are cut: Arrow would follow their offsets anywhere.

    Raises
    ------
    DatasetError
        If a batch cannot be encoded, or is not valid.
    """
    try:
        encoder = MessageEncoder(selection.schema, selection.codec)
        yield [SourceMessage(*encoder.schema_message)]
        group: list[SourceMessage] = []
        nbytes, since = 0, time.monotonic()
        for batch, custom_metadata in _sized(selection, batches, is_valid=is_valid):
            for message in encoder.encode(batch, custom_metadata):
                group.append(SourceMessage(*message))
                nbytes += message.body_length
            if nbytes >= GROUP_BYTES or time.monotonic() - since > _GROUP_SECONDS:
                yield group
                group = []
                nbytes, since = 0, time.monotonic()
        if group:
            yield group
        encoder.close()
    except ProtocolError as error:
        raise DatasetError(f"{what}: {error.message}") from None
    except (pa.ArrowException, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(f"{what} holds data that is not valid: {reason}") from None
    finally:
        batches.close()


def _sized(selection: Selection, batches: Iterable[Batch], *, is_valid: bool) -> Iterator[Batch]:
    """Cut batches to the rows and the size that the reader asked for."""
    limit, most, offset = selection.limit, selection.batch_rows, selection.offset
    if limit == 0:
        return
    leaky = needs_truncation(selection.schema)
    is_cut = limit is not None or most is not None or offset > 0
    for batch, custom_metadata in batches:
        if not is_valid:
            _check(batch, full=is_cut or leaky or selection.filter is not None)
            _check_filtered(selection, batch)
        if selection.filter is not None:
            batch = selection.filtered(batch)
            if not batch.num_rows:
                continue
        if offset:
            left_out = min(offset, batch.num_rows)
            offset -= left_out
            if left_out == batch.num_rows:
                continue
            batch = batch.slice(left_out)
            batch = truncated(batch) if leaky else batch
        whole = batch.num_rows
        rows = whole if limit is None else min(whole, limit)
        step = rows if most is None else min(rows, most)
        if step == whole:
            yield batch, custom_metadata
        else:
            for start in range(0, rows, step):
                part = batch.slice(start, min(step, rows - start))
                yield truncated(part) if leaky else part, custom_metadata
        if limit is not None:
            limit -= rows
            if not limit:
                return


def _check_filtered(selection: Selection, batch: pa.RecordBatch) -> None:
    """Check in full what a filter looks at; raise ``pyarrow.ArrowInvalid``."""
    if selection.filter is not None:
        columns = selection.reading or range(batch.num_columns)
        for column, array in zip(columns, batch.columns, strict=True):
            if column in selection.filter.columns and not pa.types.is_primitive(array.type):
                array.validate(full=True)


def _check(batch: pa.RecordBatch, *, full: bool) -> None:
    """Check what cutting and encoding a batch relies on; raise ``pyarrow.ArrowInvalid``.

    Columns of numbers are not looked at in full: whatever they hold can be cut, and files of
    other writers hold some that pyarrow does not take for valid.
    """
    batch.validate()
    if full:
        for index, field in enumerate(batch.schema):
            if has_offsets(field.type):
                batch.column(index).validate(full=True)
