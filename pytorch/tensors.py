"""Arrow arrays as tensors, without a copy where the memory has the layout of a tensor."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidDataError, MissingExtraError, UsageError, install_hint
from ..formats.arguments import check_choice, check_texts, refuse
from ..formats.arrow.message import parse_prefix
from ..formats.arrow.schema import find_schema
from .decoding import FINDERS, decode_audio, decode_images
from .plan import Categories
from .record_batches import decode_runs, with_plain_type


def _import_torch() -> Any:
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError(
            f"splitarrow.pytorch needs PyTorch: {install_hint('torch')}"
        ) from None


torch = _import_torch()
"""The package, which the extra ``torch`` installs. Its types are not checked."""

_compute: Any = pc  # its stubs lack functions and types

OnNull = Literal["error", "mask", "fill"]
"""What happens to nulls."""
Strings = Literal["list", "bytes"]
"""What texts and binary values become."""
Decode = str | Mapping[str, str]
"""What all binary columns are decoded as, or what each of some columns is decoded as."""
Tensors = dict[str, Any]
"""Tensors, and lists of texts or of tensors of different shapes, by name."""

_VIEWS = 16
"""The slices whose views are made together."""
INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
"""The types of integers by their width in bits."""


@dataclass(frozen=True, slots=True)
class TensorOptions:
    """How to convert record batches. It is valid once built, and can be pickled."""

    on_null: OnNull = "error"
    """``error`` raises, ``mask`` adds a tensor ``NAME.mask``, ``fill`` takes 0, NaN or empty."""
    strings: Strings = "list"
    """``list`` makes lists of texts, ``bytes`` tensors of bytes and offsets."""
    decode: Decode | None = None
    """``image`` and ``audio`` decode binary columns: all of them, or those of a mapping."""

    def __post_init__(self) -> None:
        for name, choices in (("on_null", OnNull), ("strings", Strings)):
            check_choice(name, getattr(self, name), choices)
        decode: Any = self.decode
        if decode is None:
            return
        kinds: list[Any] = [decode] if isinstance(decode, str) else []
        if isinstance(decode, Mapping):
            kinds = list(check_texts("decode", decode).values())
        if not kinds or not set(kinds).issubset(FINDERS):
            refuse("decode", decode, "'image', 'audio', or a mapping such as {'picture': 'image'}")
        for kind in dict.fromkeys(kinds):
            FINDERS[kind]()

    def find_decoder(self, name: str) -> str | None:
        """Return what the values of a binary column are decoded as; None if they are not."""
        if self.decode is None or isinstance(self.decode, str):
            return self.decode
        return self.decode.get(name)


def convert_batch(batch: pa.RecordBatch, options: TensorOptions, categories: Categories) -> Tensors:
    """Return the columns of a record batch as tensors.

    They may share its memory, which must not be written then. Raises `UsageError` if a column has a
    type that does not become a tensor. Raises `InvalidDataError` if a column has nulls although
    ``on_null`` is ``error``, or a dictionary has an unknown category.
    """
    converter = _Converter(options, categories)
    tensors: Tensors = {}
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if _is_plain(field, array, options):
            tensors[field.name] = torch.from_dlpack(array)
        else:
            tensors.update(converter.convert(field, array))
    return tensors


def split_rows(
    tensors: Tensors, schema: pa.Schema, rows: int, options: TensorOptions
) -> list[Tensors]:
    """Return the values of each row, given the tensors of a record batch with some schema.

    The values of a list are one tensor, without offsets.
    """
    columns: dict[str, Sequence[Any]] = {}
    if rows:
        for field in schema:
            columns.update(_split_column(tensors, field, None, options))
    values = zip(*columns.values(), strict=True) if columns else iter([()] * rows)
    return [dict(zip(columns, row, strict=True)) for row in values]


def _split_column(
    tensors: Tensors, field: Any, offsets: Any, options: TensorOptions, level: int = 0
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the names of the tensors of a column with their values for each row.

    With `offsets`, these are the values for each list of them. See `_Converter.convert` for
    `level`.
    """
    name, kind, types = field.name, _find_storage(field.type), pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if types.is_struct(kind) and not _has_shapes(field):
        for index in range(kind.num_fields):
            child = prefix_field(name, kind.field(index))
            yield from _split_column(tensors, child, offsets, options)
    elif is_list or (_is_text(kind) and not isinstance(tensors[name], list)):
        lists = tensors[name_offsets(name, level)]
        found: Iterable[tuple[str, Sequence[Any]]]
        if is_list:
            found = _split_column(tensors, _item_field(name, kind), lists, options, level + 1)
        else:
            found = [(name, _split(tensors[name], lists))]
        for key, values in found:
            yield key, values if offsets is None else _split(values, offsets)
    else:
        yield name, _split(tensors[name], offsets)
        if options.find_decoder(name) == "audio" and name in _list_binary(field):
            yield _name_rates(name), _split(tensors[_name_rates(name)], offsets)
    if options.on_null == "mask" and field.nullable:
        yield f"{name}.mask", _split(tensors[f"{name}.mask"], offsets)


