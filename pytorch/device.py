"""Moving tensors to a device."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..memory.selection import DeviceMemory, select_memory
from .torch_module import torch


def check_device(device: Any) -> Any:
    """Return a ``torch.device``, or None.

    Raises
    ------
    UsageError
        If PyTorch does not know the device, or does not find it.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device is {device!r}: {str(error).partition(chr(10))[0]}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device is {str(found)!r}, but PyTorch finds no CUDA device")
    return found


def find_memory_device(memory: Any) -> Any:
    """Return the ``torch.device`` whose memory an argument ``memory`` names; None for the host's.

    Raises
    ------
    UsageError
        If the argument is invalid, or PyTorch does not find the device.
    """
    if memory is None:
        return None
    selected = select_memory(memory)
    return check_device(selected.device.name) if isinstance(selected, DeviceMemory) else None


def move(value: Any, device: Any) -> Any:
    """Return a tensor on a device, and any other value unchanged."""
    return value.to(device) if isinstance(value, torch.Tensor) else value
