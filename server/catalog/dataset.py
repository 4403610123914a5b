"""Datasets and sources: the interface between the data and the streams that send it.

A `ServedDataset` opens a `Source` for each reader. A source yields groups of messages. The sender
numbers, splits and sends a group before it takes the next one, so one group bounds the memory
that a reader costs the server. A `GeneratorSource` makes a source of a generator.
"""

from __future__ import annotations

import hashlib
import math
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from ...errors import ClosedError, InvalidRequestError, remote_error
from ...formats.parquet.conversions import DEFAULT_OPTIONS, ParquetOptions
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import SourceFile
from .decoding_shares import DecodingShares

if TYPE_CHECKING:
    from ..config import Settings


GROUP_BYTES = 512 << 10
"""The largest size of a group of several messages, in bytes. A larger message has its own group."""
ENCODED_GROUP_BYTES = 1 << 20
"""The largest size of a group of several messages that are encoded, in bytes."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The work that a server does for one reader."""

    filter_seconds: float = 10.0
    """The processor time of a filter, in seconds, in addition to that for the size of the data."""
    parquet_bytes: int = 4 << 30
    """The largest decoded size of a column in a row group of a Parquet file, in bytes."""
    parquet_options: ParquetOptions = DEFAULT_OPTIONS
    """How to read values for which Parquet leaves a choice."""
    decoding: DecodingShares | None = None
    """The memory in which all readers decode row groups of Parquet files; None for no limit."""

    find_batch_bytes: Callable[[], float] = lambda: math.inf
    """Returns the decoded size that a batch should not exceed now. Any thread may call it."""

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        decoding: DecodingShares | None = None,
        find_batch_bytes: Callable[[], float] = lambda: math.inf,
    ) -> Budget:
        """Return the budget that a server's settings describe."""
        options = ParquetOptions(settings.parquet_int96, settings.parquet_keys)
        return cls(
            settings.filter_seconds, settings.parquet_bytes, options, decoding, find_batch_bytes
        )


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
    find_group_bytes: Callable[[], int] = lambda: GROUP_BYTES
    """Returns the bytes of small messages to read from a file at a time."""
    budget: Budget = DEFAULT_BUDGET
    """Bounds on reading the dataset."""
    devices: frozenset[int] = frozenset()
    """The types of devices, as in DLPack, whose memory bodies may be in: as `DeviceSpan`."""


