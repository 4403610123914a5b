"""Files that the server maps itself, to send them from where they lie.

A transport that sends from addresses, or lets readers copy from them, needs its files mapped.
Each mapping is guarded as those of readers are: before the file changes, what is in use of it
is moved into memory of this process, at the same addresses.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict

import anyio

from ...errors import DatasetError, LimitError
from ...transport.regions import RegionFile
from ...transport.shm.mapping import MappedRegion
from ...transport.shm.memory import SealedMemory
from ..logs import get_logger
from .guards import FileGuards

_MOST = 64
_MOST_REFUSED = 10_000
_IDLE_SECONDS = 10.0
_LOOK_SECONDS = 2.0


class Mappings:
    """The mappings of one daemon. Used on its event loop only.

    Parameters
    ----------
    guards : FileGuards
        Tell when a file is about to change.
    trust : bool
        Whether files are mapped that cannot be guarded.
    """

    def __init__(self, guards: FileGuards, *, trust: bool) -> None:
        self._guards = guards
        self._trust = trust
        self._kept: OrderedDict[tuple[int, ...], tuple[MappedRegion, float]] = OrderedDict()
        self._refused: set[tuple[int, ...]] = set()
        self._log = get_logger("mappings")

    def region(self, file: RegionFile) -> MappedRegion | None:
        """Return the mapping of a file; None if it cannot be mapped, or is about to change.

        It is kept for a while: entering its pages into the page tables is what costs.
        """
        now = anyio.current_time()
        found = self._kept.pop(file.version, None)
        region = None if found is None else found[0]
        if region is None and file.version not in self._refused:
            region = self._mapped(file)
        if region is None:
            return None
        try:
            region.check()
        except DatasetError:
            return None
        self._kept[file.version] = (region, now)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return region

    def _mapped(self, file: RegionFile) -> MappedRegion | None:
        watch = -1
        try:
            if not self._trust and not isinstance(file, SealedMemory):
                watch = self._guards.watch(file).detach()
            descriptor, watch_of = os.dup(file.fileno()), watch
            watch = -1  # it is the region's from here on
            return MappedRegion(descriptor, file.size, watch_of)
        except (DatasetError, LimitError, OSError) as error:
            if watch >= 0:
                with contextlib.suppress(OSError):
                    os.close(watch)
            if len(self._refused) > _MOST_REFUSED:
                self._refused.clear()
            self._refused.add(file.version)
            self._log.warning(
                "bodies are read and not sent from where they lie",
                path=str(file.path),
                reason=str(error),
            )
            return None

    async def run(self) -> None:
        """Let go of what nobody has asked for in a while, until cancelled."""
        try:
            while True:
                await anyio.sleep(_LOOK_SECONDS)
                last = anyio.current_time() - _IDLE_SECONDS
                while self._kept and next(iter(self._kept.values()))[1] < last:
                    self._kept.popitem(last=False)
        finally:
            self._kept.clear()
