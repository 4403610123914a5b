"""What datasets in one file have in common: how they are opened, and noticing changes."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from ...errors import DatasetError, ProtocolError
from ...formats.arrow.truncation import has_unions
from ...protocol.request import Request
from ...transport.regions import RegionFile
from .asked import asked_shards, check_version, version_text
from .base import Encoding, Shard
from .encoded import Batches, encoded_groups
from .projected import ProjectedMessages
from .selection import Selection, has_text_names
from .source import Groups, GroupSource
from .stored import StoredMessages


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found when a file was looked into."""

    version: tuple[int, ...]
    """Which state of the file this is about."""
    schema: pa.Schema
    """The schema of all its batches."""
    nbytes: int
    """The size of the file in bytes."""
    rows: int | None = None
    """How many rows it has, if the file tells without being read."""
    batch_rows: int | None = None
    """How many rows a batch should have, where the file has no batches of its own."""
    stored: StoredMessages | None = None
    """The messages, if they can be sent as they lie."""


class FileDataset(ABC):
    """A dataset in one file; a subclass knows the kind of file.

    Parameters
    ----------
    path : path-like
        The file.
    keep_index : bool
        Whether the index of its messages is kept between readers. It grows with the file.

    Raises
    ------
    DatasetError
        If the file cannot be read, is truncated, or is malformed.
    """

    _kind: ClassVar[str]

    is_decoded: ClassVar[bool] = False
    """Whether the batches are made when they are read, and so are valid."""

    def __init__(self, path: str | os.PathLike[str], *, keep_index: bool = True) -> None:
        self.path = Path(path)
        """Where the file lies."""
        self._keep_index = keep_index
        self._lock = threading.Lock()
        self._extent: tuple[tuple[int, ...], int] | None = None
        with closing(RegionFile(self.path)) as file:
            self._contents = self._kept(self._checked(file))

    @abstractmethod
    def look_into(self, file: RegionFile) -> Contents:
        """Return what is in the file; raise `DatasetError` if it is not as it should be."""

    @abstractmethod
    def batches(self, file: RegionFile, contents: Contents, selection: Selection) -> Batches:
        """Yield the record batches, of the columns selected and in that order.

        Filter, limit and the size of batches are hints here; they are applied later. The first
        batches or row groups are left out as `Selection.first` says. Raises `DatasetError` if
        the file cannot be read, or changed since it was opened.
        """

    @property
    def kind(self) -> str:
        """What kind of file it is: ``arrow file``, ``parquet file``."""
        return self._kind

    @property
    def schema(self) -> pa.Schema:
        """The schema of all its batches."""
        return self._contents.schema

    @property
    def nbytes(self) -> int | None:
        """The size of the file in bytes."""
        return self._contents.nbytes

    @property
    def identity(self) -> tuple[int, ...]:
        """Which state of the file was looked into last."""
        return self._contents.version

    @property
    def version(self) -> str:
        """What tells the state of the file from others; the last one known if it is gone."""
        try:
            return version_text(file_identity(self.path))
        except OSError:
            return version_text(self.identity)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The one shard that it is.

        Raises
        ------
        DatasetError
            If the file is not readable any more.
        """
        return (Shard(self.rows, self.nbytes),)

    @property
    def layout(self) -> StoredMessages | None:
        """How its messages lie, if they can be sent so; perhaps without the blocks."""
        return self._contents.stored

    @property
    def rows(self) -> int | None:
        """How many rows it has; None if that cannot be told without decoding it.

        Where the file does not say it in one place, the metadata of all messages is read, once
        for each state of the file.

        Raises
        ------
        DatasetError
            If the file is not readable any more.
        """
        if self._contents.rows is not None:
            return self._contents.rows
        with closing(RegionFile(self.path)) as file:
            counted = self._extent
            if counted is None or counted[0] != file.version:
                stored = self.contents(file).stored
                if stored is None:
                    return self._contents.rows
                counted = self._extent = (file.version, stored.extent(file).rows)
            return counted[1]

    def skipped(self, file: RegionFile, contents: Contents, selection: Selection) -> Selection:
        """Return the selection with what need not even be read taken from its offset.

        Raises
        ------
        DatasetError
            If the file cannot be read, or holds something else than its index says.
        """
        if not selection.offset or selection.filter is not None or contents.stored is None:
            return selection
        batch, row = contents.stored.locate(file, selection.offset)
        return replace(selection, first=batch, offset=row)

    def contents(self, file: RegionFile) -> Contents:
        """Return what is in `file`, which is this dataset's.

        Raises
        ------
        DatasetError
            If the file changed since it was last looked into, and is not as it should be now.
        """
        with self._lock:
            contents = self._contents
            if contents.version == file.version and self._keep_index:
                return contents
            contents = self._checked(file)
            self._contents = self._kept(contents)
            return contents

    def open(self, request: Request, encoding: Encoding) -> GroupSource:
        """Begin to read it for one reader; see `Dataset`."""
        file = RegionFile(self.path)
        try:
            check_version(request, version_text(file.version))
            asked_shards(request, (self,))
            contents = self.contents(file)
            selection = self.skipped(
                file, contents, Selection.resolve(request, encoding, contents.schema)
            )
            messages = as_it_lies(selection, contents.stored, file)
            if messages is not None:
                groups = _stored_groups(file, messages, regions=encoding.regions)
                whole = encoding.regions and isinstance(messages, StoredMessages)
                placed = (self.path,) if whole else ()
                return GroupSource(groups, blocking=False, on_close=file.close, placed=placed)
            batches = self.batches(file, contents, selection.to_read(contents.schema))
            groups = encoded_groups(selection, batches, str(self.path), is_valid=self.is_decoded)
            return GroupSource(groups, blocking=True, on_close=file.close)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Let go of the index. Between readers no file is open."""
        with self._lock:
            self._keep_index = False
            self._contents = self._kept(self._contents)

    def _checked(self, file: RegionFile) -> Contents:
        contents = self.look_into(file)
        if not has_text_names(contents.schema):
            raise DatasetError(f"{self.path} has names of columns that are not UTF-8")
        return contents

    def _kept(self, contents: Contents) -> Contents:
        if self._keep_index or contents.stored is None:
            return contents
        return replace(contents, stored=contents.stored.without_blocks())


