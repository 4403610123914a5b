"""The record batches of a read that are in the memory of a device."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..memory.device_batch import DeviceBatch


class DeviceTable:
    """Record batches on a device, with those methods of ``pyarrow.Table`` that reads need.

    Parameters
    ----------
    batches : iterable of DeviceBatch
        The record batches.
    """

    def __init__(self, batches: Iterable[DeviceBatch]) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self._batches)

    def to_batches(self) -> list[DeviceBatch]:
        """Return the record batches that have rows."""
        return self._batches

    def get_total_buffer_size(self) -> int:
        """Return the size of the buffers in bytes."""
        return sum(batch.get_total_buffer_size() for batch in self._batches)

    def slice(self, offset: int, length: int) -> DeviceTable:
        """Return the record batches that begin in a range of the rows."""
        ends = accumulate(batch.num_rows for batch in self._batches)
        return DeviceTable(
            batch
            for batch, end in zip(self._batches, ends, strict=True)
            if offset <= end - batch.num_rows < offset + length
        )
