"""Record batches in the memory of a device as tensors there. The processor looks at no value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..errors import InvalidDataError, UsageError
from ..memory.array_layout import ArrayLayout
from ..memory.device_batch import DeviceBatch
from .tensors import TensorOptions, Tensors, fill_value, prefix_field, torch_type
from .torch_module import torch

_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def check_device_schema(schema: pa.Schema, device: str) -> None:
    """Check that all columns become tensors without a look at their values by the processor.

    Raises
    ------
    UsageError
        If a column does not.
    """
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
        return _INTEGERS[kind.bit_width]
    return None


class DeviceBatchTensors:
    """The tensors of one record batch on a device.

    Parameters
    ----------
    batch : DeviceBatch
        The record batch, of a schema that `check_device_schema` accepts.
    options : TensorOptions
        How to convert.

    Raises
    ------
    InvalidDataError
        If a column has nulls although ``on_null`` is ``error``.
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
            self.values[name] = self._shaped(name, array, valid)
        if options.on_null == "mask" and field.nullable:
            if valid is None:
                valid = torch.ones(array.length, dtype=torch.bool, device=self._device)
            self.values[f"{name}.mask"] = valid

    def _shaped(self, name: str, array: ArrayLayout, valid: Any) -> Any:
        tensor, kind = self._fixed(name, array, valid), array.type
        if isinstance(kind, pa.FixedShapeTensorType):
            tensor = tensor.reshape(array.length, *kind.shape)
            if kind.permutation is not None:
                tensor = tensor.permute(0, *(dimension + 1 for dimension in kind.permutation))
        return tensor

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
