"""The regions that a server shares with its readers, and the limits on sharing them."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import anyio

from ...protocol.request import Request
from ..catalog.dataset import Budget, Dataset
from ..catalog.vortex_dataset import VortexDataset
from .chunks import ChunkSizes
from .file_guards import FileGuards
from .file_mappings import FileMappings
from .region_source import RegionSource, open_region_at_once, open_region_source
from .region_store import RegionStore

if TYPE_CHECKING:
    from ..config import Settings

_DEFAULT_CAPACITY_SHARE = 4
"""By default sealed memory takes at most one part in so many of the host's memory."""
_VORTEX_CHUNK_SIZES = ChunkSizes(1 << 20, 32 << 20)
"""Encoding takes longer than a copy, and a stream that the cache has no room for holds a chunk."""
_DESCRIPTORS_SHARE, _MAX_CHUNKS = 16, 4096
"""Copies take at most one part in so many of the process's descriptors, and at most so many."""


class SharedRegions:
    """Everything that a server shares. Used on its event loop, except for `open`.

    Parameters
    ----------
    settings : Settings
        The settings of the server. Those on shared memory, leases and budgets apply.
    processes : int
        The number of processes that divide the memory for datasets in the format Vortex. One of
        them serves all readers that map data, so that copies for these are not divided.
    """

    def __init__(self, settings: Settings, processes: int = 1) -> None:
        capacity = settings.shm_cache
        if capacity is None:
            capacity = (
                os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _DEFAULT_CAPACITY_SHARE
            )
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
        self._budget = Budget.from_settings(settings)

    def open(self, dataset: Dataset, request: Request, *, copy: bool = False) -> RegionSource:
        """Open a dataset so that each body is a span of a region; see `open_region_source`.

        It reads files, so it belongs on a worker thread.
        """
        copy = copy or self._copy
        store = self.vortex_store if isinstance(dataset, VortexDataset) else self.store
        return open_region_source(
            store, dataset, request, copy=copy, trust=self.trust, budget=self._budget
        )

    def open_at_once(
        self, dataset: Dataset, request: Request, *, copy: bool = False
    ) -> RegionSource | None:
        """Open a dataset as `open` does, if that takes no time; otherwise return None."""
        if copy or self._copy:
            return None
        return open_region_at_once(dataset, request, trust=self.trust, budget=self._budget)

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
