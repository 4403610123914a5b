"""Passing a batch from a loader's worker to the trainer in one piece of shared memory.

PyTorch shares each tensor by a file descriptor of its own, which costs more than the copy for many
small columns. Here, all tensors of a batch share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .torch_module import torch

_ALIGNMENT = 64


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
    """A dict of tensors in one piece of shared memory.

    It is pickled as this memory and the places of the tensors, and arrives as a plain dict.

    Parameters
    ----------
    values : mapping of str to object
        The tensors, which are copied, and other values, which are pickled as they are.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._places: dict[str, _Place] = {}
        end = 0
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                begin = -(-end // _ALIGNMENT) * _ALIGNMENT
                end = begin + value.numel() * value.element_size()
                self._places[name] = _Place(begin, end, value.dtype, tuple(value.shape))
        self._memory = torch.empty(end, dtype=torch.uint8).share_memory_()
        super().__init__(_unpack(self._memory, self._places, values))
        for name in self._places:
            self[name].copy_(values[name])

    def __reduce__(self) -> tuple[Any, ...]:
        others = {name: None if name in self._places else value for name, value in self.items()}
        return _unpack, (self._memory, self._places, others)


def _unpack(memory: Any, places: Mapping[str, _Place], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, with the tensors at their places in the memory, in the same order."""
    result = dict(values)
    for name, (offset, end, dtype, shape) in places.items():
        result[name] = memory[offset:end].view(dtype).reshape(shape)
    return result
