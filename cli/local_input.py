"""Read local files, folders, patterns, object stores and published datasets, without a server.

The catalog of the server reads them, so that a command accepts what `splitarrow serve` does.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..client.arguments import Validation
from ..client.filters import serialize_filter
from ..client.stream.decoders import TensorDecoder, open_content_decoder
from ..errors import DatasetError, UsageError
from ..formats.arrow.custom_metadata import find_footer_metadata
from ..formats.arrow.tensors import AnyTensor
from ..formats.arrow.tensors.labels import is_tensor_content
from ..protocol.frames import ReceivedBody
from ..protocol.limits import DEFAULT_LIMITS
from ..protocol.messages import Message
from ..protocol.request import Request
from ..protocol.tags import BodyType
from ..server.catalog.catalog import open_dataset
from ..server.catalog.dataset import Budget, Encoding, ServedDataset, Source
from ..server.catalog.selection import open_rows
from .message_input import InputMessage

if TYPE_CHECKING:
    from ..protocol.splitter import SourceMessage

_BUDGET = Budget(filter_seconds=1e9)
"""A command may take as long as it likes: nobody shares its processor."""


class LocalInput:
    """A dataset that this process reads; see `InputStream`.

    `source`: the input closes it.
    """

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
        """Yield the messages after the schema, without decoding them."""
        for message in self._source_messages():
            yield InputMessage(message.metadata, message.body or (), message.body_length)

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
def open_local(location: str | Any) -> Generator[ServedDataset]:
    """Open a dataset while the context lasts; errors as for `open_dataset`."""
    if isinstance(location, str) and not location:
        raise DatasetError("the name of the input is empty")
    dataset = open_dataset(location)
    with closing(dataset):
        yield dataset


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
    """Open a part of a dataset; the arguments are those of `splitarrow.open`.

    Raises `SplitArrowError` if the selection does not fit the dataset, or the data cannot be read.
    """
    choices = (columns, filter, limit, rows, batch_rows)
    if is_tensor_content(dataset.schema) and any(choice is not None for choice in choices):
        raise _tensor_error(name)
    text = None if filter is None else serialize_filter(name, dataset.schema, filter)
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
