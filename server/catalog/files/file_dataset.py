"""Datasets in one file: inspecting the file, noticing changes, and opening it for readers."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from ....errors import DatasetError
from ....filters.ranges import UNKNOWN, Range
from ....formats.arrow.schema import has_utf8_names
from ....protocol.request import Request
from ....transport.memory.files import SourceFile
from ...logs import get_logger
from ..dataset import (
    Encoding,
    GeneratorSource,
    Measures,
    ServedDataset,
    StoredFile,
    Writers,
    check_batches,
    check_version,
    hash_version,
    select_shards,
)
from ..messages.message_index import MessageIndex
from ..messages.passthrough import PassthroughMessages
from ..messages.plan import add_footer, file_groups, keeps_messages, plan_file
from ..messages.reencoding import Batches, encode_groups, measure_batches
from ..selection import Selection
from .origins import FileOrigin, Identity, LocalOrigin

_SMALL_INDEX = 256
"""The messages of an index that is kept in any case: 6 KiB."""


@dataclass(frozen=True, slots=True)
class FileContents:
    """The result of inspecting one state of a file."""

    identity: Identity
    """The state of the file."""
    schema: pa.Schema
    """The schema of all batches."""
    nbytes: int
    """The size of the file in bytes."""
    rows: int | None = None
    """The number of rows; None if the file does not state it in one place."""
    batch_rows: int | None = None
    """The number of rows to decode at a time; None if the file has its own record batches."""
    index: MessageIndex | None = None
    """The messages of the file; None if it has none that can be sent without decoding."""
    footer_metadata: Mapping[bytes, bytes] | None = None
    """The custom metadata of the footer to send to readers; None if there is none."""
    plan: Any = None
    """What the type of the file needs beside the schema to decode it."""
    is_complete: bool = True
    """Whether the index has its blocks."""


class FileDataset(ServedDataset):
    """A dataset in one file. A subclass implements one type of file.

    An index grows with the file. One of few messages is kept even without `keep_index`. The caller
    may pass the open `file`, which stays the caller's to close. Raises `DatasetError` if the file
    cannot be read, is truncated or is malformed, or is open for writing.
    """

    decodes_batches: ClassVar[bool] = False
    """Whether pyarrow builds the batches from another format, which makes them valid."""
    states_batch_rows: ClassVar[bool] = False
    """Whether `list_batch_rows` decodes nothing, even without an index."""
    reads_fields: ClassVar[bool] = False
    """Whether `read_batches` returns the fields of a selection as columns."""

    def __init__(
        self,
        source: str | os.PathLike[str] | FileOrigin,
        *,
        keep_index: bool = True,
        refuse_writers: bool = True,
        file: SourceFile | None = None,
    ) -> None:
        is_path = isinstance(source, (str, os.PathLike))
        self.origin: FileOrigin = LocalOrigin(source) if is_path else source
        """The file."""
        self.path = self.origin.path
        """The path of the file, or the URL of an object."""
        self._keep_index = keep_index
        self._refuse_writers = refuse_writers
        self._lease_problem: str | None = None
        self._is_watched = False
        self._lock = threading.Lock()
        self._counted_rows: tuple[Identity, int] | None = None
        if file is None:
            with closing(self.open_file()) as opened:
                self._contents = self._without_index(self._inspect_checked(opened))
        else:
            self._report_writers(file)
            self._contents = self._without_index(self._inspect_checked(file))

    @abstractmethod
    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file; raise `DatasetError` if it is malformed."""

    @abstractmethod
    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches with the selected columns, in order.

        The filter, the limit and the batch size are hints. Only the stored record batches or row
        groups of `Selection.batches` are read. Raises
        `DatasetError` if the file cannot be read or has changed since it was opened.
        """

    @property
    def location(self) -> str:
        """The path, as it was given. Readers never see it."""
        return str(self.path)

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self._contents.schema

    @property
    def nbytes(self) -> int | None:
        """The size of the file in bytes."""
        return self._contents.nbytes

    @property
    def identity(self) -> Identity:
        """The state of the file when it was last inspected."""
        return self._contents.identity

    @property
    def index(self) -> MessageIndex | None:
        """The index of the messages, perhaps without blocks; see `FileContents.index`."""
        return self._contents.index

    @property
    def version(self) -> str:
        """The version of the file; the last known one if the file does not exist any more."""
        try:
            return hash_version(self.origin.read_identity())
        except OSError:
            return hash_version(self.identity)

    def update_description(self) -> None:
        """Inspect the file if it has changed; see `ServedDataset.update_description`."""
        with suppress(OSError):  # opening it states why
            if self.origin.read_identity() == self.identity:
                return
        with closing(self.open_file()) as file:
            self.load_contents(file)

    @property
    def rows(self) -> int | None:
        """The number of rows; None if it is unknown until the file is decoded.

        If the file does not state it in one place, the metadata of all messages is read, once for
        each state of the file.

        Raises `DatasetError` if the file is no longer readable.
        """
        if self._contents.rows is not None:
            return self._contents.rows
        with closing(self.open_file()) as file:
            counted = self._counted_rows
            if counted is None or counted[0] != file.version:
                index = self.load_contents(file).index
                if index is None:
                    return self._contents.rows
                counted = self._counted_rows = (file.version, sum(index.list_rows(file)))
            return counted[1]

    @property
    def writers(self) -> Writers:
        """What happens if another process has the file open for writing."""
        if not self._refuse_writers:
            return Writers.ALLOWED
        return Writers.REFUSED if self._lease_problem is None else Writers.UNDETECTED

    def open_file(self, *, waits: bool = True) -> SourceFile:
        """Open the file; see `SourceFile` for the argument and the errors."""
        file = self.origin.open(refuse_writers=self._refuse_writers, waits=waits)
        self._report_writers(file)
        return file

    def _report_writers(self, file: SourceFile) -> None:
        """Log it if other processes may write, or are writing, to a file that was just opened."""
        if file.lease_problem is not None and self._lease_problem is None:
            get_logger("files").warning(
                "a process that writes to this file is noticed by its modification time only",
                path=str(self.path),
                reason=file.lease_problem,
            )
        self._lease_problem = file.lease_problem
        if file.writers and not self._is_watched:
            get_logger("files").warning(
                "readers get checked copies of a file that is open for writing",
                path=str(self.path),
                writer=str(file.writers[0]),
            )
        self._is_watched = bool(file.writers)

    def load_contents(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, and inspect it if it has changed.

        Raises `DatasetError` if the file has changed and is malformed now.
        """
        with self._lock:
            contents = self._contents
            if contents.identity == file.version and contents.is_complete:
                return contents
            contents = self._inspect_checked(file)
            self._contents = self._without_index(contents)
            return contents

    def skip_rows(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Selection:
        """Return an equal selection that skips whole record batches instead of decoding them.

        Raises `DatasetError` if the file cannot be read or does not match its index.
        """
        states_rows = self.states_batch_rows or contents.index is not None
        if not selection.offset or selection.filter is not None or not states_rows:
            return selection
        offset, skipped = selection.offset, 0
        counts = self.list_batch_rows(file, contents)
        for rows in selection.batches.select(counts):
            if offset < rows or not offset:
                break
            offset -= rows
            skipped += 1
        else:
            offset = 0
        batches = selection.batches.skip(skipped, len(counts)) if skipped else selection.batches
        return replace(selection, batches=batches, offset=offset)

    def list_batch_rows(self, file: SourceFile, contents: FileContents) -> list[int]:
        """Return the rows of each stored record batch or row group.

        Raises `DatasetError` if the file cannot be read or does not match its index.
        """
        if contents.index is not None:
            return contents.index.list_rows(file)
        with closing(self.read_batches(file, contents, Selection(contents.schema))) as batches:
            return [batch.num_rows for batch, _ in batches]

    def find_range(self, index: int) -> Range:
        """Return what is known of a column without opening the file, for pruning."""
        del index
        return UNKNOWN

    def count_batches(self, file: SourceFile, contents: FileContents) -> int:
        """Return the number of stored record batches or row groups; see `list_batch_rows`."""
        if contents.index is not None:
            return contents.index.count_batches(file)
        return len(self.list_batch_rows(file, contents))

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each stored batch; see `ServedDataset.measure_batches`."""
        with closing(self.open_file()) as file:
            check_version(request, hash_version(file.version))
            select_shards(request, (self,))
            contents = self.load_contents(file)
            selection = Selection.for_measuring(
                request, encoding, contents.schema, reads_fields=self.reads_fields
            )
            rows = self.list_batch_rows(file, contents)
            read = partial(self.read_batches, file, contents)
            yield from measure_batches(
                selection, read, rows, str(self.path), is_valid=self.decodes_batches
            )

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the file for one reader; see `ServedDataset.open`."""
        return self._open_file(self.open_file(), None, request, encoding)

    def open_stored_file(self, request: Request) -> StoredFile | None:
        """Open the file; see `ServedDataset.open_stored_file`."""
        file = self.open_file()
        try:
            version = hash_version(file.version)
            check_version(request, version)
            select_shards(request, (self,))
            self.load_contents(file)  # which inspects a file that was replaced
        except BaseException:
            file.close()
            raise
        return StoredFile(file, self.kind, version, file.close)

    def open_at_once(self, request: Request, encoding: Encoding) -> GeneratorSource | None:
        """Open the file as `open` does, if that reads nothing of it.

        Return None if the messages cannot be sent as they are stored, if the file has changed since
        it was inspected, is open for writing, or is in an object store.
        """
        contents = self._contents
        if contents.index is None or not contents.is_complete or self.origin.is_remote:
            return None
        if not keeps_messages(request, encoding):
            return None
        try:
            file = self.open_file(waits=False)
        except BlockingIOError:
            return None
        if file.version != contents.identity:
            file.close()
            return None
        return self._open_file(file, contents, request, encoding)

    def _open_file(
        self, file: SourceFile, contents: FileContents | None, request: Request, encoding: Encoding
    ) -> GeneratorSource:
        try:
            if request.version is not None:
                check_version(request, hash_version(file.version))
            select_shards(request, (self,))
            if contents is None:
                contents = self.load_contents(file)
            selection = Selection.resolve(
                request, encoding, contents.schema, reads_fields=self.reads_fields
            )
            if request.batches is not None:
                check_batches(request, self.count_batches(file, contents))
            source = self._open_selection(file, contents, selection, encoding)
        except BaseException:
            file.close()
            raise
        source.call_on_close(file.close)
        return source

    def close(self) -> None:
        """Drop the index. Open sources stay usable."""
        with self._lock:
            self._keep_index = False
            self._contents = _without_blocks(self._contents)

    def _open_selection(
        self, file: SourceFile, contents: FileContents, selection: Selection, encoding: Encoding
    ) -> GeneratorSource:
        selection = self.skip_rows(file, contents, selection)
        messages = None
        if not self.origin.is_remote:
            regions = encoding.regions and not file.writers
            messages = plan_file(
                selection,
                contents.index,
                file,
                regions=regions,
                find_group_bytes=encoding.find_group_bytes,
            )
        if messages is None:
            groups = encode_groups(
                selection,
                self.read_batches(file, contents, selection.for_reading(contents.schema)),
                str(self.path),
                is_valid=self.decodes_batches,
                schema_metadata=None if contents.index is None else contents.index.schema_metadata,
            )
        else:
            groups = file_groups(file, messages)
        if contents.footer_metadata is not None:
            groups = add_footer(groups, contents.footer_metadata)
        source = GeneratorSource(groups, blocking=messages is None or bool(file.writers))
        if isinstance(messages, PassthroughMessages) and messages.regions:
            source.region_files = (Path(self.path),)
            source.region = file
        return source

    def _inspect_checked(self, file: SourceFile) -> FileContents:
        try:
            contents = self.inspect(file)
        except DatasetError as error:
            if not file.writers:
                raise
            raise DatasetError(f"{error}; {file.describe_writer()}") from None
        if not has_utf8_names(contents.schema):
            raise DatasetError(f"{self.path} has column names that are not UTF-8")
        file.check()
        return contents

    def _without_index(self, contents: FileContents) -> FileContents:
        """Return contents that can be kept between readers."""
        index = contents.index
        is_kept = self._keep_index or index is None or len(index.blocks) <= _SMALL_INDEX
        return contents if is_kept else _without_blocks(contents)


def _without_blocks(contents: FileContents) -> FileContents:
    if contents.index is None:
        return contents
    return replace(contents, index=contents.index.without_blocks(), is_complete=False)
