"""Shards that are sent while they are downloaded.

Their messages follow each other in the file as in a stream, and are sent as they are stored. The
stream ends only after the whole file has the SHA-256 in the manifest.
"""

from __future__ import annotations

import os
from contextlib import closing

import pyarrow as pa

from ...errors import DatasetError, InvalidRequestError, ProtocolError, remote_error
from ...formats.arrow.file import HEAD_BYTES, MAGIC, FramedMessage, MessageReader
from ...formats.arrow.message import HeaderType, read_batch_header
from ...formats.arrow.schema import describe_difference, read_schema
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import FileSpan, SourceFile
from .batch_ranges import BatchRanges
from .dataset import GeneratorSource, MessageGroups
from .files.arrow import ArrowFileDataset
from .files.origins import LocalOrigin
from .object_cache import CacheFullError, ShardDownload
from .selection import Selection

_MAX_METADATA_BYTES = 64 << 20


class _ArrivingFile(SourceFile):
    """A file that grows. It is read only where it is complete.

    It has its final size from now on, so that readers can map it.
    """

    is_own = True

    def __init__(self, download: ShardDownload) -> None:
        try:
            if download.path.stat().st_size < download.nbytes:
                os.truncate(download.path, download.nbytes)
        except OSError as error:
            raise DatasetError(f"cannot store {download.path}: {error.strerror}") from None
        super().__init__(download.path, refuse_writers=False)

    def check(self) -> None:
        """Do nothing: the part that was read does not change any more."""


def open_arriving(
    download: ShardDownload,
    schema: pa.Schema,
    selection: Selection,
    location: str,
    *,
    regions: bool = False,
) -> GeneratorSource | None:
    """Open a shard whose messages are sent as they are stored. Readers map its `regions`.

    Return None if other messages are requested, or the shard is complete.

    It waits for the first messages. Raises `DatasetError` if the download fails, or the shard
    differs from its manifest.
    """
    if not _keeps_messages(selection):
        return None
    download.wait_for(min(HEAD_BYTES, download.nbytes))
    try:
        file = _ArrivingFile(download)
    except DatasetError:
        download.wait()
        return None  # it has just become complete, and has another name
    try:
        messages = _ArrivingMessages(download, file, location)
        difference = describe_difference(schema, read_schema(messages.schema_metadata))
        is_stored = selection.compression in (None, messages.codec or "none")
    except BaseException:
        file.close()
        raise
    if difference is not None or not is_stored:
        file.close()  # the complete file is examined more closely
        return None
    source = GeneratorSource(messages.groups(selection.batches), blocking=True)
    source.region = file if regions else None
    source.call_on_close(file.close)
    return source


def _keeps_messages(selection: Selection) -> bool:
    return (
        selection.filter is None
        and selection.columns is None
        and selection.derivation is None
        and selection.limit is None
        and selection.batch_rows is None
        and selection.rows is None
        and not selection.offset
        and not selection.only_lengths
    )


class _ArrivingMessages:
    """The messages of a file that grows."""

    def __init__(self, download: ShardDownload, file: SourceFile, location: str) -> None:
        self._download = download
        self._file = file
        self._location = location
        self._reader = MessageReader(
            self._read, download.nbytes, HEAD_BYTES, max_metadata_bytes=_MAX_METADATA_BYTES
        )
        if self._read(0, len(MAGIC)) != MAGIC:
            raise self._error("a shard is not an Arrow IPC file")
        first = self._next()
        if first is None or first.header_type is not HeaderType.SCHEMA:
            raise self._error("a shard does not begin with its schema")
        self.schema_metadata: bytes = first.metadata
        """The metadata of the schema message."""
        self._ahead = self._next()
        self.codec: str | None = None
        """The codec of the first record batch."""
        if self._ahead is not None:
            self.codec = read_batch_header(self._ahead.metadata).codec

    def groups(self, ranges: BatchRanges) -> MessageGroups:
        """Yield the schema message, and each record batch of some ranges once it has arrived."""
        group = [SourceMessage(self.schema_metadata, None)]
        offsets: list[int] = []
        batches, message = 0, self._ahead
        while message is not None:
            offsets.append(message.offset)
            is_batch = message.header_type is HeaderType.RECORD_BATCH
            if batches and not is_batch:  # a reader continues with the complete file
                raise remote_error("UNAVAILABLE", "a dictionary follows a record batch")
            if not is_batch or ranges.is_all or ranges.within(batches, 1).ranges:
                group.append(self._take(message))
                yield group
                group = []
            batches += is_batch
            message = self._next()
        if group:
            yield group
        if ranges.ranges is not None and ranges.ranges[-1][1] > batches:
            raise InvalidRequestError(
                f"there are no record batches {ranges.ranges[-1][0]}:{ranges.ranges[-1][1]}; there "
                f"are {batches}, counted from 0"
            )
        self._wait_for(self._download.nbytes + 1)
        self._check_order(offsets)

    def _take(self, message: FramedMessage) -> SourceMessage:
        """Return a message once its body has arrived."""
        self._wait_for(message.end)
        nbytes = message.body_length
        body = [FileSpan(self._file, message.end - nbytes, nbytes)]
        rows = read_batch_header(message.metadata).rows
        return SourceMessage(message.metadata, body, nbytes, rows)

    def _check_order(self, offsets: list[int]) -> None:
        """Raise `DatasetError` if the footer states another order than that of the file."""
        dataset = ArrowFileDataset(
            LocalOrigin(f"/proc/self/fd/{self._file.fileno()}"), refuse_writers=False
        )
        with closing(dataset.open_file()) as file:
            index = dataset.load_contents(file).index
        blocks = () if index is None else index.blocks.iter_tuples(0, len(index.blocks))
        if [offset for offset, *_ in blocks] != offsets:
            raise self._error("a shard has its record batches in another order")

    def _wait_for(self, nbytes: int) -> None:
        try:
            self._download.wait_for(nbytes)
        except CacheFullError as error:  # a reader continues with the upstream
            raise remote_error("UNAVAILABLE", error.message) from None

    def _read(self, offset: int, nbytes: int) -> bytes:
        self._wait_for(offset + nbytes)
        return self._file.read(offset, nbytes)

    def _next(self) -> FramedMessage | None:
        try:
            message = self._reader.next_message()
        except ProtocolError as error:
            raise self._error(error.message) from None
        kinds = (HeaderType.SCHEMA, HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH)
        if message is not None and message.header_type not in kinds:
            raise self._error("a shard has a message of another kind")
        return message

    def _error(self, problem: str) -> DatasetError:
        """Return an error; raise that of the download instead if it fails: it is the cause."""
        self._wait_for(self._download.nbytes + 1)
        return DatasetError(f"{self._location}: {problem}")