def _split(values: Any, offsets: Any) -> Sequence[Any]:
    """Return each value, or with offsets the values of each list."""
    is_tensor = isinstance(values, torch.Tensor)
    if offsets is None:
        return values.unbind() if is_tensor else values
    if is_tensor:
        return torch.split(values, offsets.diff().tolist())
    return [values[begin:end] for begin, end in pairwise(offsets.tolist())]


def convert_plain(field: Any, array: Any, options: TensorOptions) -> Any:
    """Return an array of numbers or times as a tensor, or None if that needs a copy or a mask."""
    kind, types = array.type, pa.types
    is_time = types.is_temporal(kind) and not types.is_interval(kind)
    is_number = types.is_integer(kind) or types.is_floating(kind) or is_time
    has_mask = options.on_null == "mask" and field.nullable
    if not is_number or has_mask or not len(array) or array.null_count:
        return None
    return torch.from_dlpack(_without_validity(_as_numbers(field.name, array)))


def _is_plain(field: Any, array: Any, options: TensorOptions) -> bool:
    """Return whether an array becomes a tensor as it is, like most columns of numbers."""
    return (
        array.type in _DTYPES
        and len(array) > 0
        and array.buffers()[0] is None
        and not (options.on_null == "mask" and field.nullable)
    )


def check_schema(schema: pa.Schema, options: TensorOptions, categories: Categories) -> None:
    """Raise `UsageError` if a column does not become a tensor, or has nothing to decode."""
    if options.decode is not None:
        found = {name for field in schema for name in _list_binary(field)}
        if isinstance(options.decode, str):
            if not found:
                raise UsageError(f"decode is {options.decode!r}, but no column has binary values")
        elif unknown := options.decode.keys() - found:
            raise UsageError(f"decode has {', '.join(sorted(unknown))}: not a binary column")
    # pyarrow.array would import pandas, if it is installed.
    arrays = [pa.nulls(0, field.type) for field in schema]
    convert_batch(pa.RecordBatch.from_arrays(arrays, schema=schema), options, categories)


