"""The rows of blocks that are in memory: slices of them, as record batches and as tensors."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from .plan import Categories

if TYPE_CHECKING:
    from .batch_tensors import BatchTensors
    from .device_rows import DeviceRows
    from .tensors import TensorOptions, Tensors


class BlockRows:
    """The rows of a block, in the order of the epoch. Safe to use from several threads.

    Parameters
    ----------
    batches : iterable of RecordBatch
        The rows. At least one record batch has some.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))
        self._tensors: dict[int, BatchTensors] = {}
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._ends[-1]

    def slice(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `begin` to `end`, in slices of the record batches."""
        index = bisect_right(self._ends, begin)
        while begin < end:
            batch, last = self._batches[index], min(end, self._ends[index])
            yield batch.slice(begin - self._ends[index] + batch.num_rows, last - begin)
            begin = last
            index += 1

    def tensors(
        self, begin: int, end: int, options: TensorOptions, categories: Categories
    ) -> Tensors | None:
        """Return rows as tensors, or None if they are in several record batches.

        Parameters
        ----------
        begin, end : int
            The first row, and the one after the last.
        options, categories
            As in `convert_batch`, and the same in each call.

        Raises
        ------
        SplitArrowError
            As `convert_batch` does.
        """
        from .batch_tensors import BatchTensors  # needs PyTorch

        index = bisect_right(self._ends, begin)
        if end > self._ends[index]:
            return None
        batch = self._batches[index]
        with self._lock:
            tensors = self._tensors.get(index)
            if tensors is None:
                tensors = self._tensors[index] = BatchTensors(batch, options, categories)
        first = self._ends[index] - batch.num_rows
        return tensors.slice(begin - first, end - first)


class Part(NamedTuple):
    """Consecutive rows of a block in memory."""

    block: BlockRows | DeviceRows
    """The block."""
    begin: int
    """The first row."""
    end: int
    """The row after the last."""


class Rows:
    """The rows of one batch.

    Parameters
    ----------
    parts : list of Part
        The rows, in order; at least one.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def to_record_batch(self) -> pa.RecordBatch:
        """Return the rows as one record batch, without a copy if they are consecutive in one.

        They must be in host memory.
        """
        parts: Any = self._parts
        batches = [each for part in parts for each in part.block.slice(part.begin, part.end)]
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
        return table.to_batches()[0]

    def to_tensors(self, options: TensorOptions, categories: Categories) -> Tensors:
        """Return the rows as tensors. Those of consecutive batches may share a storage.

        Parameters
        ----------
        options, categories
            As in `convert_batch`, and the same for all rows of a block.

        Raises
        ------
        SplitArrowError
            As `convert_batch` does.
        """
        from .tensors import convert_batch  # needs PyTorch

        block, begin, end = self._parts[0]
        if not isinstance(block, BlockRows):
            from .device_rows import convert_parts

            return convert_parts(cast("Any", self._parts), options)
        if len(self._parts) == 1:
            tensors = block.tensors(begin, end, options, categories)
            if tensors is not None:
                return tensors
        return convert_batch(self.to_record_batch(), options, categories)
