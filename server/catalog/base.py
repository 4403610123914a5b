"""What a dataset is to the server, whatever it is made of.

A dataset opens a `Source` for each reader. A source yields groups of messages; the session
numbers, splits and sends one group before it asks for the next, so that a group is all that a
reader makes the server hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from ...protocol.request import Request
from ...protocol.splitter import SourceMessage

GROUP_BYTES = 512 << 10
"""How many bytes of small messages may share a group; a larger message is one of its own."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How record batches become messages where they do not lie in a file as such."""

    compression: str | None = None
    """``none``, ``lz4`` or ``zstd``; None leaves files as they lie and compresses nothing."""
    batch_rows: int | None = None
    """The largest number of rows in a batch; None leaves it to the source."""
    regions: bool = False
    """Whether bodies that lie in a file are wanted as regions of it, however small they are."""


class Shard(NamedTuple):
    """A part of a dataset that can be read by itself. One after the other they make it up."""

    rows: int | None
    """How many rows it has; None if that is not known without decoding it."""
    nbytes: int | None
    """How many bytes it has as it lies; None if that is not known."""


class Source(Protocol):
    """The messages of one dataset, for one reader: first the schema, then the rest in order."""

    blocking: bool
    """Whether asking for the next group may take long: it is then asked on a worker thread.

    Only the groups of such a source may be asked for ahead. Of any other, a group may refer to a
    file that is closed when the next one is asked for: it has to be sent before."""

    placed: Sequence[Path]
    """The files that each body is one uncut region of, as `Encoding.regions` asks for; none if
    it is not."""

    def __iter__(self) -> Iterator[list[SourceMessage]]:
        """Yield groups of messages, none empty.

        Raises
        ------
        DatasetError
            If the data cannot be read, was truncated, or changed since the source was opened.
            What was yielded may then be wrong, too: the stream has to fail.
        ClosedError
            If the source was closed.
        """
        ...

    def close(self) -> None:
        """Let go of files and threads. Idempotent; called whether or not all was read.

        It may be called while another thread asks for the next group; that thread then lets go
        when it is done. Regions of files cannot be sent any more.
        """
        ...


class Dataset(Protocol):
    """A named set of record batches with one schema. Safe to use from several threads."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all its batches."""
        ...

    @property
    def rows(self) -> int | None:
        """How many rows it has; None if that is not known without decoding it.

        The first use may read the metadata of all messages, so it belongs on a worker thread.

        Raises
        ------
        DatasetError
            If that cannot be read any more.
        """
        ...

    @property
    def nbytes(self) -> int | None:
        """How many bytes it has as it lies; None if that is not known."""
        ...

    @property
    def kind(self) -> str:
        """What it is made of, in a few words: ``arrow file``, ``parquet directory``, ``table``."""
        ...

    @property
    def version(self) -> str:
        """What tells its state from others: it changes when the data changes. Opaque.

        It looks at the files, so it belongs on a worker thread.
        """
        ...

    @property
    def shards(self) -> Sequence[Shard]:
        """Its parts, in order; at least one. Like `rows`, it belongs on a worker thread.

        Raises
        ------
        DatasetError
            If that cannot be read any more.
        """
        ...

    def open(self, request: Request, encoding: Encoding) -> Source:
        """Begin to read it for one reader. It reads files, so it belongs on a worker thread.

        Parameters
        ----------
        request : Request
            Shard, filter, columns, offset, limit, batch size and compression that the reader
            asks for. They come before those of `encoding`, which are the server's defaults.
        encoding : Encoding
            The server's defaults.

        Raises
        ------
        DatasetError
            If it is not readable any more.
        NotFoundError
            If a column does not exist; the error names it and the nearest existing names.
        InvalidRequestError
            If it cannot be served as asked for: there is no such shard, or the filter does not
            fit.
        RemoteError
            With the code FAILED_PRECONDITION, if it has another version than is asked for, or
            could be read only once and has been.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds. Sources already open go on."""
        ...


class DatasetVersion(Dataset, Protocol):
    """A dataset that never changes, and says what it is a part of."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What a FlightInfo tells of it besides, as JSON."""
        ...

    def about_shard(self, index: int) -> Mapping[str, Any]:
        """Return what the endpoint of a shard tells of it, as JSON."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """A dataset that keeps versions."""

    def at(self, request: Request) -> DatasetVersion:
        """Return the version that a request asks for; the current one if it asks for none.

        It may read files, so it belongs on a worker thread.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if there is no such version any more.
        """
        ...
