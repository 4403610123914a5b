"""The regions that a server shares with its readers, and the limits on sharing them.

A dataset opens so that every body is one span of a file or of sealed memory.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import SourceFile
from ..catalog.dataset import (
    Budget,
    Encoding,
    GeneratorSource,
    ServedDataset,
    Source,
    Writers,
)
from ..catalog.files.file_dataset import FileDataset
from ..catalog.vortex_encoding import VortexDataset
from ..logs import get_logger
from ..usage import measure_host_memory
from .mapped_files import FileGuards, FileMappings, guard_refusal
from .region_store import Chunk, ChunkSizes, ChunkWriter, RegionStore, SharedStream

if TYPE_CHECKING:
    from ..config import Settings


_GROUP_MESSAGES = 64
_DEFAULT_CAPACITY_SHARE = 4
"""By default sealed memory takes at most one part in so many of the host's memory."""
_VORTEX_CHUNK_SIZES = ChunkSizes(1 << 20, 8 << 20)
"""Encoding takes longer than a copy, and a stream that the cache has no room for holds a chunk."""
_DESCRIPTORS_SHARE, _MAX_CHUNKS = 16, 4096
"""Copies take at most one part in so many of the process's descriptors, and at most so many."""


class RegionSource:
    """The messages of a dataset for one reader, each body being one `FileSpan`.

    It is a `Source` that has one more step: the reader may hold offsets of its regions after
    `close`, so they stay allocated until `release`.
    """

    def __init__(
        self,
        groups: Iterator[Sequence[SourceMessage]],
        *,
        blocking: bool,
        close: Callable[[], None],
        release: Callable[[], None] | None = None,
    ) -> None:
        self.blocking = blocking
        self.region_files: Sequence[Path] = ()
        self.region: SourceFile | None = None
        """The file that every body is a part of; None if it is not known yet."""
        self._groups = groups
        self._close = close
        self._release = release

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


def _can_guard(paths: Sequence[Path]) -> bool:
    for path in paths:
        refusal = guard_refusal(path)
        if refusal is not None:
            get_logger("shm").warning(
                "sharing a copy of a file that cannot be guarded", path=str(path), reason=refusal
            )
            return False
    return True


class _CopyReader:
    """One reader's position in a stream that is written into sealed memory."""

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


class SharedRegions:
    """Everything that a server shares. Used on its event loop, except for `open`.

    Each process has its part of the cache for Vortex arrays. One of the processes serves all
    readers that map data, so the other cache is not divided.
    """

    def __init__(
        self, settings: Settings, processes: int = 1, budget: Budget | None = None
    ) -> None:
        capacity = settings.shm_cache
        if capacity is None:
            capacity = measure_host_memory() // _DEFAULT_CAPACITY_SHARE
        self.store = RegionStore(capacity, _compute_max_chunks())
        """The datasets that were written into sealed memory."""
        self.vortex_store = RegionStore(
            settings.vortex_cache // processes, _compute_max_chunks(), _VORTEX_CHUNK_SIZES
        )
        """The datasets that were compressed as Vortex arrays into sealed memory."""
        self.guards = FileGuards()
        """The guards of the files that are mapped, here or by readers."""
        self.trust = settings.shm_trust
        """Whether files are mapped without a guard."""
        self.mappings = FileMappings(self.guards, trust=self.trust)
        """The files that this process has mapped."""
        self.max_leased = settings.max_leased
        """The bytes that one user may lease at a time; None disables the limit."""
        self.lease_seconds = settings.lease_seconds
        """How long a stream waits for its reader to free offsets, in seconds."""
        self.freed = anyio.Event()
        """Set, and replaced, when a reader frees offsets or disconnects."""
        self._copy = settings.shm_copy
        self._budget = Budget.from_settings(settings) if budget is None else budget

    def open(self, dataset: ServedDataset, request: Request, *, copy: bool = False) -> RegionSource:
        """Open a dataset so that each body is a span of its file, or with `copy`, of a copy.

        Bodies are uncompressed, whatever the server's default is, unless the request names a
        compression: shared memory saves nothing by it. It reads files, so it belongs on a worker
        thread. Raises `SplitArrowError` as `ServedDataset.open` does.
        """
        copy = copy or self._copy
        request = replace(
            request,
            compression=request.compression or "none",
            version=request.version or dataset.version,
        )
        source = dataset.open(request, Encoding(regions=not copy, budget=self._budget))
        region = source.region if isinstance(source, GeneratorSource) else None
        is_own = region is not None and region.is_own
        if is_own or source.region_files:
            if is_own or self._are_regions(source.region_files):
                return RegionSource(iter(source), blocking=source.blocking, close=source.close)
            source.close()
            source = dataset.open(request, Encoding(budget=self._budget))
        return self._open_copy(dataset, request, source)

    def _open_copy(self, dataset: ServedDataset, request: Request, source: Source) -> RegionSource:
        """Open a dataset whose bodies are copied to sealed memory; `source` may do that."""
        unused = [source]

        def open_source() -> Source:
            if unused:
                return unused.pop()
            return dataset.open(request, Encoding(budget=self._budget))

        is_vortex = isinstance(dataset, VortexDataset)
        store = self.vortex_store if is_vortex else self.store
        owner = dataset.described if is_vortex else dataset
        # A file with writers may change without a new version, so no other reader gets this copy.
        is_shared = owner.writers is not Writers.ALLOWED
        key = request if is_shared else (request, object())
        stream = store.acquire(owner, key, open_source, f"dataset {request.dataset!r}")

        def release() -> None:
            if not is_shared:
                store.forget(stream)
            store.release(stream)

        copied = _CopyReader(stream, unused)
        return RegionSource(copied.groups(), blocking=True, close=copied.close, release=release)

    def open_at_once(
        self, dataset: ServedDataset, request: Request, *, copy: bool = False
    ) -> RegionSource | None:
        """Open a file that is its own region, as `open` does, if that reads nothing.

        Return None if it may take time; see `FileDataset.open_at_once`.
        """
        if copy or self._copy or not isinstance(dataset, FileDataset):
            return None
        request = replace(request, compression=request.compression or "none")
        source = dataset.open_at_once(request, Encoding(regions=True, budget=self._budget))
        if source is None:
            return None
        if not self._are_regions(source.region_files):
            source.close()
            return None
        opened = RegionSource(iter(source), blocking=source.blocking, close=source.close)
        opened.region = source.region
        return opened

    def _are_regions(self, paths: Sequence[Path]) -> bool:
        """Return whether bodies are regions of these files, which can be shared."""
        return bool(paths) and (self.trust or _can_guard(paths))

    def report_freed(self) -> None:
        """Wake the streams that wait until their readers have freed offsets."""
        self.freed.set()
        self.freed = anyio.Event()

    async def run(self) -> None:
        """Look after file guards and mappings until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.guards.run)
            tasks.start_soon(self.mappings.run)

    def close(self) -> None:
        """Release the sealed memory that no reader uses."""
        self.store.close()
        self.vortex_store.close()


def _compute_max_chunks() -> int:
    """Return how many chunks of copies may be kept: each has a descriptor."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_CHUNKS
    return min(limit // _DESCRIPTORS_SHARE, _MAX_CHUNKS)