class Writers(Enum):
    """What happens if another process has a file of a dataset open for writing."""

    REFUSED = "refused"
    """Reads fail if the process maps the file or cannot be examined. Otherwise they get checked
    copies, and fail if the file changes. No reader gets a mixture of two states of the file."""
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
        fail. Raises `InvalidRequestError` if the filter fails for a value, `ExhaustedError` if the
        stream exceeds its budget, and `ClosedError` if the source was closed.
        """
        ...

    def close(self) -> None:
        """Release files and threads, whether or not all groups were read. Idempotent.

        Another thread may be inside the iterator. That thread then releases them when it is done.
        Regions of files cannot be sent any more.
        """
        ...


Measures = Generator[Any, None, None]
"""A generator of measures of record batches; see `ServedDataset.measure_batches`."""


class StoredFile(NamedTuple):
    """An open file that has exactly the data of a request."""

    file: SourceFile
    kind: str
    """The type of the file, as in `ServedDataset.kind`."""
    version: str
    """The version of the dataset that has the file."""
    close: Callable[[], object]
    """Releases the file."""


_T = TypeVar("_T")


def hash_version(*identities: Iterable[int | str]) -> str:
    """Return an opaque version text for the state of some files.

    Examples
    --------
    >>> hash_version((1, 2), (3,)) == hash_version((1, 2), (4,))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for identity in identities:
        digest.update(repr(tuple(identity)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_version(request: Request, version: str) -> None:
    """Check that a request is for a version, which it may name by its number, or for any.

    Raises `RemoteError` (FAILED_PRECONDITION) if it is for another version.
    """
    if request.version is not None and not names_version(request.version, version):
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the dataset {request.dataset!r} has changed, or never had the version "
            f"{request.version}: its version is {version}; request a new ticket",
            stream=request.dataset,
        )


def names_version(text: str, version: str) -> bool:
    """Return whether a text is a version, or the number that the version begins with.

    Examples
    --------
    >>> names_version("3", "3-9f2c"), names_version("3", "31-9f2c")
    (True, False)
    """
    is_number = text.isascii() and text.isdigit()
    return text == version or (is_number and version.startswith(f"{text}-"))


def check_batches(request: Request, count: int) -> None:
    """Check that the data has the record batches that a request is for.

    Raises `InvalidRequestError` if it does not.
    """
    ranges = request.batch_ranges
    if ranges is not None and ranges[-1][1] > count:
        first, end = ranges[-1]
        raise InvalidRequestError(
            f"there are no record batches {first}:{end}; there are {count}, counted from 0",
            stream=request.dataset,
        )


def select_shards(request: Request, shards: Sequence[_T]) -> Sequence[_T]:
    """Return the shards that a request is for: one of them, or all.

    Raises `InvalidRequestError` if the shard does not exist.
    """
    if request.shard is None:
        return shards
    if request.shard >= len(shards):
        raise InvalidRequestError(
            f"there is no shard {request.shard}; the dataset has {len(shards)}",
            stream=request.dataset,
        )
    return shards[request.shard : request.shard + 1]


class ServedDataset(ABC):
    """Record batches with one schema, or tensors. Safe to use from several threads."""

    _kind: str

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of all batches."""

    @property
    @abstractmethod
    def rows(self) -> int | None:
        """The number of rows; None if it is unknown until the data is decoded.

        Blocking: the first use may read the metadata of all messages. Raises `DatasetError` if
        the data is no longer readable.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int | None:
        """The stored size in bytes; None if unknown."""

    @property
    @abstractmethod
    def version(self) -> str:
        """An opaque text that changes when the data changes. Blocking: it looks at the files.

        The last known version, if the data is no longer readable.
        """

    def update_description(self) -> None:  # noqa: B027
        """Look at the data again, so that schema and rows are those of its current version.

        Raises `DatasetError` if the data is no longer readable.
        """

    def describe_version(self) -> str:
        """Return the version, and then call `update_description`.

        Nobody who names this version reads newer data than the description states.
        """
        version = self.version
        self.update_description()
        return version

    @property
    def kind(self) -> str:
        """The type of the data: ``arrow file``, ``parquet directory``, ``table``."""
        return self._kind

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards in order; at least one. Blocking, and raises as `rows` does."""
        return (Shard(self.rows, self.nbytes),)

    @property
    def location(self) -> str | None:
        """The path, URL or pattern, as it was given. Readers never see it."""
        return None

    @property
    def writers(self) -> Writers | None:
        """What happens if another process writes to a file of the dataset.

        None means that no process may: the dataset is published or not in files.
        """
        return None

    @property
    def device_type(self) -> int | None:
        """The type of the device that has the data, as in DLPack; None for the host."""
        return None

    @property
    def app_metadata(self) -> Mapping[str, Any]:
        """The fields for the ``app_metadata`` of the FlightInfo that this kind of dataset has."""
        return {}

    @abstractmethod
    def open(self, request: Request, encoding: Encoding) -> Source:
        """Open the dataset for one reader, who closes the source. Blocking: it reads files.

        The request has precedence over `encoding`. It has rows only beside record batches and a
        filter; see `resolve_rows`. Raises `DatasetError` if the data is no longer readable,
        `NotFoundError` if a column does not exist, `InvalidRequestError` if the request does not
        fit the dataset, `ExhaustedError` if it exceeds ``encoding.budget``, and `RemoteError`
        (FAILED_PRECONDITION) if the dataset does not have the requested version, or can be read
        only once and was read before.
        """

    @abstractmethod
    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each stored record batch or row group of one shard.

        It is the number of rows that pass the filter or, if the request has a column, the lengths
        of the values of that column in these rows. Only the shard, the version, the filter and the
        column of the request apply. Blocking. Raises `SplitArrowError` as `open` does; with the
        code FAILED_PRECONDITION if the data can be read only once.
        """

    def open_stored_file(self, request: Request) -> StoredFile | None:
        """Open the file with the data of a request for a whole dataset or shard, as it is stored.

        The caller closes it. None if there is no such file. Raises as `open` does.
        """
        del request
        return None

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each batch of one shard contributes; see `measure_batches`."""
        return list(self.measure_batches(replace(request, columns=None), encoding))

    def close(self) -> None:  # noqa: B027
        """Release the dataset's resources. Open sources stay usable.

        A reader may open the dataset afterwards. It gets all data, or an error.
        """


class FixedDataset(ServedDataset):
    """A dataset that never changes. Its version is new and random by default."""

    def __init__(
        self, schema: pa.Schema, rows: int | None, nbytes: int | None, version: str | None = None
    ) -> None:
        self._schema = schema
        self._rows = rows
        self._nbytes = nbytes
        self._version = version or uuid.uuid4().hex

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self._schema

    @property
    def rows(self) -> int | None:
        """The number of rows; None if it is unknown."""
        return self._rows

    @property
    def nbytes(self) -> int | None:
        """The size in bytes; None if it is unknown."""
        return self._nbytes

    @property
    def version(self) -> str:
        """The version; see `ServedDataset.version`."""
        return self._version

    def check_request(self, request: Request) -> None:
        """Check the version and the shard of a request; see `ServedDataset.open`."""
        check_version(request, self._version)
        select_shards(request, self.shards)


class DatasetView(ServedDataset):
    """A dataset that is described by another one."""

    @property
    @abstractmethod
    def described(self) -> ServedDataset:
        """The dataset with the description."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self.described.schema

    @property
    def rows(self) -> int | None:
        """The number of rows; see `ServedDataset.rows`."""
        return self.described.rows

    @property
    def nbytes(self) -> int | None:
        """The stored size in bytes."""
        return self.described.nbytes

    @property
    def kind(self) -> str:
        """The type of the data."""
        return self.described.kind

    @property
    def version(self) -> str:
        """The version of the data."""
        return self.described.version

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards in order."""
        return self.described.shards


_Version = TypeVar("_Version", bound=ServedDataset)


class VersionedDataset(DatasetView, Generic[_Version]):
    """A dataset of which a new reader gets the current version, or an older one by request."""

    _MAX_OLD = 8

    def __init__(self, current: _Version) -> None:
        self._lock = threading.Lock()
        self._current = current
        self._old: dict[int, _Version] = {}

    @property
    def described(self) -> _Version:
        """The current version, as far as it is known now."""
        return self._current

    def _keep_old(self, number: int, version: _Version) -> None:
        self._old[number] = version
        while len(self._old) > self._MAX_OLD:
            del self._old[next(iter(self._old))]


def parse_version_number(version: str) -> int | None:
    """Return the number at the beginning of a version such as ``3-9f2c``; None if it has none."""
    number = version.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 18 else None


MessageGroups = Generator[Sequence[SourceMessage], None, None]
"""A generator of groups of messages; see `Source`."""


class GeneratorSource:
    """A `Source` of a generator, which runs on the thread that takes the next group."""

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
