"""The first rows of a dataset as text, for its page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from ...errors import DatasetError, ProtocolError
from ...formats.arrow.decoding import DECODING_ERRORS, validate_memory
from ...formats.arrow.supported_types import SupportedTypes
from ...formats.arrow.tensors.labels import is_tensor_content
from ...protocol.request import Request
from ..caller import Caller, run_in_thread
from ..catalog.dataset import Source
from ..catalog.selection import open_rows
from ..catalog.vortex_encoding import MessageDecoder
from .sessions import run_http_stream

PREVIEW_ROWS = 100
"""The number of rows."""
MAX_COLUMNS = 50
"""The number of columns with values."""
_MAX_CHARACTERS = 120
_MAX_COLUMN_BYTES = 1 << 20
"""The largest size of the values of a column that are shown, in bytes."""


class Preview(NamedTuple):
    """The first rows."""

    names: list[str]
    rows: list[list[str | None]]
    """The values as text; None for a null."""
    hidden_columns: int


async def read_preview(caller: Caller, name: str) -> Preview | None:
    """Read the first rows, on the event loop of the daemon. None for tensors, which have no rows.

    Raises `SplitArrowError` as any other read does.
    """
    server = caller.server
    dataset = caller.find_dataset(name)
    request = Request(name, limit=PREVIEW_ROWS)
    caller.check_draining(request)
    if is_tensor_content(dataset.schema):
        return None
    with run_http_stream(caller, request) as stream:

        def read() -> Preview:
            source = open_rows(dataset, request, server.encoding)
            try:
                return _show_rows(source)
            finally:
                source.close()

        async with server.read_slots.slot_for(request, caller.principal.name):
            preview = await run_in_thread(read, limiter=server.threads)
        stream.rows = len(preview.rows)
        return preview


def _show_rows(source: Source) -> Preview:
    try:
        messages = (message for group in source for message in group)
        decoder = MessageDecoder(bytes(next(messages).metadata))
        names = decoder.schema.names[:MAX_COLUMNS]
        types = SupportedTypes(decoder.schema)
        rows: list[list[str | None]] = []
        for message in messages:
            decoded = decoder.decode(message)
            if decoded is not None:
                validate_memory(decoded[0])
                batch = types.convert(decoded[0])
                columns = [list(_show_column(column)) for column in batch.columns[:MAX_COLUMNS]]
                rows += map(list, zip(*columns, strict=True))
    except (ProtocolError, *DECODING_ERRORS) as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(f"the dataset has invalid data: {reason}") from None
    return Preview(names, rows, len(decoder.schema) - len(names))


def _show_column(column: pa.Array[Any]) -> Iterator[str | None]:
    for value in column:
        if not value.is_valid:
            yield None
        elif column.nbytes > _MAX_COLUMN_BYTES:
            yield "…"
        else:
            try:
                yield show_value(value.as_py())
            except (ValueError, OverflowError):  # Python has no such date, or not these digits
                yield _show_scalar(value)


def _show_scalar(value: pa.Scalar[Any]) -> str:
    try:
        return show_value(value.cast(pa.string()).as_py())
    except pa.ArrowException:
        return "…"


def show_value(value: Any) -> str:
    """Return a value as short text.

    Examples
    --------
    >>> show_value({"a": [1, None]}), show_value(b"abc")
    ('{"a": [1, null]}', '616263')
    """
    if isinstance(value, bytes):
        text = value[:_MAX_CHARACTERS].hex()
    elif isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False, default=show_value)
    else:
        text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
