"""The argument `memory` of reads."""

from __future__ import annotations

import re
from typing import Any, cast

from ..errors import UsageError
from ..protocol.memory import Allocator
from .device_memory import DeviceMemory, default_cuda_memory
from .pinned import default_pinned_memory

__all__ = ["DeviceMemory", "select_memory"]

_CUDA = re.compile(r"cuda(?::(\d+))?")


def select_memory(memory: Any) -> Allocator | DeviceMemory:
    """Return the memory that an argument names.

    Parameters
    ----------
    memory : str, DeviceMemory or Allocator
        ``"pinned"``, ``"cuda"`` or ``"cuda:1"``, or the memory itself.

    Raises
    ------
    UsageError
        If it is anything else, or is not host memory and has no way to fill it.
    MissingExtraError
        If it needs cuda-bindings.
    """
    if isinstance(memory, DeviceMemory):
        return memory
    if memory == "pinned":
        return default_pinned_memory()
    if isinstance(memory, str) and (match := _CUDA.fullmatch(memory)):
        return default_cuda_memory(int(match[1] or 0))
    if callable(getattr(memory, "allocate", None)) and getattr(memory, "is_host", False):
        return cast("Allocator", memory)
    raise UsageError(
        f"memory is {memory!r}; expected 'pinned', 'cuda:0', CudaMemory, or an allocator of host "
        "memory"
    )
