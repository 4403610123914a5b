"""Many encoded Variant values, parsed together one level at a time, down to their leaves.

Each level is checked before it is used: sizes, offsets, field ids, and the order of field names. So
a reader of a path checks what it visits and nothing else. The values of primitive types become
arrays (Variant Encoding, "Variant primitive types").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ....errors import InvalidDataError
from .buffers import (
    MAX_DEPTH,
    ByteBuffer,
    Index,
    Mask,
    RowChecks,
    binary_parts,
    expand,
    to_buffer,
    valid_mask,
)
from .metadata import Names, find_utf8
from .types import (
    ARRAY,
    DECIMAL_BYTES,
    KINDS,
    MAX_DECIMAL_SCALE,
    MICROSECONDS_PER_DAY,
    OBJECT,
    SHORT_STRING,
    SIZES,
    Kind,
)


@dataclass(frozen=True, slots=True)
class Context:
    """What all values of a column share.

    Attributes
    ----------
    buffer : ByteBuffer
        The bytes of the values.
    names : Names
        The field names.
    checks : RowChecks
        Receives the rows that are invalid.
    ordered : bool
        Whether the fields of an object must be in the order of their names, as the specification
        demands. Otherwise they are sorted where they are read.
    """

    buffer: ByteBuffer
    names: Names
    checks: RowChecks
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Values:
    """Encoded values, which are complete Variants or parts of them.

    Attributes
    ----------
    context : Context
        What they share.
    start, size : ndarray of int64, shape (n,)
        Their bytes in the buffer.
    row : ndarray of int64, shape (n,)
        The rows that contain them.
    """

    context: Context
    start: Index
    size: Index
    row: Index

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.start)

    def take(self, selected: Index | Mask) -> Values:
        """Return some of the values."""
        return Values(self.context, self.start[selected], self.size[selected], self.row[selected])

    def to_arrow(self) -> Any:
        """Return the encoded values as a `pyarrow.LargeBinaryArray`."""
        return self.context.buffer.slice(self.start, self.size)

    def kinds(self) -> Any:
        """Return the `Kind` of each value, as an ndarray of int8, without further checks."""
        return KINDS.take(self.context.buffer.read_u8(self.start))


@dataclass(frozen=True, slots=True)
class Entries:
    """The fields of objects or the elements of arrays.

    Attributes
    ----------
    counts : ndarray of int64, shape (n,)
        The number of entries of each object or array.
    parent : ndarray of int64, shape (m,)
        The object or array of each entry, in ascending order.
    values : Values
        The values, in the order of field names or elements.
    key : ndarray of int64, shape (m,), or None
        The name of each field, as an index into `Names.texts`; None for elements.
    """

    counts: Index
    parent: Index
    values: Values
    key: Index | None


def open_values(metadata: Any, value: Any, checks: RowChecks, *, ordered: bool = True) -> Values:
    """Return the values of a column, without its null rows. Only the metadata is checked."""
    present = valid_mask(value)
    known = valid_mask(metadata)
    rows = np.flatnonzero(present)
    checks.require(known[rows], rows, "it has no metadata")
    metadata = default_metadata(metadata, known & present)
    names = Names(metadata, checks)
    data, offsets = binary_parts(value)
    first, last = int(offsets[0]), int(offsets[-1])
    context = Context(ByteBuffer(data[first:last]), names, checks, ordered)
    keep = present & known & ~checks.invalid
    rows = np.flatnonzero(keep)
    start = offsets[:-1][rows] - first
    values = Values(context, start, offsets[1:][rows] - offsets[:-1][rows], rows)
    filled = values.size > 0
    if not checks.require(filled, rows, "its value is empty"):
        values = values.take(filled)
    return values


def default_metadata(metadata: Any, used: Mask) -> Any:
    """Return metadata in which rows that are not used have no field names."""
    if bool(used.all()):
        return metadata
    return pc.if_else(pa.array(used), metadata, pa.scalar(b"\x01\0\0", metadata.type))


def check_sizes(values: Values) -> Values:
    """Check that each value's type is known and its size is the one that its header states.

    The sizes of objects and arrays are checked where their entries are read.
    """
    buffer = values.context.buffer
    header = buffer.read_u8(values.start)
    required = SIZES.take(header)
    ok = required == values.size
    if bool(ok.all()):
        return values
    open_sized = np.flatnonzero(required < 0)
    kind = KINDS.take(header[open_sized])
    checks = values.context.checks
    known = kind != Kind.INVALID
    checks.require(known, values.row[open_sized], "a type id is not one of version 1")
    sized = open_sized[(kind == Kind.STRING) | (kind == Kind.BINARY)]
    ok[open_sized[kind >= Kind.OBJECT]] = True
    length = buffer.read_u32(np.minimum(values.start[sized] + 1, len(buffer.bytes) - 4))
    ok[sized] = length.astype(np.int64) + 5 == values.size[sized]
    ok[open_sized[~known]] = False
    if checks.require(ok, values.row, "the size of a value does not fit its bytes"):
        return values
    return values.take(ok)


def read_objects(values: Values) -> tuple[Values, Entries]:
    """Return the valid objects and their fields."""
    return _read_entries(values, OBJECT)


def read_arrays(values: Values) -> tuple[Values, Entries]:
    """Return the valid arrays and their elements."""
    return _read_entries(values, ARRAY)


def _read_entries(values: Values, basic_type: int) -> tuple[Values, Entries]:
    buffer = values.context.buffer
    layout = _Layout(values, basic_type)
    if not layout.ok.all():
        values = values.take(layout.ok)
        layout = _Layout(values, basic_type)
    counts, width = layout.counts, layout.offset_width
    parent, position = expand(counts)
    offset_at = layout.offsets_at
    uniform = bool((width == 1).all()) if len(width) else True
    entry_width = width[parent]
    begin = buffer.read_uint(
        offset_at[parent] + (position if uniform else position * entry_width), entry_width
    )
    total = buffer.read_uint(offset_at + counts * width, width)
    end, ok = _find_ends(begin, total, parent, counts)
    ok &= total == layout.body_size
    rows = values.row
    key = order = None
    problem = "the offsets of an object or array do not fit its values"
    fine = values.context.checks.require(ok, rows, problem)
    if basic_type == OBJECT:
        key, order, named = _read_keys(values, layout, parent, position, ok)
        ok = ok & named
        fine = fine and bool(named.all())
    if order is not None:
        begin, end = begin[order], end[order]
    start = layout.body_at[parent] + begin
    children = Values(values.context, start, end - begin, rows[parent])
    if fine:
        return values, Entries(counts, parent, children, key)
    inside = ok[parent]
    renumbered = np.cumsum(ok) - 1
    return values.take(ok), Entries(
        counts[ok],
        renumbered[parent[inside]],
        children.take(inside),
        None if key is None else key[inside],
    )


class _Layout:
    """Where the parts of objects or arrays are."""

    def __init__(self, values: Values, basic_type: int) -> None:
        buffer = values.context.buffer
        start, size = values.start, values.size
        header = buffer.read_u8(start).astype(np.int64) >> 2
        self.offset_width: Index = (header & 3) + 1
        if basic_type == OBJECT:
            self.id_width: Index = ((header >> 2) & 3) + 1
            is_large = (header & 0x10) != 0
        else:
            self.id_width = np.zeros(len(start), np.int64)
            is_large = (header & 0x04) != 0
        count_width = np.where(is_large, 4, 1)
        # A value at the end of the buffer may lack its count: the padding is read then.
        self.counts: Index = buffer.read_uint(start + 1, count_width)
        self.ids_at: Index = start + 1 + count_width
        self.offsets_at: Index = self.ids_at + self.counts * self.id_width
        self.body_at: Index = self.offsets_at + (self.counts + 1) * self.offset_width
        self.body_size: Index = start + size - self.body_at
        self.ok: Mask = self.body_size >= 0
        values.context.checks.require(
            self.ok, values.row, "an object or array ends inside of its offsets"
        )


def _find_ends(begin: Index, total: Index, parent: Index, counts: Index) -> tuple[Index, Mask]:
    """Return where each entry ends, relative to the first one, and which parents are valid.

    The entries of an object or array fill its bytes without gaps, in any order.
    """
    ok = np.ones(len(counts), np.bool_)
    filled = counts > 0
    last = np.cumsum(counts)[filled] - 1
    end = np.empty(len(begin), np.int64)
    end[:-1] = begin[1:]
    end[last] = total[filled]
    ok[~filled] = total[~filled] == 0
    bad = end <= begin
    first = last - counts[filled] + 1
    if bad.any() or begin[first].any():
        unordered = np.zeros(len(counts), np.bool_)
        unordered[parent[bad]] = True
        unordered[np.flatnonzero(filled)[begin[first] != 0]] = True
        members = np.flatnonzero(unordered[parent])
        order = members[np.lexsort((begin[members], parent[members]))]
        owner = parent[order]
        closing = np.append(owner[1:] != owner[:-1], True)
        opening = np.append(True, closing[:-1])
        following = np.append(begin[order][1:], 0)
        following[closing] = total[owner[closing]]
        end[order] = following
        wrong = (following <= begin[order]) | (opening & (begin[order] != 0))
        ok[owner[wrong]] = False
    return end, ok


def _read_keys(
    values: Values, layout: _Layout, parent: Index, position: Index, ok: Mask
) -> tuple[Index, Index | None, Mask]:
    """Return the names of fields, their order if it is not by name, and which objects are valid."""
    checks = values.context.checks
    at, known = _find_names(values, layout, parent, position)
    result = ok.copy()
    if not bool(known.all()):
        result[parent[~known]] = False
        checks.require(result, values.row, "a field id is not in the metadata")
        at = np.where(known, at, 0)
    keys = values.context.names.keys
    if not len(keys):
        return np.zeros(len(parent), np.int64), None, result
    key, order = keys[at], None
    same_parent = parent[1:] == parent[:-1]
    if bool(((key[1:] <= key[:-1]) & same_parent).any()):
        unordered = (key[1:] < key[:-1]) & same_parent
        if values.context.ordered and unordered.any():
            result[parent[1:][unordered]] = False
            checks.require(
                result, values.row, "the fields of an object are not in the order of their names"
            )
        order = np.lexsort((key, parent))
        key = key[order]
        repeated = (key[1:] == key[:-1]) & same_parent
        result[parent[1:][repeated]] = False
        checks.require(result, values.row, "an object has two fields of one name")
    return key, order, result


def _find_names(
    values: Values, layout: _Layout, parent: Index, position: Index
) -> tuple[Index, Mask]:
    """Return where the names of fields are in `Names.keys`, and which field ids are valid."""
    names, buffer = values.context.names, values.context.buffer
    width = layout.id_width[parent]
    ids = buffer.read_uint(layout.ids_at[parent] + position * width, width)
    if len(names.size) == 1:
        return ids, ids < names.size[0]
    dictionary = names.metadata_of[values.row]
    return names.first[dictionary][parent] + ids, ids < names.size[dictionary][parent]


def split_column(column: Any) -> tuple[Any, Any]:
    """Return the metadata and the values of an unshredded column.

    Raises `InvalidDataError` if the array is not such a struct.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    data_type = column.type
    names = [field.name for field in data_type] if pa.types.is_struct(data_type) else []
    if sorted(names) != ["metadata", "value"]:
        raise InvalidDataError(
            f"{data_type} is not an unshredded Variant: expected a struct of metadata and value"
        )
    metadata, value = column.field("metadata"), column.field("value")
    if column.null_count:
        # The children of a null struct are undefined.
        valid = column.is_valid()
        value = pc.if_else(valid, value, pa.scalar(None, value.type))
    return metadata, value


