"""Arrays of a device for other libraries: by DLPack, the CUDA array interface, and Arrow's.

pyarrow exports arrays of host memory only. It makes the structures for an array of the same
structure, whose buffers keep the memory of the device alive, and these functions write the device
and its addresses into them. So pyarrow frees the structures, at any time and in any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from typing import Any

import pyarrow as pa

from .array_layout import ArrayLayout
from .c_structures import (
    ArrowArray,
    DLDevice,
    DLManagedTensor,
    DLTensor,
    find_child,
    find_pointer,
    read_device_array,
)
from .device import Device, Event

DeviceCapsules = tuple[object, object]
"""The capsules ``arrow_schema`` and ``arrow_device_array``."""

_DLPACK_READ_ONLY = 1
_SCRATCH = pa.py_buffer(bytes(64))
"""What the buffers of an array without rows need to hold: an offset of 0."""


def dlpack_capsule(
    array: ArrayLayout,
    device: Device,
    max_version: tuple[int, int] | None,
    *,
    is_read_only: bool = False,
) -> object:
    """Return a DLPack capsule of an array of numbers without nulls.

    Parameters
    ----------
    array : ArrayLayout
        The array.
    device : Device
        The device that its memory is on.
    max_version : tuple of int, optional
        The version of DLPack that the consumer knows. `None` is that before 1.0.
    is_read_only : bool
        Whether others have this memory too. Capsules of before 1.0 cannot say so.
    """
    numbers: Any = ArrayLayout(array.type, array.length, 0, (None, array.buffers[1])).to_array()
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
    return capsule


def array_interface(array: ArrayLayout, *, is_read_only: bool = False) -> dict[str, Any]:
    """Return the CUDA array interface of numbers, or of lists of a fixed size, without nulls.

    The stream is missing.
    """
    shape = [array.length]
    while array.children:
        shape.append(array.storage_type.list_size)
        array = array.children[0]
    data = array.buffers[1]
    return {
        "shape": tuple(shape),
        "typestr": array.type.to_pandas_dtype()().dtype.str,
        "data": (data.address if data is not None else 0, is_read_only),
        "strides": None,
        "version": 3,
    }


def device_capsules(
    schema: pa.Schema, columns: list[ArrayLayout], rows: int, device: Device, ready: Event
) -> DeviceCapsules:
    """Return the capsules of Arrow's C device interface.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the batch.
    columns : list of ArrayLayout
        Its columns, with buffers in the memory of the device, which keep `ready` alive.
    rows : int
        Its number of rows.
    device : Device
        The device.
    ready : Event
        After which the memory has its contents.
    """
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
