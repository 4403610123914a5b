"""Checks of record batches and dictionary batches before anything is decoded.

A record batch lists the field nodes and the buffers of its arrays in depth-first order ("Field and
Buffer Flattening"). The schema determines how many there are, and the lengths in the field nodes
determine the smallest size of most buffers.

The checker compares the numbers in the metadata of a message with the schema, the body and the
limits. Its time is proportional to the size of the metadata. Of the body, it reads only the
declared sizes of compressed buffers, 8 bytes each. What depends on values, such as the order of
offsets or the validity of UTF-8, is left to `decoding.validate_memory`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add, or_
from typing import Any, NamedTuple

import pyarrow as pa

from ...errors import InvalidDataError, LimitError, ProtocolError
from .message import BatchTable, HeaderType, read_batch_table
from .metadata_limits import survey_custom_metadata


class BufferPlan(NamedTuple):
    """A buffer of an array."""

    name: str
    """Its role: ``validity``, ``offsets``, ``values`` …"""
    bits: int
    """The size of the entry for each slot of the array, in bits."""
    extra: int = 0
    """The number of entries beyond one for each slot, if the array is not empty."""


class ArrayPlan(NamedTuple):
    """An array of a record batch: a column or a child of another array."""

    path: str
    """The names of its field and of the fields above, joined with dots."""
    parent: int
    """The index of the array above; -1 for a column."""
    slots: int
    """The slots that each slot of the array above takes. 0 if the data determines them."""
    has_validity: bool
    """Whether it has a validity bitmap, which precedes the other buffers."""
    buffers: tuple[BufferPlan, ...]
    """The other buffers, without the variadic buffers of views."""
    is_view: bool
    """Whether variadic data buffers follow."""
    run_ends: bool
    """Whether it holds run ends, whose number is that of the values that follow."""


class BatchPlan(NamedTuple):
    """The arrays of the record batches of a schema."""

    arrays: list[ArrayPlan]
    """The arrays in depth-first order."""
    buffers: int
    """The number of their buffers, without variadic ones."""
    views: int
    """The number of arrays of views."""


def plan_batch(fields: Iterable[Any], *, is_v5: bool = True) -> BatchPlan:
    """Return the arrays of the record batches of a schema. Before V5, unions had validity bitmaps.

    Examples
    --------
    >>> plan = plan_batch([pa.field("a", pa.list_(pa.string()))])
    >>> [array.path for array in plan.arrays], plan.buffers
    (['a', 'a.item'], 5)
    """
    arrays: list[ArrayPlan] = []
    for field in fields:
        _add_plans(arrays, field.name, field.type, -1, 0, is_v5)
    buffers = sum(plan.has_validity + len(plan.buffers) for plan in arrays)
    return BatchPlan(arrays, buffers, sum(plan.is_view for plan in arrays))


def _add_plans(
    plans: list[ArrayPlan],
    path: str,
    data_type: Any,
    parent: int,
    slots: int,
    is_v5: bool,
    *,
    run_ends: bool = False,
) -> None:
    """Append the plan of an array and those of its children."""
    while isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if isinstance(data_type, pa.DictionaryType):
        data_type = data_type.index_type
    has_validity, buffers, child_slots = _plan_type(data_type, is_v5)
    is_view = data_type in (pa.string_view(), pa.binary_view())
    index = len(plans)
    plans.append(ArrayPlan(path, parent, slots, has_validity, buffers, is_view, run_ends))
    if pa.types.is_run_end_encoded(data_type):
        ends, values = data_type.run_end_type, data_type.value_type
        _add_plans(plans, f"{path}.run_ends", ends, index, 0, is_v5, run_ends=True)
        _add_plans(plans, f"{path}.values", values, index, 0, is_v5)
        return
    for number in range(data_type.num_fields):
        child = data_type.field(number)
        _add_plans(plans, f"{path}.{child.name}", child.type, index, child_slots, is_v5)


def _plan_type(data_type: Any, is_v5: bool) -> tuple[bool, tuple[BufferPlan, ...], int]:
    """Return whether a type has a validity bitmap, its other buffers, and the slots of children."""
    types = pa.types
    if types.is_null(data_type) or types.is_run_end_encoded(data_type):
        return False, (), 0
    if types.is_struct(data_type):
        return True, (), 1
    if types.is_fixed_size_list(data_type):
        return True, (), data_type.list_size
    if types.is_union(data_type):
        type_ids = BufferPlan("type ids", 8)
        if data_type.mode == "sparse":
            return not is_v5, (type_ids,), 1
        return not is_v5, (type_ids, BufferPlan("offsets", 32)), 0
    if types.is_list(data_type) or types.is_map(data_type):
        return True, (BufferPlan("offsets", 32, 1),), 0
    if types.is_large_list(data_type):
        return True, (BufferPlan("offsets", 64, 1),), 0
    if types.is_list_view(data_type):
        return True, (BufferPlan("offsets", 32), BufferPlan("sizes", 32)), 0
    if types.is_large_list_view(data_type):
        return True, (BufferPlan("offsets", 64), BufferPlan("sizes", 64)), 0
    if data_type in (pa.string(), pa.binary()):
        return True, (BufferPlan("offsets", 32, 1), BufferPlan("data", 0)), 0
    if data_type in (pa.large_string(), pa.large_binary()):
        return True, (BufferPlan("offsets", 64, 1), BufferPlan("data", 0)), 0
    if data_type in (pa.string_view(), pa.binary_view()):
        return True, (BufferPlan("views", 128),), 0
    return True, (BufferPlan("values", data_type.bit_width),), 0


_I64 = struct.Struct("<q")
_V5 = 4
_LZ4, _ZSTD = 0, 1
_CODECS = (None, _LZ4, _ZSTD)
_RECORD_BATCH, _DICTIONARY_BATCH = HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH
_PREFIX_BYTES = 8
_VALIDITY = BufferPlan("validity", 1)
_LZ4_RATIO = 255
"""The largest ratio at which LZ4 compresses: each further byte extends a match by 255 bytes."""
_ZSTD_BLOCK, _ZSTD_BLOCK_BYTES = 128 << 10, 4
"""The largest block of Zstandard, and the size of the smallest one that expands to it."""

ReadSize = Callable[[int], int]
"""Returns the signed 64-bit little-endian number at an offset of a body."""


class CheckedMessage(NamedTuple):
    """The properties of a message that has passed the checks."""

    header_type: HeaderType
    """The type of the message."""
    rows: int
    """The number of rows or dictionary values."""
    compressed: bool
    """Whether its buffers are compressed."""
    decoded_bytes: int
    """The size of its buffers after decompression, in bytes.

    Overlapping buffers count separately, because decoding copies each of them."""
    has_custom_metadata: bool
    """Whether it has custom metadata."""
    dictionary_id: int | None
    """The ID of the dictionary; None for a record batch."""
    is_delta: bool
    """Whether the dictionary batch extends the dictionary instead of replacing it."""


class MessageChecker:
    """Checks the messages of one stream or file.

    `max_metadata_bytes` bounds custom metadata once decoded, and `max_decoded_bytes` a body that is
    decompressed or copied. Decoding always copies dictionaries. `copies_bodies` states whether it
    copies all bodies, for example to swap bytes.

    Examples
    --------
    >>> batch = pa.record_batch({"delay": pa.array([60, 75])})
    >>> message = pa.ipc.read_message(batch.serialize())
    >>> checker = MessageChecker(batch.schema, {})
    >>> checker.check(message.metadata.to_pybytes(), memoryview(message.body)).decoded_bytes
    16
    """

    def __init__(
        self,
        schema: pa.Schema,
        dictionary_types: Mapping[int, pa.DataType],
        *,
        max_buffers: int = 1 << 20,
        max_metadata_bytes: int = 16 << 20,
        max_decoded_bytes: int = 2 << 30,
        copies_bodies: bool = False,
        plans: dict[tuple[int | None, bool], BatchPlan] | None = None,
    ) -> None:
        self._schema = schema
        self._types = dict(dictionary_types)
        self._max_buffers = max_buffers
        self._max_metadata_bytes = max_metadata_bytes
        self._max_decoded_bytes = max_decoded_bytes
        self._copies_bodies = copies_bodies
        self._plans = {} if plans is None else plans

    def check(self, metadata: bytes | memoryview, body: memoryview) -> CheckedMessage:
        """Check a message whose body is in memory.

        Raises `InvalidDataError`, which names the field and the buffer, if the metadata does not
        fit the schema or the body, `LimitError`, or `ProtocolError` for other messages.
        """
        return self.check_parts(metadata, body.nbytes, lambda at: _I64.unpack_from(body, at)[0])

    def check_parts(
        self, metadata: bytes | memoryview, body_length: int, read_size: ReadSize
    ) -> CheckedMessage:
        """Check a message whose packed body is read in parts; see `check`."""
        table = read_batch_table(metadata, max_buffers=self._max_buffers)
        if table.dictionary_id is not None and not self._types:
            raise ProtocolError("a dictionary batch arrived, but the schema has no dictionary")
        if table.body_length != body_length:
            raise InvalidDataError(
                f"the metadata declares a body of {table.body_length} bytes, but it has "
                f"{body_length}"
            )
        if table.codec not in _CODECS:
            raise InvalidDataError(f"the body is compressed with the unknown codec {table.codec}")
        compressed = table.codec is not None
        if table.has_custom_metadata and survey_custom_metadata(
            metadata, max_bytes=self._max_metadata_bytes
        ):
            compressed = True  # as Arrow 0.17 declared it
        sizes = self._measure(table, body_length, read_size if compressed else None)
        decoded_bytes = sum(sizes)
        is_copied = compressed or self._copies_bodies or table.dictionary_id is not None
        if is_copied and decoded_bytes > self._max_decoded_bytes:
            raise LimitError(
                f"the body of {body_length} bytes decodes to {decoded_bytes} bytes; "
                f"the limit is {self._max_decoded_bytes}"
            )
        _check_arrays(self._find_plan(table), table, sizes)
        return CheckedMessage(
            _RECORD_BATCH if table.dictionary_id is None else _DICTIONARY_BATCH,
            table.rows,
            compressed,
            decoded_bytes,
            table.has_custom_metadata,
            table.dictionary_id,
            table.is_delta,
        )

    def _find_plan(self, table: BatchTable) -> BatchPlan:
        """Return the arrays that a message must have."""
        key = (table.dictionary_id, table.version >= _V5)
        plan = self._plans.get(key)
        if plan is None:
            fields: Any = self._schema
            if table.dictionary_id is not None:
                value_type = self._types.get(table.dictionary_id)
                if value_type is None:
                    raise InvalidDataError(
                        f"the schema has no dictionary with the id {table.dictionary_id}"
                    )
                fields = [pa.field(f"dictionary {table.dictionary_id}", value_type)]
            plan = self._plans[key] = plan_batch(fields, is_v5=key[1])
        return plan

    def _measure(
        self, table: BatchTable, body_length: int, read_size: ReadSize | None
    ) -> Sequence[int]:
        """Check the span of each buffer, and return its size after decompression.

        `read_size` is None if the body is not compressed.
        """
        offsets, sizes = table.buffers[::2], table.buffers[1::2]
        if offsets and (
            min(table.buffers) < 0
            or reduce(or_, offsets) & 7
            or max(map(add, offsets, sizes)) > body_length
        ):
            self._check_spans(table, body_length)
        if read_size is None:
            return sizes
        return [
            self._measure_compressed(table, index, offset, length, read_size) if length else 0
            for index, (offset, length) in enumerate(zip(offsets, sizes, strict=True))
        ]

    def _check_spans(self, table: BatchTable, body_length: int) -> None:
        """Check that the buffers are within the body. The offset of an empty one does not count."""
        numbers = iter(table.buffers)
        for index, (offset, length) in enumerate(zip(numbers, numbers, strict=True)):
            if not length:
                continue
            span = f"{length} bytes at offset {offset}"
            if length < 0 or offset < 0 or offset + length > body_length:
                place = self._describe_buffer(table, index)
                raise InvalidDataError(
                    f"{place} has {span}, outside the body of {body_length} bytes"
                )
            if offset & 7:
                place = self._describe_buffer(table, index)
                raise InvalidDataError(
                    f"{place} has {span}; expected an offset that is a multiple of 8"
                )

    def _measure_compressed(
        self, table: BatchTable, index: int, offset: int, length: int, read_size: ReadSize
    ) -> int:
        """Return the declared size of a compressed buffer after checking it."""
        packed = length - _PREFIX_BYTES
        if packed < 0:
            place = self._describe_buffer(table, index)
            raise InvalidDataError(
                f"{place} is compressed and has {length} bytes; expected at least 8"
            )
        size = read_size(offset)
        if size == -1:
            return packed  # it is not compressed
        if size < -1:
            place = self._describe_buffer(table, index)
            raise InvalidDataError(
                f"{place} declares {size} bytes after decompression; expected 0 or more, or -1"
            )
        most = packed * _LZ4_RATIO
        if table.codec == _ZSTD:
            most = (packed // _ZSTD_BLOCK_BYTES) * _ZSTD_BLOCK
        if size > most and size <= self._max_decoded_bytes and table.codec is not None:
            place = self._describe_buffer(table, index)
            raise InvalidDataError(
                f"{place} declares {size} bytes after decompression; its {packed} compressed "
                f"bytes cannot contain more than {most}"
            )
        return size

    def _describe_buffer(self, table: BatchTable, index: int) -> str:
        """Return the name of a buffer for errors."""
        try:
            number = 0
            counts = iter(table.variadic_counts)
            for plan in self._find_plan(table).arrays:
                names = ["validity"] * plan.has_validity + [part.name for part in plan.buffers]
                more = max(0, next(counts, 0)) if plan.is_view else 0
                if index < number + len(names):
                    return f"buffer {index} ({plan.path}, {names[index - number]})"
                number += len(names)
                if index < number + more:
                    return f"buffer {index} ({plan.path}, data)"
                number += more
        except InvalidDataError:
            pass
        return f"buffer {index}"


def _check_arrays(plan: BatchPlan, table: BatchTable, sizes: Sequence[int]) -> None:
    """Check the field nodes, and the sizes of the buffers that follow from them."""
    nodes, arrays = table.nodes, plan.arrays
    if len(nodes) != 2 * len(arrays):
        raise InvalidDataError(
            f"the message has {len(nodes) // 2} field nodes; the schema has {len(arrays)} fields"
        )
    if table.variadic_counts or plan.views:
        _check_variadic_counts(plan, table.variadic_counts)
    needed = plan.buffers + sum(table.variadic_counts)
    if needed != len(sizes):
        raise InvalidDataError(f"the message has {len(sizes)} buffers; its schema needs {needed}")
    counts = iter(table.variadic_counts)
    buffer = node = 0
    rows = table.rows
    for array in arrays:
        path, parent, slots, has_validity, buffers, is_view, run_ends = array
        length, nulls = nodes[node], nodes[node + 1]
        if length < 0 or not -1 <= nulls <= length:
            raise InvalidDataError(f"{path} has {length} values and {nulls} nulls")
        if parent < 0:
            if length != rows:
                raise InvalidDataError(
                    f"{path} has {length} values; the message declares {rows} rows"
                )
        elif slots and length < slots * nodes[2 * parent]:
            raise InvalidDataError(
                f"{path} has {length} values; {arrays[parent].path} needs "
                f"{slots * nodes[2 * parent]}"
            )
        if run_ends:
            _check_runs(array, nodes, node)
        node += 2
        if has_validity:
            if nulls > 0 and sizes[buffer] < length + 7 >> 3:
                raise _size_error(buffer, path, _VALIDITY, sizes[buffer], length)
            buffer += 1
        for part in buffers:
            _, bits, extra = part
            if length and sizes[buffer] < (length + extra) * bits + 7 >> 3:
                raise _size_error(buffer, path, part, sizes[buffer], length)
            buffer += 1
        if is_view:
            buffer += next(counts)


def _check_variadic_counts(plan: BatchPlan, counts: Sequence[int]) -> None:
    """Check the numbers of data buffers of the arrays of views."""
    if len(counts) != plan.views:
        raise InvalidDataError(
            f"the message counts the data buffers of {len(counts)} arrays of views; "
            f"the schema has {plan.views}"
        )
    views = (array for array in plan.arrays if array.is_view)
    for array, count in zip(views, counts, strict=True):
        if count < 0:
            raise InvalidDataError(f"{array.path} has {count} data buffers; expected 0 or more")


def _check_runs(array: ArrayPlan, nodes: Sequence[int], node: int) -> None:
    """Check the numbers of run ends and of the values that follow them."""
    rows = nodes[2 * array.parent]
    runs, nulls, values = nodes[node : node + 3]
    if nulls > 0:
        raise InvalidDataError(f"{array.path} has {nulls} nulls; expected none")
    if runs > values or (rows and not runs):
        raise InvalidDataError(
            f"{array.path} has {runs} values for {rows} rows and {values} values of runs"
        )


def _size_error(
    index: int, path: str, part: BufferPlan, size: int, length: int
) -> InvalidDataError:
    needed = (length + part.extra) * part.bits + 7 >> 3
    return InvalidDataError(
        f"buffer {index} ({path}, {part.name}) has {size} bytes; expected at least {needed} for "
        f"{length} values"
    )