_DECIMAL_LIMIT = 10**38
_LIMIT_HIGH, _LIMIT_LOW = _DECIMAL_LIMIT >> 64, _DECIMAL_LIMIT & (2**64 - 1)


def check_scalars(values: Values, kind: Any) -> None:
    """Check the values of primitive types: scales, digits, times of day, and UTF-8.

    Their sizes must have been checked. An invalid value is reported and stays.
    """
    present = np.bincount(kind.clip(0), minlength=Kind.ARRAY + 1)
    for decimal in DECIMAL_BYTES:
        if present[decimal]:
            _check_decimals(values.take(kind == decimal), decimal)
    if present[Kind.TIME_NTZ]:
        part = values.take(kind == Kind.TIME_NTZ)
        time = read_int64(part)
        ok = (time >= 0) & (time < MICROSECONDS_PER_DAY)
        part.context.checks.require(ok, part.row, "a time is not within a day")
    if present[Kind.STRING]:
        part = values.take(kind == Kind.STRING)
        if part.context.buffer.bytes.max() >= 0x80:  # otherwise, the whole buffer is ASCII
            ok = find_utf8(read_bytes(part))
            part.context.checks.require(ok, part.row, "a string is not UTF-8")


def _check_decimals(values: Values, kind: Kind) -> None:
    checks = values.context.checks
    scale = values.context.buffer.read_u8(values.start + 1)
    checks.require(scale <= MAX_DECIMAL_SCALE, values.row, "the scale of a decimal is above 38")
    if kind == Kind.DECIMAL16:
        unscaled = read_decimals(values, kind)
        negative = unscaled[:, 1].view(np.int64) < 0
        low = np.where(negative, -unscaled[:, 0].view(np.int64), unscaled[:, 0].view(np.int64))
        low = low.view(np.uint64)
        high = np.where(negative, ~unscaled[:, 1] + (low == 0), unscaled[:, 1])
        ok = (high < _LIMIT_HIGH) | ((high == _LIMIT_HIGH) & (low < _LIMIT_LOW))
        checks.require(ok, values.row, "a decimal has more than 38 digits")


