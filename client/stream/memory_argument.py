"""The argument ``memory`` of reads. What it needs is imported only if it is given."""

from __future__ import annotations

from typing import Any

from ...protocol.memory import DEFAULT_ALLOCATOR, Allocator
from .batch_stream import BatchStream


def find_allocator(memory: Any) -> Allocator:
    """Return the host memory that bodies are received into.

    Parameters
    ----------
    memory : str, DeviceMemory, Allocator or None
        The argument.

    Raises
    ------
    UsageError
        If the argument is invalid, or CUDA cannot be used.
    """
    if memory is None:
        return DEFAULT_ALLOCATOR
    from ...memory.selection import DeviceMemory, select_memory

    selected = select_memory(memory)
    return selected.open_allocator() if isinstance(selected, DeviceMemory) else selected


def move_to_memory(stream: Any, memory: Any) -> Any:
    """Return a stream whose batches land where the argument says.

    Parameters
    ----------
    stream : BatchStream or AsyncBatchStream
        A stream that receives into the host memory of `find_allocator`.
    memory : str, DeviceMemory, Allocator or None
        The argument.

    Returns
    -------
    DeviceStream or AsyncDeviceStream
        For the memory of a device. Otherwise, `stream`.
    """
    if memory is None:
        return stream
    from ...memory.selection import DeviceMemory, select_memory
    from .device_stream import AsyncDeviceStream, DeviceStream

    selected = select_memory(memory)
    if not isinstance(selected, DeviceMemory):
        return stream
    if isinstance(stream, BatchStream):
        return DeviceStream(stream, selected)
    return AsyncDeviceStream(stream, selected)