class _Converter:
    """Converts columns; each method yields pairs of a name and a tensor."""

    def __init__(self, options: TensorOptions, categories: Categories) -> None:
        self._options = options
        self._categories = categories

    def convert(self, field: Any, array: Any, level: int = 0) -> Iterator[tuple[str, Any]]:
        """Yield the tensors of one column, and its mask.

        `level` is the number of lists around the values whose offsets have the name of the column.
        """
        name, array = field.name, with_plain_type(array)
        if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
            array = array.dictionary_decode().dictionary_encode()  # nulls of the indices alone
        if array.null_count and self._options.on_null == "error":
            raise InvalidDataError(
                f"the column {name!r} has {array.null_count} nulls; "
                "pass on_null='mask' or on_null='fill'"
            )
        if _has_shapes(field):
            yield name, self._shaped(field, array)
        else:
            yield from self._values(name, array, level)
        if self._options.on_null == "mask" and field.nullable:
            yield f"{name}.mask", _bool_tensor(array.is_valid())

    def _values(self, name: str, array: Any, level: int) -> Iterator[tuple[str, Any]]:
        kind = array.type
        types = pa.types
        if types.is_dictionary(kind):
            yield name, self._codes(name, array)
        elif _is_text(kind):
            yield from self._texts(name, array, level)
        elif types.is_list(kind) or types.is_large_list(kind):
            yield from self._lists(name, array, level)
        elif types.is_struct(kind):
            for index, child in enumerate(array.flatten()):
                yield from self.convert(prefix_field(name, kind.field(index)), child)
        elif types.is_run_end_encoded(kind):
            yield from self._values(name, decode_runs(array), level)
        elif isinstance(kind, pa.FixedShapeTensorType):
            yield name, reshape_tensors(_fixed(name, array.storage, self._options), kind)
        elif isinstance(kind, pa.BaseExtensionType):
            yield from self._values(name, array.storage, level)
        else:
            yield name, _fixed(name, array, self._options)

    def _codes(self, name: str, array: Any) -> Any:
        categories = self._categories.get(name)
        if categories is None:
            raise UsageError(
                f"{name!r} has a dictionary, but is not a column of the dataset; "
                "cast it to its values"
            )
        codes = _compute.index_in(array.dictionary, value_set=categories)
        codes = codes.take(array.indices).cast(pa.int64())
        unknown = array.is_valid() if codes.null_count else None
        if unknown is not None and codes.null_count > array.null_count:
            value = array.filter(_compute.and_(unknown, codes.is_null()))[0].as_py()
            raise InvalidDataError(
                f"the column {name!r} has the value {value!r}, which the first record batches do "
                f"not have; pass categories={{{name!r}: [...]}} with all values"
            )
        return _shared(_filled(codes, 0))

    def _texts(self, name: str, array: Any, level: int) -> Iterator[tuple[str, Any]]:
        is_binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
        decoder = self._options.find_decoder(name) if is_binary else None
        if decoder == "image":
            yield name, decode_images(name, array)
            return
        if decoder == "audio":
            samples, rates = decode_audio(name, array)
            yield name, samples
            yield _name_rates(name), rates
            return
        if self._options.strings == "list":
            empty = b"" if "binary" in str(array.type) else ""
            yield name, _filled(array, empty).to_pylist()
            return
        offsets = _offsets(array)
        begin, end = int(offsets[0]), int(offsets[-1])
        data = array.buffers()[2]
        values = pa.Array.from_buffers(
            pa.uint8(), end - begin, [None, data or pa.py_buffer(b"")], offset=begin
        )
        yield name, _shared(values)
        yield name_offsets(name, level), offsets - begin

    def _lists(self, name: str, array: Any, level: int) -> Iterator[tuple[str, Any]]:
        offsets, values = _flatten(array)
        yield from self.convert(_item_field(name, array.type), values, level + 1)
        yield name_offsets(name, level), offsets

    def _shaped(self, field: Any, array: Any) -> list[Any]:
        """Return the tensors of a ``variable_shape_tensor`` column, which are views of its values.

        A null becomes a tensor without values.
        """
        name, storage = field.name, getattr(array, "storage", array)
        parts = {
            each.name: part for each, part in zip(storage.type, storage.flatten(), strict=True)
        }
        offsets, values = _flatten(parts["data"])
        shapes = _fixed(name, parts["shape"], self._options).tolist()
        permutation = _read_parameters(field).get("permutation")
        ((_, flat),) = self.convert(pa.field(name, values.type, nullable=False), values)
        tensors: list[Any] = []
        for number, tensor in enumerate(_split(flat, offsets)):
            shape = shapes[number]
            if min(shape, default=0) < 0 or math.prod(shape) != len(tensor):
                raise InvalidDataError(
                    f"tensor {number} of the column {name!r} has {len(tensor)} values, but the "
                    f"shape {shape}"
                )
            tensor = tensor.reshape(shape)
            tensors.append(tensor if permutation is None else tensor.permute(permutation))
        return tensors


def name_offsets(name: str, level: int) -> str:
    """Return the name of the offsets of a column's lists, which are in `level` lists of others."""
    return f"{name}.offsets.{level}" if level else f"{name}.offsets"


def _name_rates(name: str) -> str:
    """Return the name of the sample rates of a column's audio."""
    return f"{name}.sample_rate"


def _flatten(array: Any) -> tuple[Any, Any]:
    """Return the offsets of an array of lists as a tensor, from 0, and their values."""
    if array.null_count:
        # The values of null lists are not part of the result.
        lengths = _compute.fill_null(_compute.list_value_length(array), 0).cast(pa.int64())
        ends = _shared(_compute.cumulative_sum(lengths))
        return torch.cat([torch.zeros(1, dtype=torch.int64), ends]), array.flatten()
    offsets = _offsets(array)
    return offsets - int(offsets[0]), array.flatten()