def read_int64(values: Values) -> Index:
    """Return values of 8 bytes as int64."""
    return values.context.buffer.read_u64(values.start + 1).view(np.int64)


def read_integers(values: Values, kind: Any) -> Index:
    """Return integers of any size."""
    bits = np.int64(8) << (kind.astype(np.int64) - int(Kind.INT8))
    widest = int(kind.max()) if len(kind) else Kind.INT8
    if widest == Kind.INT8:
        return values.context.buffer.read_u8(values.start + 1).view(np.int8).astype(np.int64)
    raw = values.context.buffer.read_u64(values.start + 1)
    shift = 64 - bits
    return (raw << shift.view(np.uint64)).view(np.int64) >> shift


def read_int32(values: Values) -> NDArray[np.int32]:
    """Return values of 4 bytes as int32."""
    return values.context.buffer.read_u32(values.start + 1).view(np.int32)


def read_float64(values: Values) -> NDArray[np.float64]:
    """Return values of the kind DOUBLE."""
    return values.context.buffer.read_u64(values.start + 1).view(np.float64)


def read_float32(values: Values) -> NDArray[np.float32]:
    """Return values of the kind FLOAT."""
    return values.context.buffer.read_u32(values.start + 1).view(np.float32)


def read_scales(values: Values) -> NDArray[np.uint8]:
    """Return the scales of decimals."""
    return values.context.buffer.read_u8(values.start + 1)


