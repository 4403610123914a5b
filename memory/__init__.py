"""Where the bodies of a stream land: page-locked memory, the memory of a GPU, or an allocator's.

Pass ``memory=`` to `splitarrow.open`, `Client.read` or `StreamDataset`.
"""

from ..protocol.memory import Allocator
from .device_batch import DeviceBatch, DeviceColumn
from .device_memory import CudaMemory, DeviceMemory
from .pinned import PinnedMemory

__all__ = [
    "Allocator",
    "CudaMemory",
    "DeviceBatch",
    "DeviceColumn",
    "DeviceMemory",
    "PinnedMemory",
]