def _item_field(name: str, kind: Any) -> Any:
    """Return the field of the values of lists under the name of their column."""
    return kind.value_field.with_name(name).with_nullable(False)


_SHAPED = "arrow.variable_shape_tensor"
_EXTENSION_NAME, _PARAMETERS = b"ARROW:extension:name", b"ARROW:extension:metadata"


def _has_shapes(field: Any) -> bool:
    """Return whether a column has tensors of different shapes, also if pyarrow has no such type."""
    found = getattr(field.type, "extension_name", None)
    return _SHAPED in (found, (field.metadata or {}).get(_EXTENSION_NAME, b"").decode())


def _read_parameters(field: Any) -> dict[str, Any]:
    """Return the parameters of an extension type; pyarrow has no method for them."""
    message = memoryview(pa.schema([field]).serialize())
    stored: Any = find_schema(message[parse_prefix(bytes(message[:8])).nbytes :]).Fields(0)
    pairs = (stored.CustomMetadata(index) for index in range(stored.CustomMetadataLength()))
    return json.loads({pair.Key(): pair.Value() for pair in pairs}.get(_PARAMETERS) or b"{}")


def _list_binary(field: Any) -> Iterator[str]:
    """Yield the names of the binary values in a column."""
    kind = _find_storage(field.type)
    if pa.types.is_struct(kind) and not _has_shapes(field):
        for index in range(kind.num_fields):
            yield from _list_binary(prefix_field(field.name, kind.field(index)))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _list_binary(_item_field(field.name, kind))
    elif _is_text(kind) and "binary" in str(kind):
        yield field.name


def _find_storage(kind: Any) -> Any:
    """Return the type of the values of run-end encoded columns and most extension types."""
    if pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    while isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        kind = kind.storage_type
    return kind


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of texts or binary values of any length."""
    types = pa.types
    return (
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    )


def prefix_field(name: str, field: Any) -> Any:
    """Return a field of a struct under the name of its tensor."""
    return field.with_name(f"{name}.{field.name}")


def _offsets(array: Any) -> Any:
    """Return the offsets of an array of lists or texts as a tensor."""
    kind = array.type
    is_large = (
        pa.types.is_large_list(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )
    integer = pa.int64() if is_large else pa.int32()
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return torch.zeros(1, dtype=torch.int64 if is_large else torch.int32)
    buffers = [None, buffer]
    return _shared(pa.Array.from_buffers(integer, len(array) + 1, buffers, offset=array.offset))


def _fixed(name: str, array: Any, options: TensorOptions) -> Any:
    """Return an array of numbers, or of lists of fixed size, as a tensor of one or more dimensions.

    A null list is filled like a null number.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        return _bool_tensor(_filled(array, False))
    if not pa.types.is_fixed_size_list(kind):
        return _shared(_fill(_as_numbers(name, array), options))
    size = kind.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    if items.null_count and options.on_null == "error":
        raise InvalidDataError(f"the lists of the column {name!r} have nulls; pass on_null='fill'")
    inner = _fixed(name, items, options)
    tensor = inner.reshape(len(array), size, *inner.shape[1:])
    if array.null_count:
        tensor = tensor.clone()
        tensor[~_bool_tensor(array.is_valid())] = fill_value(tensor.is_floating_point(), options)
    return tensor


def _as_numbers(name: str, array: Any) -> Any:
    """Return an array of integers or floating-point numbers that shares its memory, if it can."""
    kind, types = array.type, pa.types
    if types.is_integer(kind) or types.is_floating(kind):
        return array
    if types.is_temporal(kind) and not types.is_interval(kind):
        return array.view(INTEGERS[kind.bit_width])
    if types.is_decimal(kind):
        return array.cast(pa.float64())
    raise UsageError(
        f"the column {name!r} has the type {kind}, which does not become a tensor; "
        "leave it out of columns"
    )


def _fill(array: Any, options: TensorOptions) -> Any:
    """Return an array without nulls."""
    value = fill_value(pa.types.is_floating(array.type), options)
    return _filled(array, value) if array.null_count else _without_validity(array)


