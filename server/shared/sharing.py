"""How a server shares memory with readers on its host, and how much."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...protocol.request import Request
from ..catalog.base import Dataset
from .guards import FileGuards
from .mappings import Mappings
from .source import PlacedSource, open_placed
from .store import RegionStore

if TYPE_CHECKING:
    from ..config import ServerSettings

_DEFAULT_SHARE = 4


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the settings say about shared memory, and what is shared."""

    store: RegionStore
    """What was written into memory."""
    guards: FileGuards = field(default_factory=FileGuards)
    """The leases on files that readers map."""
    mappings: Mappings = field(init=False)
    """What the server maps itself."""
    trust: bool = False
    """Whether files are mapped without a lease."""
    copy: bool = False
    """Whether files are copied into memory and never mapped themselves."""
    max_leased: int | None = None
    """How many bytes one user may hold leases on at a time."""
    lease_seconds: float = 10.0
    """How long a stream waits for its reader to free some, where that is too much."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mappings", Mappings(self.guards, trust=self.trust))

    @classmethod
    def of(cls, settings: ServerSettings) -> Sharing:
        """Return what a server's settings ask for."""
        capacity = settings.shm_cache
        if capacity is None:
            pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            capacity = pages // _DEFAULT_SHARE
        return cls(
            RegionStore(capacity),
            trust=settings.shm_trust,
            copy=settings.shm_copy,
            max_leased=settings.max_leased,
            lease_seconds=settings.lease_seconds,
        )

    def open(self, dataset: Dataset, request: Request, *, copy: bool = False) -> PlacedSource:
        """Open a dataset for a reader that maps it, or copies from it; see `open_placed`."""
        copy = copy or self.copy
        return open_placed(self.store, dataset, request, copy=copy, trust=self.trust)
