"""Arrow data in the memory of a device that another library owns: what a server sends from there.

Arrays arrive over Arrow's C device interface or DLPack, and can be copied to the host.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UsageError
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator
from .array_layout import ArrayLayout, find_offset_width
from .device import CUDA, CUDA_MANAGED, CudaDevice, Device, find_pointer_device
from .interfaces import ArrowArray, find_buffer, find_child, read_device_array, read_tensor
from .pinned import default_pinned_memory

BufferCopy = Callable[[pa.Buffer], pa.Buffer]
"""Returns a copy of a buffer of a device in host memory."""
ARRAY_COLUMN = "values"
"""The name of the column of a dataset that is a single array."""
DEVICES: dict[int, Callable[[int], Device]] = {CUDA: CudaDevice, CUDA_MANAGED: CudaDevice}
"""The devices whose memory can be served, by their types as in DLPack; each by its number."""
_EMPTY = pa.py_buffer(b"")
_HOST_TYPES = (1, 3)  # the processor's memory, and page-locked memory
_SIGNED, _UNSIGNED, _FLOAT = 0, 1, 2
_KINDS = {"i": _SIGNED, "u": _UNSIGNED, "f": _FLOAT}
_TYPES: dict[tuple[int, int], Any] = {
    **{(_SIGNED, bits): getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{(_UNSIGNED, bits): getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    **{(_FLOAT, bits): getattr(pa, f"float{bits}")() for bits in (16, 32, 64)},
}


def read_array(
    array: ArrowArray, kind: Any, device: Device, owner: object, column: str
) -> ArrayLayout:
    """Return the layout of an exported array.

    Raises `UsageError` if arrays of the type cannot be served from a device, or have an offset
    within a byte.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return replace(read_array(array, kind.storage_type, device, owner, column), type=kind)
    if not _is_supported(kind):
        raise UsageError(
            f"the column {column!r} of the type {kind} cannot be served from a device; convert "
            "it, or copy it to the host"
        )
    begin, end = array.offset, array.offset + array.length
    bitmap_bytes = -(-end // 8)

    def buffer(index: int, nbytes: int) -> pa.Buffer | None:
        address = find_buffer(array, index)
        if not address:
            return None
        return pa.foreign_buffer(address, nbytes, owner) if nbytes else _EMPTY

    def child(index: int, child_kind: Any) -> ArrayLayout:
        return read_array(find_child(array, index), child_kind, device, owner, column)

    children: tuple[ArrayLayout, ...] = ()
    dictionary = None
    types = pa.types
    if types.is_null(kind):
        return ArrayLayout(kind, array.length, array.length, (None,))
    own: list[pa.Buffer | None] = [buffer(0, bitmap_bytes)]
    if types.is_dictionary(kind):
        own.append(buffer(1, end * kind.index_type.bit_width // 8))
        values = ArrowArray.from_address(array.dictionary)
        dictionary = read_array(values, kind.value_type, device, owner, column)
    elif (width := find_offset_width(kind)) is not None:
        own.append(buffer(1, (end + 1) * width))
        if kind.num_fields:
            children = (child(0, kind.field(0).type),)
        else:
            last = _read_offset(device, own[1], end, width)
            own.append(buffer(2, last) or _EMPTY)
    elif types.is_struct(kind):
        children = tuple(child(index, kind.field(index).type) for index in range(kind.num_fields))
    elif types.is_fixed_size_list(kind):
        children = (child(0, kind.value_type),)
    else:
        own.append(buffer(1, -(-end * kind.bit_width // 8)) or _EMPTY)
    layout = ArrayLayout(kind, end, array.null_count, tuple(own), children, dictionary)
    if begin:
        if begin % 8:
            raise UsageError(
                f"the column {column!r} begins {begin} rows into its buffers; copy it first, or "
                "cut it at a multiple of 8 rows"
            )
        layout = layout.slice(begin, array.length)
    return layout


def with_null_count(layout: ArrayLayout, device: Device) -> ArrayLayout:
    """Return an array with all null counts, which may need copies of validities on the host."""
    validity, count = layout.buffers[0], layout.null_count
    if count < 0:
        count = 0
        if validity is not None and validity.size:
            host = copy_buffer(device, validity)
            flags: Any = pa.Array.from_buffers(pa.bool_(), layout.length, [None, host])
            count = layout.length - flags.true_count
    return replace(
        layout,
        null_count=count,
        children=tuple(with_null_count(child, device) for child in layout.children),
        dictionary=layout.dictionary and with_null_count(layout.dictionary, device),
    )


def copy_buffer(device: Device, source: pa.Buffer) -> pa.Buffer:
    """Return a copy of a buffer in pageable host memory."""
    target = pa.allocate_buffer(source.size)
    device.copy_out(target.address, source.address, source.size)
    return target


def fetch_array(
    layout: ArrayLayout, copy: BufferCopy, dictionaries: dict[int, ArrayLayout]
) -> pa.Array[Any]:
    """Return a copy of an array in host memory: of no more than its rows refer to."""
    return _fetch(layout, copy, dictionaries).to_array()


def _fetch(
    layout: ArrayLayout, copy: BufferCopy, dictionaries: dict[int, ArrayLayout]
) -> ArrayLayout:
    own = [each and (copy(each) if each.size else each) for each in layout.buffers[:2]]
    children = layout.children
    width = find_offset_width(layout.storage_type)
    if width is None or layout.dictionary is not None:
        children = tuple(_fetch(child, copy, dictionaries) for child in children)
        values = layout.dictionary
        if values is not None:
            if id(values) not in dictionaries:
                dictionaries[id(values)] = _fetch(values, copy, dictionaries)
            values = dictionaries[id(values)]
        return replace(layout, buffers=tuple(own), children=children, dictionary=values)
    kind = pa.int32() if width == 4 else pa.int64()
    offsets: Any = pa.Array.from_buffers(kind, layout.length + 1, [None, own[1]])
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if children:
        first &= ~7  # the validity of the values begins at a byte
        children = (_fetch(children[0].slice(first, last - first), copy, dictionaries),)
    else:
        data = layout.buffers[2]
        own.append(copy(data.slice(first, last - first)) if data and last > first else _EMPTY)
    if first:
        own[1] = pc.subtract(offsets, pa.scalar(first, kind)).buffers()[1]
    return replace(layout, buffers=tuple(own), children=children)


def _is_supported(kind: Any) -> bool:
    types = pa.types
    is_view = (
        kind.has_variadic_buffers or types.is_list_view(kind) or types.is_large_list_view(kind)
    )
    return not (is_view or types.is_union(kind) or types.is_run_end_encoded(kind))


def _read_offset(device: Device, offsets: pa.Buffer | None, index: int, width: int) -> int:
    if offsets is None or offsets.size < (index + 1) * width:
        return 0
    host = copy_buffer(device, offsets.slice(index * width, width))
    value: int = struct.unpack("<i" if width == 4 else "<q", host)[0]
    if value < 0:
        raise UsageError(f"an array on a device has the offset {value}")
    return value


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

    The object is one of these:

    - An object with ``__arrow_c_device_array__``, or a list of such objects with one schema.
    - An array with ``__dlpack__`` or ``__cuda_array_interface__``. It becomes the column
      `ARRAY_COLUMN`. The dimensions after the first one become lists of a fixed size.
    - A mapping of names to such arrays of one length, which become the columns.

    Raises `UsageError` if the data is on a device that cannot be served, or has a type or layout
    that cannot.
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
    is_cuda = data.type_code in (CUDA, CUDA_MANAGED)
    return default_pinned_memory().staging if is_cuda else DEFAULT_ALLOCATOR


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
    data = pa.foreign_buffer(address, nbytes, owner) if nbytes else _EMPTY
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
