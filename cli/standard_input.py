"""Read Arrow data from standard input: a stream as it arrives, every other format as a whole."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

import pyarrow as pa

from ..client.arguments import Validation
from ..client.stream.decoders import KeepingDecoder, open_decoder
from ..errors import DatasetError, UsageError
from ..formats.arrow.message import CONTINUATION, HeaderType, parse_prefix, read_message_info
from ..protocol.frames import ReceivedBody
from ..protocol.limits import DEFAULT_LIMITS
from ..protocol.memory import BodyPool
from ..protocol.messages import Message
from ..protocol.tags import BodyType
from .local_input import open_local, open_selection

STANDARD_INPUT = "-"
"""The name of the input that is standard input."""

_NAME = "standard input"
_MAX_SCHEMA_BYTES = 16 << 20
_HEADROOM = 4 << 10
_CHUNK_BYTES = 1 << 20

InputFormat = Literal["csv", "jsonl"]
"""A text format, which has no mark of its own."""


class StreamInput:
    """An Arrow IPC stream from a pipe; see `InputStream`. Every batch is validated.

    Raises `DatasetError` if the stream does not begin with a schema, or is truncated; also while it
    is read.
    """

    transport = "stdin"
    footer_metadata = None

    def __init__(self, file: BinaryIO, validate: Validation = "full") -> None:
        self._file = file
        self._bodies = BodyPool()
        self.rows_received = self.bytes_received = self._sequence = 0
        first = self._read_message()
        if first is None or read_message_info(first.metadata).header_type is not HeaderType.SCHEMA:
            raise DatasetError(f"{_NAME} does not begin with the schema of an Arrow IPC stream")
        self.schema_metadata = first.metadata
        decoder = open_decoder(first, DEFAULT_LIMITS, validate, _NAME)
        self._decoder = KeepingDecoder(decoder, first.metadata)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._decoder.schema

    def keep_messages(self) -> None:
        """Do nothing: every batch keeps its messages."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (message := self._read_message()) is not None:
            batch = self._decoder.decode(message)
            if batch is not None:
                self.rows_received += batch.num_rows
                yield batch

    def __enter__(self) -> StreamInput:
        return self

    def __exit__(self, *arguments: object) -> None: ...

    def _read_message(self) -> Message | None:
        """Return the next message, or None at the end of the stream."""
        head = self._file.read(4)
        if not head:
            return None
        if head == CONTINUATION:
            head += self._file.read(4)
        prefix = parse_prefix(head)
        length = prefix.metadata_length
        if not length:
            return None
        if length > DEFAULT_LIMITS.metadata_bytes:
            raise DatasetError(
                f"message {self._sequence} of {_NAME} declares {length} bytes of metadata; the "
                f"limit is {DEFAULT_LIMITS.metadata_bytes}"
            )
        metadata = self._file.read(length)
        if len(metadata) < length:
            raise self._truncation()
        info = read_message_info(metadata)
        if info.body_length > DEFAULT_LIMITS.body_bytes:
            raise DatasetError(
                f"message {self._sequence} of {_NAME} declares a body of {info.body_length} bytes; "
                f"the limit is {DEFAULT_LIMITS.body_bytes}"
            )
        body = self._read_body(info.body_length) if info.header_type.has_body else None
        self.bytes_received += len(head) + length + info.body_length
        sequence, self._sequence = self._sequence, self._sequence + 1
        return Message(sequence, metadata, body, BodyType.PACKED)

    def _read_body(self, nbytes: int) -> ReceivedBody:
        body = self._bodies.allocate(nbytes, _HEADROOM)
        done = body.start
        while done < body.start + nbytes:
            file: Any = self._file
            count = file.readinto(body.view[done : min(done + _CHUNK_BYTES, body.start + nbytes)])
            if not count:
                raise self._truncation()
            done += count
        return body

    def _truncation(self) -> DatasetError:
        return DatasetError(f"{_NAME} ends inside message {self._sequence} of its Arrow IPC stream")


@contextmanager
def open_standard_input(
    selection: dict[str, Any], input_format: InputFormat | None, validate: Validation
) -> Generator[Callable[[], Any]]:
    """Open standard input while the context lasts.

    A stream of Arrow IPC is read as it arrives. Data of other formats, and a stream of which
    record batches or rows are selected by their numbers, is first copied to a temporary file.

    `input_format`: By default, text that begins with ``{`` is JSON Lines. Raises `UsageError` if
    standard input is closed, or is opened a second time. Raises `DatasetError` if it is empty or
    malformed.
    """
    if sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        raise UsageError("- reads standard input; redirect a file or a pipe to it")
    file: Any = sys.stdin.buffer
    head: bytes = file.peek(8)[:8]
    if not head:
        raise DatasetError(f"{_NAME} is empty")
    by_number = any(selection.get(name) is not None for name in ("batches", "rows"))
    if _is_stream(head) and not by_number:
        yield _open_once(file, selection, validate)
        return
    suffix = "" if input_format is None else f".{input_format}"
    if not suffix and head.isascii() and head[:6] not in (b"ARROW1",) and head[:4] not in _MAGICS:
        suffix = ".jsonl" if head.lstrip()[:1] == b"{" else ".csv"
    with tempfile.TemporaryDirectory(prefix="splitarrow-") as folder:
        path = os.path.join(folder, f"stdin{suffix}")
        with open(path, "wb") as copy:
            shutil.copyfileobj(file, copy, _CHUNK_BYTES)
        with open_local(path) as dataset:
            yield lambda: open_selection(dataset, _NAME, **selection, validate=validate)


_MAGICS = (b"PAR1", b"FEA1", b"ORC", b"VTXF")


def _is_stream(head: bytes) -> bool:
    """Return whether the first bytes are those of an Arrow IPC stream of any age."""
    if head.startswith(CONTINUATION):
        return True
    length = int.from_bytes(head[:4], "little", signed=True)
    return len(head) == 8 and 0 < length <= _MAX_SCHEMA_BYTES


def _open_once(
    file: BinaryIO, selection: dict[str, Any], validate: Validation
) -> Callable[[], Any]:
    """Return a function that opens the stream, which it can do once."""
    opened = False

    def open_stream() -> Any:
        nonlocal opened
        if opened:
            raise UsageError(
                f"the dictionaries of {_NAME} are replaced, which a file cannot hold; "
                "write to .arrows instead"
            )
        opened = True
        stream = StreamInput(file, validate)
        if all(value is None for value in selection.values()):
            return stream
        reader = pa.RecordBatchReader.from_batches(stream.schema, stream)
        with open_local(reader) as dataset:
            return open_selection(dataset, _NAME, **selection, validate=validate)

    return open_stream
