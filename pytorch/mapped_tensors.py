"""Tensors in regions that a daemon shares: where they are, and how another process builds them."""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from ..transport.memory.region_directory import REGIONS
from .torch_module import torch

MAX_MESSAGE = 64 << 10
"""The size of the largest message, in bytes."""


class MappedPlace(NamedTuple):
    """The place of a tensor in a region. It can be pickled."""

    region: int
    """The number of the region in the process that sends the tensor."""
    size: int
    """The size of the region in bytes."""
    offset: int
    """The first byte of the tensor in the region."""
    nbytes: int
    """The number of bytes from the first to the last element."""
    dtype: Any
    """The type of the tensor."""
    shape: tuple[int, ...]
    """The shape of the tensor."""
    strides: tuple[int, ...]
    """The distance between neighbors in each dimension, in elements."""


def find_place(value: Any) -> MappedPlace | None:
    """Return the place of a tensor, or None if it is not in a region that can be passed."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not value.numel():
        return None
    shape, strides = tuple(value.shape), tuple(value.stride())
    elements = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    nbytes = elements * value.element_size()
    address = value.data_ptr()
    found = REGIONS.find(address, nbytes)
    if found is None:
        return None
    number, region = found
    offset = address - region.address
    return MappedPlace(number, region.size, offset, nbytes, value.dtype, shape, strides)


def build_tensor(buffer: pa.Buffer, place: MappedPlace) -> Any:
    """Return the tensor in a buffer of `place.nbytes` bytes, which it keeps alive."""
    memory = pa.Array.from_buffers(pa.uint8(), place.nbytes, [None, buffer])
    elements = torch.from_dlpack(memory).view(place.dtype)
    return elements.as_strided(place.shape, place.strides)


class MessageKind(bytes, Enum):
    """The first byte of a message between the process that holds a batch and the one that uses it.

    Integers of 64 bits follow.
    """

    RELEASE = b"F"
    """The tensors of these batches are gone. There is no response."""
    REGION = b"R"
    """Send the descriptors of a region. The response has them."""
    COPY = b"C"
    """Send a copy of a batch. The response has its descriptor, and the offset of each tensor."""
    LOST = b"L"
    """The response if the region cannot be passed any more."""

    def pack(self, *numbers: int) -> bytes:
        """Return a message."""
        return self.value + struct.pack(f"={len(numbers)}Q", *numbers)


def unpack_message(message: bytes) -> tuple[MessageKind, tuple[int, ...]]:
    """Return the kind of a message and its numbers."""
    numbers = struct.unpack(f"={len(message) // 8}Q", message[1:])
    return MessageKind(message[:1]), numbers
