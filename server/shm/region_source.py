"""Opening a dataset so that every body is one span of a file or of sealed memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import SourceFile
from ..catalog.catalog import find_writers
from ..catalog.dataset import Budget, Dataset, Encoding, Source, Writers
from ..catalog.files.file_dataset import FileDataset
from ..catalog.vortex_dataset import VortexDataset
from ..logs import get_logger
from .chunks import Chunk, ChunkWriter
from .file_guards import guard_refusal
from .region_store import RegionStore, SharedStream

_GROUP_MESSAGES = 64


class RegionSource:
    """The messages of a dataset for one reader, each body being one `FileSpan`.

    It is a `Source` that has one more step: the reader may hold offsets of its regions after
    `close`, so they stay allocated until `release`.

    Parameters
    ----------
    groups : iterator
        The groups of messages.
    blocking : bool
        Whether the iterator has to run on a worker thread.
    close : callable
        Stops reading.
    release : callable
        Gives up the regions.
    """

    def __init__(
        self,
        groups: Iterator[Sequence[SourceMessage]],
        *,
        blocking: bool,
        close: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self.blocking = blocking
        self.region_files: Sequence[Path] = ()
        self.region: SourceFile | None = None
        """The file that every body is a part of; None if it is not known yet."""
        self._groups = groups
        self._close = close
        self._release: Callable[[], None] | None = release

    def __iter__(self) -> Iterator[Sequence[SourceMessage]]:
        return self._groups

    def close(self) -> None:
        """Stop reading."""
        self._close()

    def release(self) -> None:
        """Give up the regions: the reader holds no offset of them. Idempotent."""
        if self._release is not None:
            self._release, release = None, self._release
            release()


def open_region_source(
    store: RegionStore,
    dataset: Dataset,
    request: Request,
    *,
    copy: bool,
    trust: bool = False,
    budget: Budget,
) -> RegionSource:
    """Open a dataset whose bodies stay in regions.

    Bodies are uncompressed, whatever the server's default is, unless the request names a
    compression: shared memory saves nothing by it.

    Parameters
    ----------
    store : RegionStore
        Keeps data that must be written into sealed memory.
    dataset : Dataset
        The dataset.
    request : Request
        The rows and columns to read.
    copy : bool
        Whether to write files into sealed memory instead of sharing the files themselves.
    trust : bool
        Whether to share files that cannot be guarded.
    budget : Budget
        Bounds on reading the dataset.

    Raises
    ------
    SplitArrowError
        As `Dataset.open` does.
    """
    request = replace(
        request,
        compression=request.compression or "none",
        version=request.version or dataset.version,
    )
    source = dataset.open(request, Encoding(regions=not copy, budget=budget))
    if source.region_files and not copy and (trust or _can_guard(source.region_files)):
        return RegionSource(
            iter(source), blocking=source.blocking, close=source.close, release=_release_nothing
        )
    unused = [source]

    def open_source() -> Source:
        return unused.pop() if unused else dataset.open(request, Encoding(budget=budget))

    owner = dataset.original if isinstance(dataset, VortexDataset) else dataset
    # A file with writers may change without a new version, so no other reader gets this copy.
    is_shared = find_writers(owner) is not Writers.ALLOWED
    key = request if is_shared else (request, object())
    stream = store.acquire(owner, key, open_source, f"dataset {request.dataset!r}")

    def release() -> None:
        if not is_shared:
            store.forget(stream)
        store.release(stream)

    copied = _CopyReader(stream, unused)
    return RegionSource(
        copied.groups(),
        blocking=True,
        close=copied.close,
        release=release,
    )


def open_region_at_once(
    dataset: Dataset, request: Request, *, trust: bool, budget: Budget
) -> RegionSource | None:
    """Open a file that is its own region, as `open_region_source` does, if that reads nothing.

    Returns
    -------
    RegionSource or None
        None if it may take time; see `FileDataset.open_at_once`.
    """
    if not isinstance(dataset, FileDataset):
        return None
    request = replace(request, compression=request.compression or "none")
    source = dataset.open_at_once(request, Encoding(regions=True, budget=budget))
    if source is None:
        return None
    if not source.region_files or not (trust or _can_guard(source.region_files)):
        source.close()
        return None
    opened = RegionSource(
        iter(source), blocking=source.blocking, close=source.close, release=_release_nothing
    )
    opened.region = source.region
    return opened


def _can_guard(paths: Sequence[Path]) -> bool:
    for path in paths:
        refusal = guard_refusal(path)
        if refusal is not None:
            get_logger("shm").warning(
                "sharing a copy of a file that cannot be guarded", path=str(path), reason=refusal
            )
            return False
    return True


def _release_nothing() -> None:
    """A file that is its own region needs no memory."""


class _CopyReader:
    """One reader's position in a stream that is written into sealed memory.

    Parameters
    ----------
    stream : SharedStream
        The chunks that all readers share.
    unused : list of Source
        The source that was opened for this reader, until it turns out whether it is needed.
    """

    def __init__(self, stream: SharedStream, unused: list[Source]) -> None:
        self._stream = stream
        self._unused = unused
        self._private: ChunkWriter | None = None

    def groups(self) -> Iterator[Sequence[SourceMessage]]:
        """Yield the messages of all chunks, in groups."""
        index = message_count = end = 0
        while (chunk := self._chunk(index, message_count, end)) is not None:
            messages = chunk.messages
            for begin in range(0, len(messages), _GROUP_MESSAGES):
                yield messages[begin : begin + _GROUP_MESSAGES]
            index += 1
            message_count += len(messages)
            end = chunk.memory.size

    def _chunk(self, index: int, message_count: int, end: int) -> Chunk | None:
        """Return the chunk that follows `message_count` messages, or None at the end."""
        if self._private is None:
            found = self._stream.chunk(index, end)
            self._close_unused()
            if not isinstance(found, ChunkWriter):
                return found
            if found.chunk_count != index:
                found.skip(message_count)
            self._private = found
        return self._private.next_chunk()

    def _close_unused(self) -> None:
        while self._unused:
            self._unused.pop().close()

    def close(self) -> None:
        """Stop reading."""
        self._close_unused()
        if self._private is not None:
            self._private.close()
