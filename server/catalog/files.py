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
from ...protocol.request import Request
from ...transport.regions import RegionFile
from .base import Encoding
from .encoded import Batches, encoded_groups
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

        The limit and the size of batches are hints here; they are applied later. Raises
        `DatasetError` if the file cannot be read, or changed since it was opened.
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
    def version(self) -> tuple[int, ...]:
        """Which state of the file was looked into last."""
        return self._contents.version

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
            contents = self.contents(file)
            selection = Selection.resolve(request, encoding, contents.schema)
            if lies_as_wanted(selection, contents.stored, file):
                groups = _stored_groups(file, contents.stored)
                return GroupSource(groups, blocking=False, on_close=file.close)
            batches = self.batches(file, contents, selection)
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


def lies_as_wanted(selection: Selection, stored: StoredMessages | None, file: RegionFile) -> bool:
    """Tell whether messages as they lie in a file are what a reader wants.

    Raises
    ------
    DatasetError
        If the file cannot be read.
    """
    if stored is None or selection.columns is not None:
        return False
    if selection.compression not in (None, stored.codec or "none") and len(stored.blocks):
        return False
    if selection.limit is None and selection.batch_rows is None:
        return True
    rows, largest = stored.extent(file)
    enough = selection.limit is None or selection.limit >= rows
    return enough and (selection.batch_rows is None or selection.batch_rows >= largest)


def _stored_groups(file: RegionFile, stored: StoredMessages | None) -> Groups:
    assert stored is not None
    yield [stored.schema_message()]
    yield from stored.groups(file)


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
