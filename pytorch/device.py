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


def check_host_memory(memory: Any) -> None:
    """Check that an argument ``memory`` names host memory.

    Raises
    ------
    UsageError
        If it names the memory of a device, or is invalid.
    """
    if memory is None:
        return
    selected = select_memory(memory)
    if isinstance(selected, DeviceMemory):
        name = selected.device.name
        raise UsageError(
            f"memory is that of {name}; tensors are made in host memory, so pass device={name!r}, "
            "and memory='pinned' for faster copies"
        )


def move(value: Any, device: Any) -> Any:
    """Return a tensor on a device, and any other value unchanged."""
    return value.to(device) if isinstance(value, torch.Tensor) else value
