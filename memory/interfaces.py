"""Arrays of a device for other libraries: by DLPack, the CUDA array interface, and Arrow's.

The C structures of these interfaces are declared with ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import warnings
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..errors import UsageError
from .array_layout import ArrayLayout
from .device import Device, Event

DeviceCapsules = tuple[object, object]
"""The capsules ``arrow_schema`` and ``arrow_device_array``."""
LEGACY_DEFAULT_STREAM = 1
"""The stream of CUDA that a consumer uses if it names none."""
PER_THREAD_DEFAULT_STREAM = 2
"""The stream of CUDA that is another one on each thread."""
_DLPACK_READ_ONLY = 1
_SCRATCH = pa.py_buffer(bytes(64))
"""What the buffers of an array without rows need to hold: an offset of 0."""


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
        capsule = source.__dlpack__(stream=LEGACY_DEFAULT_STREAM, max_version=(1, 0))
    except TypeError:  # a producer of before 1.0
        capsule = source.__dlpack__(stream=LEGACY_DEFAULT_STREAM)
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


def dlpack_capsule(
    array: ArrayLayout,
    device: Device,
    max_version: tuple[int, int] | None,
    *,
    is_read_only: bool = False,
) -> object:
    """Return a DLPack capsule of numbers, or of lists of them of a fixed size, without nulls.

    `None` is the version before 1.0, whose capsules cannot be marked as read-only.
    """
    leaf, shape = _find_shape(array)
    strides = [math.prod(shape[index + 1 :]) for index in range(len(shape))]
    dimensions = (ctypes.c_int64 * (2 * len(shape)))(*shape, *strides)
    data = leaf.buffers[1] or _SCRATCH
    owned = pa.foreign_buffer(data.address, data.size, (data, dimensions))
    numbers: Any = ArrayLayout(leaf.type, math.prod(shape), 0, (None, owned)).to_array()
    capsule = None
    if max_version is not None and max_version >= (1, 0):
        # Versions of pyarrow before 26 know no other capsule than that before 1.0.
        with contextlib.suppress(TypeError):
            capsule = numbers.__dlpack__(max_version=max_version)
    if capsule is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            capsule = numbers.__dlpack__()
        tensor = DLTensor.from_address(find_pointer(capsule, b"dltensor"))
    else:
        managed = DLManagedTensor.from_address(find_pointer(capsule, b"dltensor_versioned"))
        if not is_read_only:
            managed.flags &= ~_DLPACK_READ_ONLY
        tensor = managed.tensor
    tensor.device = DLDevice(device.type_code, device.index)
    # The capsule of pyarrow has one dimension. It keeps the buffer, and so these.
    tensor.ndim, tensor.shape = len(shape), ctypes.addressof(dimensions)
    tensor.strides = tensor.shape + ctypes.sizeof(dimensions) // 2
    return capsule


def _find_shape(array: ArrayLayout) -> tuple[ArrayLayout, tuple[int, ...]]:
    """Return the numbers in an array of them, or of lists of a fixed size, and its shape."""
    shape = [array.length]
    while array.children:
        shape.append(array.storage_type.list_size)
        array = array.children[0]
    return array, tuple(shape)


def array_interface(array: ArrayLayout, *, is_read_only: bool = False) -> dict[str, Any]:
    """Return the CUDA array interface of numbers, or of fixed-size lists, without its stream."""
    array, shape = _find_shape(array)
    data = array.buffers[1]
    return {
        "shape": shape,
        "typestr": array.type.to_pandas_dtype()().dtype.str,
        "data": (data.address if data is not None else 0, is_read_only),
        "strides": None,
        "version": 3,
    }


def device_capsules(
    schema: pa.Schema, columns: list[ArrayLayout], rows: int, device: Device, ready: Event
) -> DeviceCapsules:
    """Return the capsules of Arrow's C device interface."""
    empty = [column.without_values().move(_shadow).to_array() for column in columns]
    exported_schema, exported = pa.RecordBatch.from_arrays(
        empty, schema=schema
    ).__arrow_c_device_array__()
    array = read_device_array(exported)
    array.device_type, array.device_id = device.type_code, device.index
    array.sync_event = ready.handle or None
    array.array.length = rows
    for index, column in enumerate(columns):
        _fill(find_child(array.array, index), column)
    return exported_schema, exported


def _shadow(buffer: pa.Buffer) -> pa.Buffer:
    """Return a buffer of zeros in host memory that keeps another one alive."""
    return pa.foreign_buffer(_SCRATCH.address, _SCRATCH.size, buffer)


def _fill(target: ArrowArray, source: ArrayLayout) -> None:
    """Write the length and the addresses of an array into an exported structure."""
    target.length, target.null_count = source.length, source.null_count
    own = list(source.buffers)
    sizes: list[int] = []
    if source.storage_type.has_variadic_buffers:
        sizes = [0 if buffer is None else buffer.size for buffer in own[2:]]
    # The interface has no validity of nulls, unions and runs. The sizes of views come last.
    count = target.n_buffers - (1 if source.storage_type.has_variadic_buffers else 0)
    pointers = (ctypes.c_void_p * target.n_buffers).from_address(target.buffers or 0)
    for index, buffer in enumerate(own[len(own) - count :]):
        pointers[index] = buffer.address if buffer is not None and buffer.size else None
    if sizes:
        numbers = (ctypes.c_int64 * len(sizes)).from_address(pointers[count] or 0)
        numbers[:] = sizes
    for index, child in enumerate(source.children):
        _fill(find_child(target, index), child)
    if source.dictionary is not None:
        _fill(ArrowArray.from_address(target.dictionary), source.dictionary)
