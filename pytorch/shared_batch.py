"""Passing a batch from a loader's worker to the trainer, without a copy where that is possible.

A tensor in a region of the daemon stays there: the trainer maps the region, and the worker keeps
the lease meanwhile. The other tensors of a batch are copied into one piece of shared memory.
PyTorch would share each tensor by a file descriptor of its own, which costs more than the copy for
many small columns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from ..transport.memory.region_directory import REGIONS
from .held_batches import HELD
from .mapped_tensors import MappedPlace, find_place
from .torch_module import torch
from .worker_connections import receive_tensors

_ALIGNMENT = 64
_MAX_HELD = 64
"""The batches that a worker holds at most. Each may need three descriptors of the process."""


class _Place(NamedTuple):
    """The place of a tensor in the memory of its batch."""

    offset: int
    """The first byte."""
    end: int
    """The byte after the last."""
    dtype: Any
    """The type of the tensor."""
    shape: tuple[int, ...]
    """The shape of the tensor."""


class SharedBatch(dict[str, Any]):
    """A dict of tensors that other processes of the loader can use. It arrives as a plain dict.

    Parameters
    ----------
    values : mapping of str to object
        The tensors, and other values, which are pickled as they are. Tensors outside of regions are
        copied into shared memory.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._mapped: dict[str, MappedPlace] = {}
        if HELD.count < _MAX_HELD:
            found = {name: find_place(value) for name, value in values.items()}
            self._mapped = {name: place for name, place in found.items() if place is not None}
        self._places: dict[str, _Place] = {}
        end = 0
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and name not in self._mapped:
                begin = -(-end // _ALIGNMENT) * _ALIGNMENT
                end = begin + value.numel() * value.element_size()
                self._places[name] = _Place(begin, end, value.dtype, tuple(value.shape))
        self._memory = torch.empty(end, dtype=torch.uint8).share_memory_() if end else None
        super().__init__(_unpack(self._memory, self._places, values))
        for name in self._places:
            self[name].copy_(values[name])

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self._memory, self._places, self._without(self._places))

    def __copy__(self) -> SharedBatch:
        """Return the batch itself: PyTorch copies each batch, and converts what is in the copy."""
        return self

    def _without(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return all values, with None in place of those that have a place elsewhere."""
        return {name: None if name in names else value for name, value in self.items()}

    def reduce_for_process(self) -> tuple[Any, ...]:
        """Return what `__reduce__` returns, for another process of the loader.

        This process holds the tensors in regions until that process has dropped them.
        """
        if not self._mapped:
            return self.__reduce__()
        held = HELD.open()
        mapped = list(self._mapped)
        places = list(self._mapped.values())
        number = held.hold([self[name] for name in mapped], places)
        others = self._without({**self._places, **self._mapped})
        return _receive, (held.address, number, self._mapped, self._memory, self._places, others)


ForkingPickler.register(SharedBatch, SharedBatch.reduce_for_process)


def pass_regions() -> None:
    """Let this process pass tensors in regions that it maps from now on to other processes."""
    if sys.platform == "linux":
        REGIONS.open()


def _receive(
    address: str,
    number: int,
    mapped: Mapping[str, MappedPlace],
    memory: Any,
    places: Mapping[str, _Place],
    others: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a batch that a worker has sent."""
    tensors = receive_tensors(address, number, list(mapped.values()))
    return _unpack(memory, places, {**others, **dict(zip(mapped, tensors, strict=True))})


def _unpack(memory: Any, places: Mapping[str, _Place], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, with the tensors at their places in the memory, in the same order."""
    result = dict(values)
    for name, (offset, end, dtype, shape) in places.items():
        if end == offset:
            result[name] = torch.empty(shape, dtype=dtype)
        else:
            result[name] = memory[offset:end].view(dtype).reshape(shape)
    return result