def as_it_lies(
    selection: Selection, stored: StoredMessages | None, file: RegionFile
) -> StoredMessages | ProjectedMessages | None:
    """Return what a reader wants, if it lies in a file as such: messages, or their columns.

    Raises
    ------
    DatasetError
        If the file cannot be read.
    """
    if stored is None or selection.filter is not None or selection.offset:
        return None
    if selection.compression not in (None, stored.codec or "none") and len(stored.blocks):
        return None
    if selection.first:
        stored = stored.after(file, selection.first)
    if not _fits(selection, stored, file):
        return None
    if selection.columns is None:
        return stored
    return ProjectedMessages.of(stored, selection, file)


def _fits(selection: Selection, stored: StoredMessages, file: RegionFile) -> bool:
    """Tell whether limit and batch size leave the messages as they are."""
    if selection.limit is None and selection.batch_rows is None:
        return True
    rows, largest = stored.extent(file)
    enough = selection.limit is None or selection.limit >= rows
    fits = selection.batch_rows is None or selection.batch_rows >= largest
    return enough and fits


def included_fields(selection: Selection, contents: Contents) -> list[int]:
    """Return the columns that pyarrow is to read from a file; none means all.

    It miscounts the buffers of unions of old versions if it has to leave them out.
    """
    return [] if has_unions(contents.schema) else selection.included or []


def file_identity(path: Path) -> tuple[int, int, int, int]:
    """Return what identifies the contents of a file, as `RegionFile.version` has it."""
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _stored_groups(
    file: RegionFile, messages: StoredMessages | ProjectedMessages, *, regions: bool
) -> Groups:
    yield [messages.schema_message()]
    if regions and isinstance(messages, StoredMessages):
        yield from messages.regions(file)
    else:
        yield from messages.groups(file)


@contextmanager
def reading(path: Path, what: str) -> Generator[None]:
    """Turn what libraries raise about a file into a `DatasetError` of one line.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        What it should be: ``an Arrow IPC file``.
    """
    try:
        yield
    except ProtocolError as error:
        raise DatasetError(f"cannot read {path} as {what}: {error.message}") from None
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DatasetError(f"cannot read {path} as {what}: {reason}") from None


def arrow_handle(file: RegionFile) -> pa.OSFile:
    """Return a handle for pyarrow on a file that is open: not on what its path names by now.

    It is not mapped. The caller closes it.
    """
    return pa.OSFile(f"/proc/self/fd/{file.fileno()}", "rb")