def _filled(array: Any, value: Any) -> Any:
    """Return an array with a value in place of nulls.

    pyarrow imports pandas to convert the value, so it must not convert it in vain.
    """
    return array.fill_null(value) if array.null_count else array


def fill_value(is_floating: bool, options: TensorOptions) -> float:
    """Return what nulls of numbers become."""
    return float("nan") if is_floating and options.on_null == "fill" else 0


def _without_validity(array: Any) -> Any:
    buffers = array.buffers()
    if buffers[0] is None:
        return array
    return pa.Array.from_buffers(array.type, len(array), [None, buffers[1]], offset=array.offset)


def reshape_tensors(values: Any, kind: Any) -> Any:
    """Return the values of a ``fixed_shape_tensor`` column in their logical shape, others as is."""
    if not isinstance(kind, pa.FixedShapeTensorType):
        return values
    tensor = values.reshape(len(values), *kind.shape)
    if kind.permutation is not None:
        tensor = tensor.permute(0, *(dimension + 1 for dimension in kind.permutation))
    return tensor


def torch_type(kind: pa.DataType) -> Any:
    """Return the type of the tensors of numbers of an Arrow type."""
    return _DTYPES[kind]()


def _bool_tensor(array: Any) -> Any:
    return _shared(array.cast(pa.uint8())).view(torch.bool)


def _shared(array: Any) -> Any:
    """Return a tensor that shares the memory of an array of numbers."""
    if not len(array):
        return torch.empty(0, dtype=torch_type(array.type))
    return torch.from_dlpack(array)


_DTYPES: dict[pa.DataType, Callable[[], Any]] = {
    pa.int8(): lambda: torch.int8,
    pa.int16(): lambda: torch.int16,
    pa.int32(): lambda: torch.int32,
    pa.int64(): lambda: torch.int64,
    pa.uint8(): lambda: torch.uint8,
    pa.uint16(): lambda: torch.uint16,
    pa.uint32(): lambda: torch.uint32,
    pa.uint64(): lambda: torch.uint64,
    pa.float16(): lambda: torch.float16,
    pa.float32(): lambda: torch.float32,
    pa.float64(): lambda: torch.float64,
}


class BatchTensors:
    """The tensors of consecutive slices of a record batch. Safe to use from several threads.

    Columns that become tensors without a copy are converted once. A slice has views of them, which
    share a storage, but no version counter: autograd does not confuse them.
    """

    def __init__(
        self, batch: pa.RecordBatch, options: TensorOptions, categories: Categories
    ) -> None:
        self._rows = batch.num_rows
        self._options = options
        self._categories = categories
        self._plain: Tensors = {}
        self._others: dict[str, pa.RecordBatch] = {}
        self._names = batch.schema.names
        for index, (field, array) in enumerate(zip(batch.schema, batch.columns, strict=True)):
            tensor = convert_plain(field, array, options)
            if tensor is None:
                self._others[field.name] = batch.select([index])
            else:
                self._plain[field.name] = tensor
        self._views: dict[tuple[int, int], Tensors] = {}
        self._lock = threading.Lock()

    def slice(self, begin: int, end: int) -> Tensors:
        """Return the tensors of the rows from `begin` to `end`, of which there is at least one.

        Raises `SplitArrowError` as `convert_batch` does.
        """
        plain = self._slice_plain(begin, end)
        if not self._others:
            return plain
        tensors: Tensors = {}
        for name in self._names:
            if name in plain:
                tensors[name] = plain[name]
            else:
                other = self._others[name].slice(begin, end - begin)
                tensors.update(convert_batch(other, self._options, self._categories))
        return tensors

    def _slice_plain(self, begin: int, end: int) -> Tensors:
        """Return the views of a slice, and make those of the slices after it as well."""
        if (begin, end) == (0, self._rows) or not self._plain:
            return dict(self._plain)
        with self._lock:
            if (begin, end) not in self._views:
                self._make_views(begin, end - begin)
            return self._views.pop((begin, end))

    def _make_views(self, begin: int, rows: int) -> None:
        end = min(begin + _VIEWS * rows, self._rows)
        # The outputs of `split` would share a version counter.
        columns = [torch.unsafe_split(each[begin:end], rows) for each in self._plain.values()]
        for views in zip(*columns, strict=True):
            last = min(begin + rows, end)
            self._views[begin, last] = dict(zip(self._plain, views, strict=True))
            begin = last
