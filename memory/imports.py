"""Arrow data in the memory of a device that another library owns: what a server sends from there.

The data comes through Arrow's C device interface, DLPack, or ``__cuda_array_interface__``. It is
never copied here, and the object that exported it stays alive as long as its memory is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from ..errors import UsageError
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator
from .array_layout import ArrayLayout
from .c_structures import find_child, read_device_array, read_tensor
from .cuda import CudaDevice, find_pointer_device
from .device import Device
from .imported_arrays import read_array, with_null_count
from .pinned import default_pinned_memory

_HOST_TYPES = (1, 3)  # the processor's memory, and page-locked memory
_CUDA, _CUDA_MANAGED = 2, 13
_SIGNED, _UNSIGNED, _FLOAT = 0, 1, 2
_KINDS = {"i": _SIGNED, "u": _UNSIGNED, "f": _FLOAT}
_TYPES: dict[tuple[int, int], Any] = {
    **{(_SIGNED, bits): getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{(_UNSIGNED, bits): getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    **{(_FLOAT, bits): getattr(pa, f"float{bits}")() for bits in (16, 32, 64)},
}
ARRAY_COLUMN = "values"
"""The name of the column of a dataset that is a single array."""

DEVICES: dict[int, Callable[[int], Device]] = {_CUDA: CudaDevice, _CUDA_MANAGED: CudaDevice}
"""The devices whose memory can be served, by their types as in DLPack; each by its number."""


@dataclass(frozen=True, slots=True)
class DeviceData:
    """A record batch in the memory of a device. Its contents are there, and do not change."""

    schema: pa.Schema
    columns: list[ArrayLayout]
    """The columns, whose buffers keep the memory alive."""
    num_rows: int
    device: Device
    type_code: int
    """The type of the memory, as in DLPack."""

    @property
    def nbytes(self) -> int:
        """The size of its buffers in bytes."""
        return sum(buffer.size for each in self.columns for buffer in each.list_buffers())


def import_device_data(source: Any) -> list[DeviceData] | None:
    """Return the record batches of an object in the memory of a device; None if it is not there.

    Parameters
    ----------
    source : object
        - An object with ``__arrow_c_device_array__``, or a list of such objects with one schema.
        - An array with ``__dlpack__`` or ``__cuda_array_interface__``. It becomes the column
          `ARRAY_COLUMN`. The dimensions after the first one become lists of a fixed size.
        - A mapping of names to such arrays of one length, which become the columns.

    Raises
    ------
    UsageError
        If the data is on a device that cannot be served, or has a type or layout that cannot.
    """
    if isinstance(source, (list, tuple)):
        items = cast("Sequence[Any]", source)
        if not items or not all(hasattr(item, "__arrow_c_device_array__") for item in items):
            return None
        parts = [_import_batch(item) for item in items]
        found = [part for part in parts if part is not None]
        return found if len(found) == len(parts) else None
    if isinstance(source, Mapping):
        return _import_columns(cast("Mapping[Any, Any]", source))
    if hasattr(source, "__arrow_c_device_array__"):
        part = _import_batch(source)
        return None if part is None else [part]
    return _import_columns({ARRAY_COLUMN: source})


def find_staging(data: DeviceData) -> Allocator:
    """Return the host memory to copy data to: page-locked memory, for a CUDA device."""
    is_cuda = data.type_code in (_CUDA, _CUDA_MANAGED)
    return default_pinned_memory() if is_cuda else DEFAULT_ALLOCATOR


def _import_batch(source: Any) -> DeviceData | None:
    if isinstance(source, (pa.RecordBatch, pa.Array)):
        return None
    schema_capsule, capsule = source.__arrow_c_device_array__()
    exported = read_device_array(capsule)
    type_code, array = exported.device_type, exported.array
    if type_code in _HOST_TYPES:
        return None
    device = _open_device(type_code, exported.device_id)
    # What the producer has queued has to be done before the host looks at offsets.
    device.synchronize()
    schema = pa.Schema._import_from_c_capsule(schema_capsule)  # pyright: ignore
    columns = [
        read_array(find_child(array, index), field.type, device, capsule, field.name)
        for index, field in enumerate(schema)
    ]
    if array.offset:
        columns = [column.slice(array.offset, array.length) for column in columns]
    columns = [with_null_count(column, device) for column in columns]
    return DeviceData(schema, columns, array.length, device, type_code)


def _import_columns(arrays: Mapping[Any, Any]) -> list[DeviceData] | None:
    imported = {str(name): _import_array(name, array) for name, array in arrays.items()}
    present = [each for each in imported.values() if each is not None]
    if not present or len(present) < len(imported):
        return None
    places = {(code, device.name) for _, device, code in present}
    lengths = {column.length for column, _, _ in present}
    if len(places) > 1 or len(lengths) > 1:
        raise UsageError(
            "the columns of a dataset have to be on one device, and to have one length; they have "
            f"{sorted(lengths)} rows on {sorted({name for _, name in places})}"
        )
    columns = [column for column, _, _ in present]
    fields = [pa.field(name, each.type) for name, each in zip(imported, columns, strict=True)]
    _, device, type_code = present[0]
    return [DeviceData(pa.schema(fields), columns, columns[0].length, device, type_code)]


def _import_array(name: object, source: Any) -> tuple[ArrayLayout, Device, int] | None:
    """Return a column, its device, and the type of its memory."""
    if hasattr(source, "__dlpack_device__"):
        type_code, index = source.__dlpack_device__()
        if type_code in _HOST_TYPES:
            return None
        device = _open_device(int(type_code), int(index))
        tensor = read_tensor(source)
        kind = tensor.code if tensor.lanes == 1 else -1
        column = _make_column(
            *(name, kind, tensor.bits, tensor.shape, tensor.strides),
            *(tensor.address, tensor.capsule),
        )
    elif hasattr(source, "__cuda_array_interface__"):
        interface = source.__cuda_array_interface__
        if interface.get("mask") is not None:
            raise UsageError(f"the array {name!r} has a mask; serve it as Arrow data instead")
        typestr, address = interface["typestr"], interface["data"][0]
        bits = 8 * int(typestr[2:])
        kind = _KINDS.get(typestr[1], -1) if typestr[0] in "<|" else -1
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(8 * stride // bits for stride in strides)
        type_code, index = find_pointer_device(address)
        device = _open_device(type_code, index)
        column = _make_column(name, kind, bits, interface["shape"], strides, address, source)
    else:
        return None
    # Whatever still writes to the array was queued before: afterwards nothing does.
    device.synchronize()
    return column, device, int(type_code)


def _make_column(
    name: object,
    kind: int,
    bits: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    address: int,
    owner: object,
) -> ArrayLayout:
    """Return an array of numbers as a column; `strides` count elements."""
    item = _TYPES.get((kind, bits))
    if item is None or not shape:
        raise UsageError(
            f"the array {name!r} cannot be a column; expected integers or floating-point numbers "
            "in at least one dimension"
        )
    compact = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    count = math.prod(shape)
    if strides is not None and count:
        pairs = zip(strides, compact, shape, strict=True)
        if any(stride != expected for stride, expected, size in pairs if size > 1):
            raise UsageError(f"the array {name!r} is strided; make it contiguous first")
    nbytes = count * bits // 8
    data = pa.foreign_buffer(address, nbytes, owner) if nbytes else pa.py_buffer(b"")
    column = ArrayLayout(item, count, 0, (None, data))
    for axis in range(len(shape) - 1, 0, -1):
        kind_of_list = pa.list_(column.type, shape[axis])
        column = ArrayLayout(kind_of_list, math.prod(shape[:axis]), 0, (None,), (column,))
    return column


def _open_device(type_code: int, index: int) -> Device:
    open_device = DEVICES.get(type_code)
    if open_device is None:
        raise UsageError(
            f"memory of the device type {type_code} (as DLPack counts them) cannot be served; "
            "expected a CUDA device, or copy the data to the host"
        )
    return open_device(index)
