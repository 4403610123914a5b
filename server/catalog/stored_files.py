"""The files of shards as they are stored, for readers that request the format ``file``.

A file is a column of bytes. Its rows are the bytes, so that `offset` and `limit` select a part of
it, and a broken read continues where it was. A relay reads shards in this way, and compares their
SHA-256 with the manifest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...errors import InvalidRequestError
from ...formats.arrow.encoder import MessageEncoder
from ...protocol.request import FILE, Request
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import FileSpan, SourceFile
from .dataset import (
    DatasetView,
    Encoding,
    GeneratorSource,
    Measures,
    MessageGroups,
    ServedDataset,
)
from .published import PublishedDataset, PublishedVersion

FILE_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
"""The schema of a file."""
_CHUNK_BYTES = 1 << 20
_ALIGNMENT = 8


def find_stored_files(dataset: ServedDataset, request: Request) -> StoredFiles:
    """Return the files of a dataset; raise `InvalidRequestError` if it has no SHA-256 of them."""
    if not isinstance(dataset, (PublishedDataset, PublishedVersion)):
        raise InvalidRequestError(
            "the files of a published dataset alone are sent as they are stored; read this dataset "
            "in the format arrow",
            stream=request.dataset,
        )
    given = [name for name in _SELECTIONS if getattr(request, name) is not None]
    if given:
        raise InvalidRequestError(
            f"a file is sent as it is stored, without {', '.join(given)}", stream=request.dataset
        )
    return StoredFiles(dataset)


_SELECTIONS = ("columns", "filter", "batch_rows", "compression", "batches")


class StoredFiles(DatasetView):
    """The files of the shards of a published dataset."""

    def __init__(self, dataset: PublishedDataset | PublishedVersion) -> None:
        self._dataset = dataset

    @property
    def described(self) -> ServedDataset:
        """The dataset."""
        return self._dataset

    @property
    def schema(self) -> pa.Schema:
        """The schema of a file."""
        return FILE_SCHEMA

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the file of one shard; see `ServedDataset.open`."""
        return self._dataset.open_file(request, _open_groups)

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Refuse: a file has no record batches."""
        raise InvalidRequestError("a file has no record batches", stream=request.dataset)


def _open_groups(file: SourceFile, request: Request) -> MessageGroups:
    """Yield the schema message and the bytes that a request selects, in groups."""
    begin = min(request.offset or 0, file.size)
    left = file.size - begin
    if request.limit is not None:
        left = min(left, request.limit)
    group = [SourceMessage(MessageEncoder(FILE_SCHEMA).schema_message.metadata, None)]
    header = _encode_header(_CHUNK_BYTES) if left >= _CHUNK_BYTES else b""
    while left:
        nbytes = min(left, _CHUNK_BYTES)
        metadata = header if nbytes == _CHUNK_BYTES else _encode_header(nbytes)
        padding = -nbytes % _ALIGNMENT
        body: list[Any] = [FileSpan(file, begin, nbytes)]
        if padding:
            body.append(bytes(padding))
        file.prefetch(begin + nbytes, 2 * _CHUNK_BYTES)
        group.append(SourceMessage(metadata, body, nbytes + padding, nbytes))
        yield group
        group = []
        begin += nbytes
        left -= nbytes
    if group:
        yield group


def _encode_header(nbytes: int) -> bytes:
    """Return the metadata of a record batch with so many bytes; their values are not in it."""
    values: Any = pa.Array.from_buffers(pa.uint8(), nbytes, [None, pa.allocate_buffer(nbytes)])
    encoder = MessageEncoder(FILE_SCHEMA)
    (message,) = encoder.encode(pa.record_batch([values], schema=FILE_SCHEMA))
    encoder.close()
    return message.metadata


def view_files(dataset: ServedDataset, request: Request) -> tuple[ServedDataset, Request]:
    """Return the files of a dataset if a request is for them, and the request to open."""
    if request.format != FILE:
        return dataset, request
    files = find_stored_files(dataset, request)
    if request.rows is not None:
        begin, end = request.rows
        skipped = min(request.offset or 0, end - begin)
        limit = end - begin - skipped
        limit = limit if request.limit is None else min(limit, request.limit)
        request = replace(request, rows=None, offset=begin + skipped, limit=limit)
    return files, replace(request, format=None)