def read_decimals(values: Values, kind: Kind) -> NDArray[np.uint64]:
    """Return the unscaled values of decimals of one kind, as Arrow stores them."""
    buffer, at = values.context.buffer, values.start + 2
    result = np.empty((len(values), 2), np.uint64)
    if kind == Kind.DECIMAL16:
        result[:, 0] = buffer.read_u64(at)
        result[:, 1] = buffer.read_u64(at + 8)
        return result
    if kind == Kind.DECIMAL8:
        low = buffer.read_u64(at).view(np.int64)
    else:
        low = buffer.read_u32(at).view(np.int32).astype(np.int64)
    result[:, 0] = low.view(np.uint64)
    result[:, 1] = (low >> 63).view(np.uint64)
    return result


def decimal_array(unscaled: NDArray[np.uint64], scale: int) -> Any:
    """Return a `pyarrow.Decimal128Array` of 38 digits over unscaled values of one scale."""
    return pa.Array.from_buffers(
        pa.decimal128(38, scale),
        len(unscaled),
        [None, to_buffer(unscaled)],
    )


def read_bytes(values: Values) -> Any:
    """Return the content of strings or binary values, as a `pyarrow.LargeBinaryArray`."""
    buffer = values.context.buffer
    head = np.where((buffer.read_u8(values.start) & 3) == SHORT_STRING, 1, 5)
    return buffer.slice(values.start + head, values.size - head)


def read_fixed(values: Values, width: int) -> NDArray[np.uint8]:
    """Return the bytes of values of a fixed size, as an array of shape (n, width)."""
    at = values.start[:, None] + np.arange(1, width + 1)
    return values.context.buffer.bytes[at]


@dataclass(frozen=True, slots=True)
class ParsedLevel:
    """All values of one depth.

    The next level has the fields of the objects, and then the elements of the arrays.

    Attributes
    ----------
    values : Values
        The values.
    kind : ndarray of int8, shape (n,)
        The `Kind` of each value.
    objects, arrays : ndarray of int64
        Which values are objects and arrays.
    fields, elements : Entries or None
        Their entries; None if there is no object or array.
    """

    values: Values
    kind: Any
    objects: Index
    arrays: Index
    fields: Entries | None
    elements: Entries | None


def parse_levels(values: Values) -> list[ParsedLevel]:
    """Parse and check some values entirely.

    If the checks collect invalid rows, the levels are not aligned once a row is invalid: discard
    them, and parse the valid rows again.

    Raises `InvalidDataError` if a value is invalid, or nested more than MAX_DEPTH deep, unless
    invalid rows are collected.
    """
    levels: list[ParsedLevel] = []
    while len(values):
        values = check_sizes(values)
        if len(levels) > MAX_DEPTH:
            checks = values.context.checks
            too_deep = np.zeros(len(values), np.bool_)
            checks.require(too_deep, values.row, f"it is nested more than {MAX_DEPTH} deep")
            break
        level = _parse_level(values)
        levels.append(level)
        following = [entries.values for entries in (level.fields, level.elements) if entries]
        if not following:
            break
        values = _concatenate(following)
    return levels


def _parse_level(values: Values) -> ParsedLevel:
    kind = values.kinds()
    check_scalars(values, kind)
    objects = np.flatnonzero(kind == Kind.OBJECT)
    arrays = np.flatnonzero(kind == Kind.ARRAY)
    fields = read_objects(values.take(objects))[1] if len(objects) else None
    elements = read_arrays(values.take(arrays))[1] if len(arrays) else None
    return ParsedLevel(values, kind, objects, arrays, fields, elements)


def _concatenate(parts: list[Values]) -> Values:
    if len(parts) == 1:
        return parts[0]
    return Values(
        parts[0].context,
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.size for part in parts]),
        np.concatenate([part.row for part in parts]),
    )
