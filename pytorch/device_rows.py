"""The rows of blocks in the memory of a device, which gathers and joins them itself."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from ..memory.device_batch import DeviceBatch
from .device_tensors import DeviceBatchTensors, find_stream
from .tensors import TensorOptions, Tensors
from .torch_module import torch


class DeviceRows:
    """The rows of a block on a device, in the order of the epoch. Safe to use from several threads.

    Parameters
    ----------
    batches : list of DeviceBatch
        The rows. Each record batch has some.
    permutation : pyarrow.Array, optional
        The order of the rows. `None` is that of the record batches.
    """

    def __init__(self, batches: list[DeviceBatch], permutation: Any) -> None:
        self._batches = batches
        self._permutation = permutation
        self._ends = list(accumulate(batch.num_rows for batch in batches))
        self._device = torch.device(batches[0].device)
        self._lock = threading.Lock()
        self._stream: int | None = None
        """The stream that the tensors below are for: others might use them too early."""
        self._tensors: list[Tensors] = []
        self._order: Any = None
        self.unsigned: dict[str, Any] = {}
        """The types of the tensors of unsigned integers, which `tensors` returns as signed."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._ends[-1]

    def tensors(self, begin: int, end: int, options: TensorOptions) -> Tensors:
        """Return rows as tensors, for the stream on which this thread uses the device.

        Raises
        ------
        InvalidDataError
            If a record batch has nulls, and these are errors.
        """
        with self._lock:
            stream = find_stream(self._device)
            if stream != self._stream:
                self._convert(options)
                self._stream = stream
            if self._order is None:
                return join_tensors(list(self._cut(begin, end)))
            index = self._order[begin:end]
            return {name: each.index_select(0, index) for name, each in self._tensors[0].items()}

    def _convert(self, options: TensorOptions) -> None:
        converted = [DeviceBatchTensors(batch, options) for batch in self._batches]
        self.unsigned = converted[0].unsigned
        self._tensors = [each.values for each in converted]
        if self._permutation is not None:
            self._order = torch.from_dlpack(self._permutation.view(pa.int64())).to(self._device)
            self._tensors = [join_tensors(self._tensors)]

    def _cut(self, begin: int, end: int) -> Iterator[Tensors]:
        """Yield the rows from `begin` to `end`, in slices of the record batches."""
        index = bisect_right(self._ends, begin)
        while begin < end:
            last = min(end, self._ends[index])
            first = self._ends[index] - self._batches[index].num_rows
            # Such slices have no version counter in common: autograd does not confuse them.
            yield {
                name: each.data[begin - first : last - first].data
                for name, each in self._tensors[index].items()
            }
            begin = last
            index += 1


def convert_parts(parts: Sequence[tuple[DeviceRows, int, int]], options: TensorOptions) -> Tensors:
    """Return rows of one or more blocks as tensors.

    Parameters
    ----------
    parts : sequence of tuple
        A block, the first row, and the one after the last, for each part.
    options : TensorOptions
        How to convert.

    Raises
    ------
    InvalidDataError
        If a record batch has nulls, and these are errors.
    """
    tensors = join_tensors([rows.tensors(begin, end, options) for rows, begin, end in parts])
    for name, kind in parts[0][0].unsigned.items():
        tensors[name] = tensors[name].view(kind)
    return tensors


def join_tensors(parts: Sequence[Tensors]) -> Tensors:
    """Return consecutive rows as one tensor for each name, without a copy of a single part."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
