"""The structures of DLPack and of Arrow's C device interface, through ctypes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

_LEGACY_DEFAULT_STREAM = 1


class DLDevice(ctypes.Structure):
    """A device of DLPack."""

    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DLTensor(ctypes.Structure):
    """A tensor, with which DLManagedTensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


class ArrowArray(ctypes.Structure):
    """An array of Arrow's C data interface."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class ArrowDeviceArray(ctypes.Structure):
    """An array of Arrow's C device interface."""

    _fields_ = (
        ("array", ArrowArray),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
        ("reserved", ctypes.c_int64 * 3),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def find_pointer(capsule: object, name: bytes) -> int:
    """Return the address that a capsule of a name contains; raise `ValueError` for another name."""
    address: int | None = _capsule_pointer(capsule, name)
    assert address is not None
    return address


def find_child(array: ArrowArray, index: int) -> ArrowArray:
    """Return a child of an exported array."""
    if not 0 <= index < array.n_children or not array.children:
        raise UsageError(f"an exported array has {array.n_children} children; expected more")
    pointers = (ctypes.c_void_p * array.n_children).from_address(array.children)
    return ArrowArray.from_address(pointers[index] or 0)


def find_buffer(array: ArrowArray, index: int) -> int:
    """Return the address of a buffer of an exported array; 0 if it is absent."""
    if not 0 <= index < array.n_buffers or not array.buffers:
        raise UsageError(f"an exported array has {array.n_buffers} buffers; expected more")
    pointers = (ctypes.c_void_p * array.n_buffers).from_address(array.buffers)
    return pointers[index] or 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that another library has exported."""

    capsule: object
    """What keeps its memory alive."""
    address: int
    code: int
    """The kind of its elements, as in DLPack: 0 signed, 1 unsigned, 2 floating-point."""
    bits: int
    lanes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """The strides in elements; None if it is compact."""


def read_tensor(source: Any) -> Tensor:
    """Return the tensor that an object with ``__dlpack__`` exports on its device."""
    try:
        capsule = source.__dlpack__(stream=_LEGACY_DEFAULT_STREAM, max_version=(1, 0))
    except TypeError:  # a producer of before 1.0
        capsule = source.__dlpack__(stream=_LEGACY_DEFAULT_STREAM)
    try:
        managed = DLManagedTensor.from_address(find_pointer(capsule, b"dltensor_versioned"))
        tensor = managed.tensor
    except ValueError:
        tensor = DLTensor.from_address(find_pointer(capsule, b"dltensor"))
    numbers = ctypes.c_int64 * tensor.ndim
    shape = tuple(numbers.from_address(tensor.shape)) if tensor.ndim else ()
    strides = tuple(numbers.from_address(tensor.strides)) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    return Tensor(capsule, address, tensor.code, tensor.bits, tensor.lanes, shape, strides)


def read_device_array(capsule: object) -> ArrowDeviceArray:
    """Return the structure in a capsule of Arrow's C device interface, which keeps it alive."""
    return ArrowDeviceArray.from_address(find_pointer(capsule, b"arrow_device_array"))
