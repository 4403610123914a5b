"""Read local data without a server: files, folders, patterns, object stores, standard input.

Standard input is read as it arrives if it is a stream, and as a whole otherwise.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol

import pyarrow as pa

from ..client.arguments import Validation
from ..client.stream.decoders import (
    KeepingDecoder,
    TensorDecoder,
    find_messages,
    open_content_decoder,
    open_decoder,
)
from ..errors import DatasetError, UsageError
from ..filters import encode_filter
from ..formats.arrow.conversion import BatchEncoder
from ..formats.arrow.custom_metadata import find_footer_metadata
from ..formats.arrow.data_types import has_old_forms
from ..formats.arrow.encoder import MessageEncoder
from ..formats.arrow.message import (
    CONTINUATION,
    MAX_PADDING,
    HeaderType,
    check_padding,
    parse_prefix,
    read_message_info,
)
from ..formats.arrow.schema import is_current
from ..formats.arrow.tensors import AnyTensor
from ..formats.arrow.tensors.labels import is_tensor_content
from ..protocol.frames import ReceivedBody
from ..protocol.limits import DEFAULT_LIMITS
from ..protocol.memory import BodyPool
from ..protocol.messages import Message
from ..protocol.request import Request
from ..protocol.tags import BodyType
from ..server.catalog.catalog import open_dataset
from ..server.catalog.dataset import Budget, Encoding, ServedDataset, Source
from ..server.catalog.files.file_types import open_file
from ..server.catalog.files.origins import map_read_errors
from ..server.catalog.files.text_files import TextDataset
from ..server.catalog.selection import open_rows

if TYPE_CHECKING:
    from ..protocol.splitter import SourceMessage


class InputMessage(NamedTuple):
    """A record batch or dictionary batch."""

    metadata: bytes | memoryview
    """The FlatBuffer of the message."""
    body: Sequence[Any]
    """The parts of its body: bytes-like objects, or spans of files."""
    body_length: int
    """The size of all parts in bytes."""


class InputStream(Protocol):
    """An open input: a context manager and an iterator of record batches."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        ...

    @property
    def footer_metadata(self) -> Mapping[bytes, bytes] | None:
        """The custom metadata of the footer of the file; None if there is none."""
        ...

    @property
    def rows_received(self) -> int:
        """The number of rows read so far."""
        ...

    @property
    def bytes_received(self) -> int:
        """The number of bytes read so far."""
        ...

    @property
    def transport(self) -> str:
        """What carries the data: a scheme, or ``file``."""
        ...

    @property
    def schema_metadata(self) -> bytes | None:
        """The FlatBuffer of the schema message; None if there is none."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __enter__(self) -> InputStream: ...

    def __exit__(self, *arguments: object) -> None: ...


def read_schema_metadata(stream: InputStream) -> bytes:
    """Return the FlatBuffer of the schema message of a stream."""
    metadata = stream.schema_metadata
    if metadata is not None:
        return metadata
    encoder = MessageEncoder(stream.schema)
    encoder.close()
    return encoder.schema_message.metadata


def read_messages(stream: Any, schema_metadata: bytes) -> Iterator[InputMessage]:
    """Yield the messages of a stream, unchanged if possible.

    A batch that did not arrive as one message of this schema is encoded anew, with its
    dictionaries: the part of a batch that a limit leaves, or a part of a dataset whose schema
    message differs.
    """
    if hasattr(stream, "messages"):
        yield from stream.messages()
        return
    stream.keep_messages()
    encoder = BatchEncoder(schema_metadata)
    for batch in stream:
        kept = find_messages(batch)
        if kept is not None and kept.schema_metadata == schema_metadata:
            for message in kept.messages:
                yield InputMessage(message.metadata, [message.body], message.body.size)
        else:
            for metadata, body, length in encoder.encode(batch):
                yield InputMessage(metadata, body, length)


_BUDGET = Budget(filter_seconds=1e9)
"""A command may take as long as it likes: nobody shares its processor."""


class LocalInput:
    """A dataset that this process reads; see `InputStream`. It closes the source."""

    transport = "file"

    def __init__(self, source: Source, name: str, validate: Validation = "full") -> None:
        self._source = source
        self.rows_received = self.bytes_received = 0
        self._groups = iter(source)
        first, *self._rest = next(self._groups)
        self.schema_metadata = bytes(first.metadata)
        self.footer_metadata = find_footer_metadata(first.metadata)
        message = Message(0, self.schema_metadata, None, BodyType.PACKED)
        self._name = name
        self._decoder = open_content_decoder(message, DEFAULT_LIMITS, validate, name)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._decoder.schema

    def messages(self) -> Iterator[InputMessage]:
        """Yield the messages after the schema, unchanged. Each is decoded to validate it.

        Arrow cannot decode views and run-end encoded columns of the other byte order or of older
        versions, which `MessageConverter` can rewrite. Such messages are not validated.
        """
        decodes = is_current(self.schema_metadata) or has_old_forms(self.schema)
        for message in self._received_messages():
            if decodes:
                self._decoder.decode(message)
            nbytes = 0 if message.body is None else message.body.nbytes
            body = [message.body.payload()] if nbytes and message.body is not None else []
            yield InputMessage(message.metadata, body, nbytes)

    def tensors(self) -> Iterator[AnyTensor]:
        """Yield the tensors of a dataset that holds tensors."""
        decoder = self._decoder
        assert isinstance(decoder, TensorDecoder)
        for message in self._received_messages():
            yield decoder.decode(message)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder
        if isinstance(decoder, TensorDecoder):
            raise _tensor_error(self._name)
        for message in self._received_messages():
            batch = decoder.decode(message)
            if batch is not None:
                yield batch

    def _received_messages(self) -> Iterator[Message]:
        for number, message in enumerate(self._source_messages(), 1):
            yield Message(number, bytes(message.metadata), _collect(message), BodyType.PACKED)

    def _source_messages(self) -> Iterator[SourceMessage]:
        group, self._rest = self._rest, []
        while True:
            for message in group:
                self.rows_received += message.rows
                self.bytes_received += len(message.metadata) + message.body_length
                yield message
            try:
                group = next(self._groups)
            except StopIteration:
                return

    def __enter__(self) -> LocalInput:
        return self

    def __exit__(self, *arguments: object) -> None:
        self._source.close()


def _collect(message: SourceMessage) -> ReceivedBody:
    """Return the body of a message in one piece of memory, with room for its metadata."""
    parts: Any = message.body or ()
    if len(parts) == 1 and isinstance(parts[0], pa.Buffer):
        return ReceivedBody.wrap(parts[0])
    start = (len(message.metadata) + 16 + 63) & ~63
    buffer = pa.allocate_buffer(start + message.body_length)
    view = memoryview(buffer).cast("B")
    position = start
    for part in parts:
        size = part.nbytes if hasattr(part, "read_into") else memoryview(part).nbytes
        target = view[position : position + size]
        if hasattr(part, "read_into"):
            part.read_into(target)
        else:
            target[:] = memoryview(part).cast("B")
        position += size
    return ReceivedBody(buffer, view, start, message.body_length)


@contextmanager
def open_local(
    location: str | Any, text_schema: pa.Schema | None = None
) -> Generator[ServedDataset]:
    """Open a dataset while the context lasts; `text_schema` is that of a file of text."""
    if isinstance(location, str) and not location:
        raise DatasetError("the name of the input is empty")
    if text_schema is not None and Path(location).is_file():
        dataset = open_file(Path(location), text_schema=text_schema)
    else:
        dataset = open_dataset(location, follow_symlinks=True)
    with closing(dataset):
        if text_schema is not None and not isinstance(dataset, TextDataset):
            raise UsageError(
                "--schema is for a .csv, .jsonl or .ndjson file, or such text on standard input; "
                "other inputs have a schema of their own"
            )
        yield dataset


def read_schema(location: str) -> pa.Schema:
    """Return the schema of a dataset that holds rows."""
    with open_local(location) as dataset:
        if is_tensor_content(dataset.schema):
            raise UsageError(f"--schema {location}: it holds tensors, which have no columns")
        return dataset.schema


def open_selection(
    dataset: ServedDataset,
    name: str,
    *,
    columns: list[str] | None = None,
    filter: Any = None,
    limit: int | None = None,
    batches: tuple[int, int] | None = None,
    rows: tuple[int, int] | None = None,
    batch_rows: int | None = None,
    validate: Validation = "full",
) -> LocalInput:
    """Open a part of a dataset; the arguments are those of `splitarrow.open`."""
    choices = (columns, filter, limit, rows, batch_rows)
    if is_tensor_content(dataset.schema) and any(choice is not None for choice in choices):
        raise _tensor_error(name)
    text = None if filter is None else encode_filter(filter, dataset.schema)
    request = Request(
        name,
        columns=None if columns is None else tuple(columns),
        filter=text,
        limit=limit,
        batches=batches,
        rows=rows,
        batch_rows=batch_rows,
    )
    source = open_rows(dataset, request, Encoding(budget=_BUDGET))
    try:
        return LocalInput(source, name, validate)
    except BaseException:
        source.close()
        raise


def _tensor_error(name: str) -> UsageError:
    return UsageError(
        f"{name} holds tensors, which have no rows or columns: 'splitarrow stats' describes them, "
        "and 'splitarrow convert' writes them to .tensor or .npy; --batches selects some"
    )


def shorten_location(location: str) -> str:
    """Return the last part of a path or URL, for a progress bar."""
    return Path(location).name or location


_NAME = "standard input"
_MAX_SCHEMA_BYTES = 16 << 20
_HEADROOM = 4 << 10
_CHUNK_BYTES = 1 << 20

InputFormat = Literal["csv", "jsonl"]
"""A text format, which has no mark of its own."""


class StreamInput:
    """An Arrow IPC stream from a pipe; see `InputStream`.

    Raises `DatasetError` if the stream does not begin with a schema, is malformed or truncated, or
    is not the only one in the pipe.
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
            if read_message_info(message.metadata).header_type is HeaderType.SCHEMA:
                raise DatasetError(
                    f"message {message.sequence} of {_NAME} is a second schema; expected a record "
                    "batch, a dictionary batch or the end of the stream"
                )
            batch = self._decoder.decode(message)
            if batch is not None:
                self.rows_received += batch.num_rows
                yield batch

    def __enter__(self) -> StreamInput:
        return self

    def __exit__(self, *arguments: object) -> None: ...

    def _read_message(self) -> Message | None:
        """Return the next message, or None at the end, behind which only padding may follow."""
        with map_read_errors(_NAME, "an Arrow IPC stream"):
            return self._parse_message()

    def _parse_message(self) -> Message | None:
        head = self._file.read(4)
        if not head:
            return None
        if head == CONTINUATION:
            head += self._file.read(4)
        prefix = parse_prefix(head)
        length = prefix.metadata_length
        if not length:
            check_padding(self._file.read(MAX_PADDING + 1), self.bytes_received + len(head))
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
    arguments: dict[str, Any],
    input_format: InputFormat | None,
    text_schema: pa.Schema | None = None,
) -> Generator[Callable[[], Any]]:
    """Open standard input while the context lasts.

    A stream of Arrow IPC is read as it arrives. Data of other formats, and a stream of which
    record batches or rows are selected by their numbers, is first copied to a temporary file.

    `arguments` are those of `open_selection`. Without an `input_format`, text that begins with
    ``{`` is JSON Lines.
    """
    if sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        raise UsageError("- reads standard input; redirect a file or a pipe to it")
    file: Any = sys.stdin.buffer
    head: bytes = file.peek(8)[:8]
    if not head:
        raise DatasetError(f"{_NAME} is empty")
    is_read_once = text_schema is None and not arguments.keys() & {"batches", "rows"}
    if _is_stream(head) and is_read_once:
        yield _open_once(file, arguments)
        return
    suffix = "" if input_format is None else f".{input_format}"
    if not suffix and head.isascii() and head[:6] not in (b"ARROW1",) and head[:4] not in _MAGICS:
        suffix = ".jsonl" if head.lstrip()[:1] == b"{" else ".csv"
    with tempfile.TemporaryDirectory(prefix="splitarrow-") as folder:
        path = os.path.join(folder, f"stdin{suffix}")
        with open(path, "wb") as copy:
            shutil.copyfileobj(file, copy, _CHUNK_BYTES)
        with open_local(path, text_schema) as dataset:
            yield lambda: open_selection(dataset, _NAME, **arguments)


_MAGICS = (b"PAR1", b"FEA1", b"ORC", b"VTXF")


def _is_stream(head: bytes) -> bool:
    """Return whether the first bytes are those of an Arrow IPC stream of any age."""
    if head.startswith(CONTINUATION):
        return True
    length = int.from_bytes(head[:4], "little", signed=True)
    return len(head) == 8 and 0 < length <= _MAX_SCHEMA_BYTES


def _open_once(file: BinaryIO, arguments: dict[str, Any]) -> Callable[[], Any]:
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
        stream = StreamInput(file, arguments.get("validate", "full"))
        if not arguments.keys() - {"validate"}:
            return stream
        reader = pa.RecordBatchReader.from_batches(stream.schema, stream)
        with open_local(reader) as dataset:
            return open_selection(dataset, _NAME, **arguments)

    return open_stream
