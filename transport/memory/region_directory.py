"""The regions that this process can pass to another process, found by address."""

from __future__ import annotations

import itertools
import weakref
from contextlib import AbstractContextManager
from typing import Protocol


class PassableRegion(Protocol):
    """A mapped region; see `splitarrow.transport.memory.mapped_region.MappedRegion`."""

    size: int

    @property
    def address(self) -> int:
        """The address in this process; 0 once the region is not mapped any more."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the region was revoked, so that no other process can map it."""
        ...

    def hold_descriptors(self) -> AbstractContextManager[list[int]]:
        """Return the descriptors that another process needs to map the region."""
        ...


class RegionDirectory:
    """The mapped regions of a process, if it passes tensors or arrays in them to another one.

    Regions that are mapped before `open` are not in it. Each region in it keeps its descriptor
    open. A region that is collected leaves it.
    """

    def __init__(self) -> None:
        self.is_open = False
        """Whether new regions are added."""
        self._regions: dict[int, weakref.ref[PassableRegion]] = {}
        self._numbers = itertools.count()

    def open(self) -> None:
        """Add each region that this process maps from now on."""
        self.is_open = True

    def close(self) -> None:
        """Add no more regions."""
        self.is_open = False

    def add(self, region: PassableRegion) -> int:
        """Add a region and return its number, which no other region of this process gets."""
        number = next(self._numbers)
        self._regions[number] = weakref.ref(region)
        return number

    def remove(self, number: int) -> None:
        """Forget a region. Finalizers may call this: it takes no lock."""
        self._regions.pop(number, None)

    def get(self, number: int) -> PassableRegion | None:
        """Return the region with a number, or None if it is gone."""
        reference = self._regions.get(number)
        return None if reference is None else reference()

    def find(self, address: int, nbytes: int) -> tuple[int, PassableRegion] | None:
        """Return the region that contains a span, and its number.

        Returns
        -------
        (int, PassableRegion) or None
            None if no region contains the span, or the region was revoked.
        """
        for number, reference in list(self._regions.items()):
            region = reference()
            if region is None or not region.address:
                continue
            begin = region.address
            if begin <= address and address + nbytes <= begin + region.size:
                return None if region.is_lost else (number, region)
        return None


REGIONS = RegionDirectory()
"""The directory of this process."""
