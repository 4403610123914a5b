"""Datasets and sources: the interface between the data and the streams that send it.

A dataset opens a `Source` for each reader. A source yields groups of messages. The sender
numbers, splits and sends a group before it takes the next one, so one group bounds the memory
that a reader costs the server. A `GeneratorSource` makes a source of a generator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from ...errors import ClosedError
from ...formats.parquet.conversions import DEFAULT_OPTIONS, ParquetOptions
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import SourceFile

if TYPE_CHECKING:
    from ..config import Settings


GROUP_BYTES = 512 << 10
"""The largest size of a group of several messages, in bytes. A larger message has its own group."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The work that a server does for one reader."""

    filter_seconds: float = 10.0
    """The processor time of a filter, in seconds, in addition to that for the size of the data."""
    parquet_bytes: int = 4 << 30
    """The largest decoded size of a column in a row group of a Parquet file, in bytes."""
    parquet_options: ParquetOptions = DEFAULT_OPTIONS
    """How to read values for which Parquet leaves a choice."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Budget:
        """Return the budget that a server's settings describe."""
        options = ParquetOptions(settings.parquet_int96, settings.parquet_keys)
        return cls(settings.filter_seconds, settings.parquet_bytes, options)


DEFAULT_BUDGET = Budget()


@dataclass(frozen=True, slots=True)
class Encoding:
    """The server's defaults for encoding record batches."""

    compression: str | None = None
    """``none``, ``lz4`` or ``zstd``. None sends files unchanged and compresses nothing else."""
    batch_rows: int | None = None
    """The largest number of rows in a batch. None leaves the size to the dataset."""
    regions: bool = False
    """Whether to send every body of a file as one region of the file, even if it is small."""
    budget: Budget = DEFAULT_BUDGET
    """Bounds on reading the dataset."""
    devices: frozenset[int] = frozenset()
    """The types of devices, as in DLPack, whose memory bodies may be in: as `DeviceSpan`."""


class Writers(Enum):
    """What happens if another process has a file of a dataset open for writing."""

    REFUSED = "refused"
    """Reads fail, so that no reader gets a mixture of two states of the file."""
    UNDETECTED = "undetected"
    """Reads fail only if the file's modification time changes: there are no file leases."""
    ALLOWED = "allowed"
    """Reads fail only if the file's modification time changes, at the operator's request."""


class Shard(NamedTuple):
    """A part of a dataset that can be read separately. All shards in order form the dataset."""

    rows: int | None
    """The number of rows. None if it is unknown until the shard is decoded."""
    nbytes: int | None
    """The stored size in bytes; None if unknown."""


class Source(Protocol):
    """The messages of one dataset for one reader: the schema message, then the others in order."""

    blocking: bool
    """Whether taking the next group may take long, and so belongs on a worker thread.

    Only a blocking source can be prefetched. A group of any other source may refer to a file that
    the source closes when the next group is taken, so it must be sent before that."""

    region_files: Sequence[Path]
    """The files whose regions are the bodies, if each body is exactly one region of a file.
    Empty otherwise. Only `Encoding.regions` makes bodies into regions."""

    def __iter__(self) -> Iterator[Sequence[SourceMessage]]:
        """Yield groups of messages. No group is empty.

        Raises `DatasetError` if the data cannot be read, is truncated, or has changed since the
        source was opened. Groups that were yielded before may be wrong, too, so the stream has to
        fail. Raises `InvalidRequestError` if the filter fails for a value. Raises `ExhaustedError`
        if the stream exceeds its budget. Raises `ClosedError` if the source was closed.
        """
        ...

    def close(self) -> None:
        """Release files and threads, whether or not all groups were read. Idempotent.

        Another thread may be inside the iterator. That thread then releases them when it is done.
        Regions of files cannot be sent any more.
        """
        ...


class Dataset(Protocol):
    """Record batches with one schema. Safe to use from several threads."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        ...

    @property
    def rows(self) -> int | None:
        """The number of rows; None if it is unknown until the data is decoded.

        Blocking: the first use may read the metadata of all messages.

        Raises `DatasetError` if the data is no longer readable.
        """
        ...

    @property
    def nbytes(self) -> int | None:
        """The stored size in bytes; None if unknown."""
        ...

    @property
    def kind(self) -> str:
        """The type of the data: ``arrow file``, ``parquet directory``, ``table``."""
        ...

    @property
    def version(self) -> str:
        """An opaque text that changes when the data changes.

        Blocking: it looks at the files.
        """
        ...

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards in order; at least one. Blocking, like `rows`.

        Raises `DatasetError` if the data is no longer readable.
        """
        ...

    def open(self, request: Request, encoding: Encoding) -> Source:
        """Open the dataset for one reader. Blocking: it reads files.

        `request`: It has rows only beside record batches and a filter; see `resolve_rows`.
        `encoding`: the request has precedence. Return the caller closes it. Raises `DatasetError`
        if the data is no longer readable. Raises `NotFoundError` if a column does not exist. The
        error suggests similar names. Raises `InvalidRequestError` if the request does not fit the
        dataset: the shard does not exist, or the filter is malformed or does not fit the columns.
        Raises `ExhaustedError` if the request exceeds ``encoding.budget``. Raises `RemoteError`:
        With the code FAILED_PRECONDITION, if the dataset does not have the requested version, or
        can be read only once and was read before.
        """
        ...

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each stored record batch or row group of one shard contributes.

        Blocking. With a filter, it reads the columns that the filter refers to.

        `request`: the other fields do not apply. Raises `SplitArrowError` as `open` does; with the
        code FAILED_PRECONDITION if the data can be read only once.
        """
        ...

    def close(self) -> None:
        """Release the dataset's resources. Open sources stay usable."""
        ...


MessageGroups = Generator[Sequence[SourceMessage], None, None]
"""A generator of groups of messages; see `Source`."""


class GeneratorSource:
    """A `Source` whose groups come from a generator.

    `groups`: It runs on the thread that takes the next group.
    """

    def __init__(
        self, groups: MessageGroups, *, blocking: bool, region_files: Sequence[Path] = ()
    ) -> None:
        self.blocking = blocking
        self.region_files = region_files
        self.region: SourceFile | None = None
        """The file that every body is a part of; None if there are several, or it is unknown."""
        self._groups = groups
        self._resources = ExitStack()
        self._running = threading.Lock()
        self._closed = False
        self._released = False

    def call_on_close(self, release: Callable[[], object]) -> None:
        """Release a resource when the source is closed, after the generator.

        Only the code that opens the source may call this, before it hands the source out.
        """
        self._resources.callback(release)

    def __iter__(self) -> Iterator[Sequence[SourceMessage]]:
        return self

    def __next__(self) -> Sequence[SourceMessage]:
        try:
            with self._running:
                if not self._closed:
                    return next(self._groups)
        finally:
            if self._closed:
                self.close()
        raise ClosedError("the source is closed")

    def close(self) -> None:
        """Close the generator and release the resources.

        If another thread runs the generator, that thread does it as soon as the generator yields.
        """
        self._closed = True
        if self._running.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._running.release()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            with self._resources:
                self._groups.close()
