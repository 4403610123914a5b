"""Record batches in the memory of a device as tensors there, without a look at their values.

The device itself gathers and joins the rows of blocks.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import pyarrow as pa

from ..errors import InvalidDataError, UsageError
from ..memory.array_layout import ArrayLayout
from ..memory.device_batch import DeviceBatch
from ..memory.device_memory import DeviceMemory, select_memory
from .tensors import (
    INTEGERS,
    TensorOptions,
    Tensors,
    fill_value,
    prefix_field,
    reshape_tensors,
    torch,
    torch_type,
)


def check_device(device: Any) -> Any:
    """Return a ``torch.device``, or None; raise `UsageError` if PyTorch does not find it."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"device is {device!r}: {str(error).partition(chr(10))[0]}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device is {str(found)!r}, but PyTorch finds no CUDA device")
    return found


def find_memory_device(memory: Any) -> Any:
    """Return the ``torch.device`` whose memory an argument ``memory`` names; None for the host's.

    Raises `UsageError` if the argument is invalid, or PyTorch does not find the device.
    """
    if memory is None:
        return None
    selected = select_memory(memory)
    return check_device(selected.device.name) if isinstance(selected, DeviceMemory) else None


def move(value: Any, device: Any) -> Any:
    """Return tensors on a device, also those in a list, and any other value unchanged."""
    if isinstance(value, list):
        return [move(each, device) for each in cast("list[Any]", value)]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def check_device_schema(schema: pa.Schema, device: str) -> None:
    """Raise `UsageError` if a column becomes no tensor without a look at its values."""
    for field in schema:
        if not _becomes_tensor(field.type):
            raise UsageError(
                f"the column {field.name!r} has the type {field.type}, which does not become a "
                f"tensor in the memory of {device}; leave it out of columns, or pass "
                f"device={device!r} in place of memory"
            )


