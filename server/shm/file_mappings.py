"""Files that the server maps itself, to send from the mapping or to let readers copy from it.

A file guard protects each mapping, as it protects those of readers: before the file changes, the
pages in use are copied into memory of this process, at the same addresses.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict

import anyio

from ...errors import DatasetError, LimitError, exhausted_error
from ...transport.memory.files import SourceFile
from ...transport.memory.mapped_region import MappedRegion
from ...transport.memory.sealed import SealedMemory
from ..logs import get_logger
from .file_guards import FileGuards

_MAX_MAPPINGS = 64
_MAX_REFUSALS = 10_000
_IDLE_SECONDS = 10.0
_POLL_SECONDS = 2.0


class FileMappings:
    """The mappings of one server. Used on its event loop only.

    A mapping stays for `_IDLE_SECONDS` after its last use, because entering its pages into the
    page tables costs more than sending them.

    Parameters
    ----------
    guards : FileGuards
        Guards the files.
    trust : bool
        Whether to map files without a guard.
    """

    def __init__(self, guards: FileGuards, *, trust: bool) -> None:
        self._guards = guards
        self._trust = trust
        self._mappings: OrderedDict[tuple[int | str, ...], tuple[MappedRegion, float]] = (
            OrderedDict()
        )
        self._refused: set[tuple[int | str, ...]] = set()
        self._log = get_logger("mappings")

    def map(self, file: SourceFile) -> MappedRegion | None:
        """Return the mapping of a file, or None if it cannot be mapped or is about to change.

        The mapping is shared with other callers. It lives as long as any of them refers to it.
        """
        now = anyio.current_time()
        known = self._mappings.pop(file.version, None)
        region = None if known is None else known[0]
        if region is None and file.version not in self._refused:
            region = self._new_mapping(file)
        if region is None:
            return None
        try:
            region.check()
        except DatasetError:
            return None
        self._mappings[file.version] = (region, now)
        while len(self._mappings) > _MAX_MAPPINGS:
            self._mappings.popitem(last=False)
        return region

    def _new_mapping(self, file: SourceFile) -> MappedRegion | None:
        revocation = -1
        try:
            if not self._trust and not isinstance(file, SealedMemory):
                revocation = self._guards.guard(file).detach()
            descriptor, owned_by_region = os.dup(file.fileno()), revocation
            revocation = -1
            return MappedRegion(descriptor, file.size, owned_by_region)
        except (DatasetError, LimitError, OSError) as error:
            if revocation >= 0:
                with contextlib.suppress(OSError):
                    os.close(revocation)
            if exhausted_error(error) is None:  # otherwise a later attempt may succeed
                if len(self._refused) > _MAX_REFUSALS:
                    self._refused.clear()
                self._refused.add(file.version)
            self._log.warning(
                "reading a file that cannot be mapped", path=str(file.path), reason=str(error)
            )
            return None

    async def run(self) -> None:
        """Drop idle mappings until cancelled."""
        try:
            while True:
                await anyio.sleep(_POLL_SECONDS)
                oldest = anyio.current_time() - _IDLE_SECONDS
                while self._mappings and next(iter(self._mappings.values()))[1] < oldest:
                    self._mappings.popitem(last=False)
        finally:
            self._mappings.clear()