def _becomes_tensor(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return all(_becomes_tensor(kind.field(index).type) for index in range(kind.num_fields))
    if isinstance(kind, pa.BaseExtensionType):
        return _becomes_tensor(kind.storage_type)
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return pa.types.is_boolean(kind) or _find_number(kind) is not None


def _find_number(kind: Any) -> Any:
    """Return the type as which numbers and times enter PyTorch, or None for other types.

    PyTorch lacks functions for unsigned integers of more than a byte.
    """
    types = pa.types
    if types.is_floating(kind):
        return kind
    if types.is_integer(kind) or (types.is_temporal(kind) and not types.is_interval(kind)):
        return INTEGERS[kind.bit_width]
    return None


class DeviceBatchTensors:
    """The tensors of one record batch on a device.

    Raises `InvalidDataError` if a column has nulls although ``on_null`` is ``error``.
    """

    def __init__(self, batch: DeviceBatch, options: TensorOptions) -> None:
        self._batch = batch
        self._options = options
        self._device = torch.device(batch.device)
        self.values: Tensors = {}
        """The tensors and masks by their names; unsigned integers as signed ones."""
        self.unsigned: dict[str, Any] = {}
        """The types of the tensors of unsigned integers."""
        for field, array in zip(batch.schema, batch.layouts, strict=True):
            self._convert(field, array, None)

    def _convert(self, field: Any, array: ArrayLayout, parent: Any) -> None:
        """Convert a column, or a field of a struct whose validity is `parent`."""
        name, options = field.name, self._options
        if array.null_count and options.on_null == "error":
            raise InvalidDataError(
                f"the column {name!r} has {array.null_count} nulls in a record batch; "
                "pass on_null='mask' or on_null='fill'"
            )
        valid = self._validity(name, array, parent)
        if pa.types.is_struct(array.storage_type):
            for index, child in enumerate(array.children):
                inner = prefix_field(name, array.storage_type.field(index))
                self._convert(inner, replace(child, length=array.length), valid)
        else:
            self.values[name] = reshape_tensors(self._fixed(name, array, valid), array.type)
        if options.on_null == "mask" and field.nullable:
            if valid is None:
                valid = torch.ones(array.length, dtype=torch.bool, device=self._device)
            self.values[f"{name}.mask"] = valid

    def _fixed(self, name: str, array: ArrayLayout, valid: Any) -> Any:
        """Return numbers, Booleans, or lists of them of a fixed size."""
        kind = array.storage_type
        if pa.types.is_fixed_size_list(kind):
            count = array.length * kind.list_size
            items = replace(array.children[0], length=count)
            inner_valid = self._validity(name, items, None)
            if items.null_count and self._options.on_null == "error":
                raise InvalidDataError(
                    f"the lists of the column {name!r} have nulls; pass on_null='fill'"
                )
            inner = self._fixed(name, items, inner_valid)
            tensor = inner.reshape(array.length, kind.list_size, *inner.shape[1:])
        elif pa.types.is_boolean(kind):
            tensor = self._bits(name, array.buffers[1], array.length)
        else:
            tensor = self._numbers(name, _find_number(kind), array.buffers[1], array.length)
            if pa.types.is_unsigned_integer(kind) and kind.bit_width > 8:
                self.unsigned[name] = getattr(torch, f"uint{kind.bit_width}")
            elif pa.types.is_uint8(kind):
                tensor = tensor.view(torch.uint8)
        if valid is None:
            return tensor
        fill = fill_value(tensor.is_floating_point(), self._options)
        return tensor.masked_fill(~valid.view(-1, *(1,) * (tensor.dim() - 1)), fill)

    def _validity(self, name: str, array: ArrayLayout, parent: Any) -> Any:
        """Return where an array and its parent have values; None if they have no nulls."""
        if not array.null_count or array.buffers[0] is None:
            return parent
        valid = self._bits(name, array.buffers[0], array.length)
        return valid if parent is None else valid & parent

    def _bits(self, name: str, buffer: Any, length: int) -> Any:
        """Return the bits of a buffer as Booleans."""
        packed = self._numbers(name, pa.uint8(), buffer, -(-length // 8))
        shifts = torch.arange(8, dtype=torch.uint8, device=self._device)
        return ((packed.unsqueeze(1) >> shifts) & 1).reshape(-1)[:length].to(torch.bool)

    def _numbers(self, name: str, kind: Any, buffer: Any, length: int) -> Any:
        if not length:
            return torch.empty(0, dtype=torch_type(kind), device=self._device)
        layout = ArrayLayout(kind, length, 0, (None, buffer))
        return torch.from_dlpack(self._batch.export(name, layout))


def find_stream(device: Any) -> int:
    """Return the handle of the stream on which this thread uses a device; 0 for the processor."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def wait_for_stream(device: Any) -> None:
    """Wait until the device has ended the work of this thread's stream."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class DeviceRows:
    """The rows of a block on a device, in the order of the epoch. Any thread may use it.

    Each record batch has rows. Without a permutation, their order is that of the record batches.
    """

    def __init__(self, batches: list[DeviceBatch], permutation: Any) -> None:
        self._batches = batches
        self._permutation = permutation
        self._ends = list(accumulate(batch.num_rows for batch in batches))
        self._device = torch.device(batches[0].device)
        self._lock = threading.Lock()
        self._stream: int | None = None
        """The stream that the tensors below are for: others might use them too early."""
        self._tensors: list[Tensors] = []
        self._order: Any = None
        self.unsigned: dict[str, Any] = {}
        """The types of the tensors of unsigned integers, which `tensors` returns as signed."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._ends[-1]

    def tensors(self, begin: int, end: int, options: TensorOptions) -> Tensors:
        """Return rows as tensors, for the stream on which this thread uses the device."""
        with self._lock:
            stream = find_stream(self._device)
            if stream != self._stream:
                self._convert(options)
                self._stream = stream
            if self._order is None:
                return join_tensors(list(self._cut(begin, end)))
            index = self._order[begin:end]
            return {name: each.index_select(0, index) for name, each in self._tensors[0].items()}

    def _convert(self, options: TensorOptions) -> None:
        converted = [DeviceBatchTensors(batch, options) for batch in self._batches]
        self.unsigned = converted[0].unsigned
        self._tensors = [each.values for each in converted]
        if self._permutation is not None:
            self._order = torch.from_dlpack(self._permutation.view(pa.int64())).to(self._device)
            self._tensors = [join_tensors(self._tensors)]

    def _cut(self, begin: int, end: int) -> Iterator[Tensors]:
        """Yield the rows from `begin` to `end`, in slices of the record batches."""
        index = bisect_right(self._ends, begin)
        while begin < end:
            last = min(end, self._ends[index])
            first = self._ends[index] - self._batches[index].num_rows
            # Such slices have no version counter in common: autograd does not confuse them.
            yield {
                name: each.data[begin - first : last - first].data
                for name, each in self._tensors[index].items()
            }
            begin = last
            index += 1


def convert_parts(parts: Sequence[tuple[DeviceRows, int, int]], options: TensorOptions) -> Tensors:
    """Return rows of one or more blocks as tensors.

    A part is a block, its first row, and the row after the last. Raises `InvalidDataError` if a
    record batch has nulls, and these are errors.
    """
    tensors = join_tensors([rows.tensors(begin, end, options) for rows, begin, end in parts])
    for name, kind in parts[0][0].unsigned.items():
        tensors[name] = tensors[name].view(kind)
    return tensors


def join_tensors(parts: Sequence[Tensors]) -> Tensors:
    """Return consecutive rows as one tensor for each name, without a copy of a single part."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
