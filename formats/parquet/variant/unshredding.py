"""Reconstruction of shredded Variants, or of one field alone, by columns (Variant Shredding)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import InvalidDataError
from .arrow_fields import make_column
from .buffers import (
    MAX_DEPTH,
    ByteBuffer,
    Index,
    Mask,
    RowChecks,
    binary_parts,
    expand,
    is_list,
    to_arrow,
    valid_mask,
)
from .casts import cast_values
from .encoder import NULL, build_arrays, build_objects, encode_arrow, find_kind
from .metadata import Names
from .types import Kind
from .values import Context, Values, default_metadata, open_values, parse_levels, read_objects


def check_shredded_type(data_type: Any) -> None:
    """Check that a type is one of a Variant column, shredded or not.

    Raises `InvalidDataError` if it is not, with the offending part of the type.
    """
    if not pa.types.is_struct(data_type):
        raise InvalidDataError(f"a Variant is a struct of metadata and value, not {data_type}")
    fields = _fields_by_name(data_type, "a Variant")
    metadata = fields.pop("metadata", None)
    if metadata is None or not _is_binary(metadata):
        raise InvalidDataError("a Variant has no binary field metadata")
    _check_group(fields, "the Variant", 0)


def is_shredded(data_type: Any) -> bool:
    """Return whether a Variant column of a type has a field ``typed_value``."""
    return data_type.get_field_index("typed_value") >= 0


def unshred(column: Any, *, first_row: int = 0, ordered: bool = False) -> tuple[Any, Any]:
    """Return the metadata and the values of a column that may be shredded.

    A null struct has a null value. `ordered` demands ordered objects in ``value``; those that this
    function builds always are. Raises `InvalidDataError` if the type is not one of shredded
    Variants, or ``value`` and ``typed_value`` contradict each other in a way that the specification
    names.
    """
    check_shredded_type(column.type)
    metadata = column.field("metadata")
    present = valid_mask(column)
    checks = RowChecks(len(column), first_row=first_row)
    rows = np.arange(len(column))
    checks.require(valid_mask(metadata) | ~present, rows, "it has no metadata")
    metadata = default_metadata(metadata, present)
    names = Names(metadata, checks)
    group = _Group.from_struct(column)
    value = _Reconstruction(names, checks, ordered).build(group, rows)
    if value.null_count:
        value = pc.coalesce(value, NULL)
    if column.null_count:
        value = pc.if_else(pa.array(present), value, pa.scalar(None, value.type))
    return metadata, value


def _fields_by_name(data_type: Any, place: str) -> dict[str, Any]:
    fields = {field.name: field.type for field in data_type}
    if len(fields) < data_type.num_fields:
        raise InvalidDataError(f"{place} has two fields of one name")
    return fields


def _is_binary(data_type: Any) -> bool:
    types = pa.types
    return (
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
    )


def _check_group(fields: dict[str, Any], place: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidDataError(f"a shredded Variant is nested at most {MAX_DEPTH} deep")
    unknown = fields.keys() - {"value", "typed_value"}
    if unknown:
        raise InvalidDataError(f"{place} has the unexpected field {min(unknown)!r}")
    if not fields:
        raise InvalidDataError(f"{place} has neither a field value nor typed_value")
    if "value" in fields and not _is_binary(fields["value"]):
        raise InvalidDataError(f"the field value of {place} has type {fields['value']}, not binary")
    if "typed_value" not in fields:
        return
    typed = fields["typed_value"]
    if pa.types.is_struct(typed):
        for name, data_type in _fields_by_name(typed, place).items():
            _check_child(data_type, f"the shredded field {name!r}", depth)
    elif is_list(typed):
        _check_child(typed.value_type, f"the element of {place}", depth)
    elif find_kind(typed) is None:
        raise InvalidDataError(f"{typed} is not a type of shredded Variants (in {place})")


def _check_child(data_type: Any, place: str, depth: int) -> None:
    if not pa.types.is_struct(data_type):
        raise InvalidDataError(
            f"{place} has type {data_type}: expected a group of value, typed_value"
        )
    _check_group(_fields_by_name(data_type, place), place, depth + 1)


class _Group:
    """The fields ``value`` and ``typed_value`` of one place in a shredded Variant."""

    __slots__ = ("length", "typed", "value")

    def __init__(self, length: int, value: Any, typed: Any) -> None:
        self.length = length
        self.value = value
        self.typed = typed

    @classmethod
    def from_struct(cls, array: Any) -> _Group:
        """Return the fields of a struct, which are null where it is null."""
        fields = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
        return cls(len(array), fields.get("value"), fields.get("typed_value"))


class _Reconstruction:
    """Builds the values of one column."""

    def __init__(self, names: Names, checks: RowChecks, ordered: bool) -> None:
        self._names = names
        self._checks = checks
        self._ordered = ordered

    def build(self, group: _Group, rows: Index) -> Any:
        """Return the encoded values of a group as a LargeBinaryArray; those missing are null."""
        encoded = None if group.value is None else group.value.cast(pa.large_binary())
        residual = None if encoded is None else self._check_values(encoded, rows)
        if group.typed is None:
            assert encoded is not None
            return encoded
        typed = group.typed
        if pa.types.is_struct(typed.type):
            return self._build_objects(typed, encoded, residual, rows)
        if residual is not None:
            both = valid_mask(encoded) & valid_mask(typed)
            self._checks.require(~both, rows, "both value and typed_value are set")
        if is_list(typed.type):
            self._refuse(residual, Kind.ARRAY, "an array is in value, not in typed_value")
            built = self._build_lists(typed, rows)
        else:
            built = encode_arrow(typed)
        return built if encoded is None else pc.coalesce(built, encoded)

    def _check_values(self, encoded: Any, rows: Index) -> Values:
        """Return the values of an array that are not null, checked entirely."""
        data, offsets = binary_parts(encoded)
        first, last = int(offsets[0]), int(offsets[-1])
        selected = np.flatnonzero(valid_mask(encoded))
        buffer = ByteBuffer(data[first:last])
        context = Context(buffer, self._names, self._checks, self._ordered)
        start, end = offsets[:-1][selected] - first, offsets[1:][selected] - first
        values = Values(context, start, end - start, rows[selected])
        self._checks.require(values.size > 0, values.row, "its value is empty")
        parse_levels(values)
        return values

    def _refuse(self, residual: Values | None, kind: Kind, problem: str) -> None:
        if residual is not None and len(residual):
            self._checks.require(residual.kinds() != kind, residual.row, problem)

    def _build_lists(self, typed: Any, rows: Index) -> Any:
        valid = valid_mask(typed)
        offsets = typed.offsets.to_numpy().astype(np.int64)
        counts = np.where(valid, offsets[1:] - offsets[:-1], 0)
        if int(counts.sum()) == offsets[-1] - offsets[0]:
            items = typed.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        else:  # a null list may have elements
            owner, position = expand(counts)
            items = typed.values.take(to_arrow(offsets[:-1][owner] + position))
        group = _Group.from_struct(items)
        elements = self.build(group, np.repeat(rows, counts))
        if elements.null_count:
            elements = pc.coalesce(elements, NULL)
        built = build_arrays(counts, elements)
        return pc.if_else(pa.array(valid), built, pa.scalar(None, built.type))

    def _build_objects(self, typed: Any, encoded: Any, residual: Values | None, rows: Index) -> Any:
        is_object = valid_mask(typed)
        parent, key, arrays, index = self._collect_fields(typed, is_object, rows)
        if residual is not None and len(residual):
            at = np.flatnonzero(valid_mask(encoded))
            objects = residual.kinds() == Kind.OBJECT
            partial = is_object[at]
            self._checks.require(
                objects | ~partial, residual.row, "typed_value is set, and value is not an object"
            )
            self._checks.require(
                ~objects | partial, residual.row, "an object is in value, and typed_value is null"
            )
            if partial.any():
                names = [field.name for field in typed.type]
                left = self._read_residual(residual.take(partial), names)
                size = sum(map(len, arrays))
                arrays.append(left.values.to_arrow())
                parent = np.concatenate([parent, at[partial][left.parent]])
                assert left.key is not None
                key = np.concatenate([key, left.key])
                index = np.concatenate([index, np.arange(size, size + len(left.parent))])
        order = np.lexsort((key, parent))
        ids = self._find_ids(key[order], rows[parent[order]])
        fields = pa.concat_arrays([pa.array([], pa.large_binary()), *arrays])
        counts = np.bincount(parent, minlength=len(typed)).astype(np.int64)
        built = build_objects(counts, ids, fields.take(to_arrow(index[order])))
        built = pc.if_else(pa.array(is_object), built, pa.scalar(None, built.type))
        return built if encoded is None else pc.coalesce(built, encoded)

    def _collect_fields(
        self, typed: Any, is_object: Mask, rows: Index
    ) -> tuple[Index, Index, list[Any], Index]:
        """Return the object, name and encoded value of each shredded field that is present."""
        arrays: list[Any] = []
        parents, keys, indices = [_NONE], [_NONE], [_NONE]
        size = 0
        for field, child in zip(typed.type, typed.flatten(), strict=True):
            array = self.build(_Group.from_struct(child), rows)
            present = np.flatnonzero(valid_mask(array) & is_object)
            key = self._names.find(field.name)
            if key < 0:
                self._checks.require(
                    np.zeros(len(present), np.bool_),
                    rows[present],
                    f"the shredded field {field.name!r} is not in the metadata",
                )
            parents.append(present)
            keys.append(np.full(len(present), key))
            indices.append(size + present)
            arrays.append(array)
            size += len(array)
        return np.concatenate(parents), np.concatenate(keys), arrays, np.concatenate(indices)

    def _read_residual(self, objects: Values, names: list[str]) -> Any:
        """Return the fields of partially shredded objects, none of which may be shredded."""
        _, entries = read_objects(objects)
        shredded = [key for key in map(self._names.find, names) if key >= 0]
        problem = "a shredded field is in value"
        assert entries.key is not None
        repeated = np.isin(entries.key, shredded)
        self._checks.require(~repeated, entries.values.row, problem)
        return entries

    def _find_ids(self, keys: Index, rows: Index) -> Index:
        """Return the field ids of names in the metadata of rows."""
        ids = np.empty(len(keys), np.int64)
        dictionary = self._names.metadata_of[rows]
        for key in np.unique(keys):
            selected = np.flatnonzero(keys == key)
            ids[selected] = self._names.find_ids(int(key))[dictionary[selected]]
            self._checks.require(
                ids[selected] >= 0,
                rows[selected],
                f"the shredded field {self._names.text(int(key))!r} is not in the metadata",
            )
        return ids


_NONE = np.empty(0, np.int64)


def read_typed(group: Any, data_type: Any) -> Any:
    """Return the values of a group that is shredded as a primitive type.

    Raises `InvalidDataError` if both fields of a row are set, or a value is invalid.
    """
    fields = dict(zip([field.name for field in group.type], group.flatten(), strict=True))
    typed, value = fields["typed_value"], fields.get("value")
    if value is None or value.null_count == len(value):
        return typed
    checks = RowChecks(len(group))
    both = pc.and_(value.is_valid(), typed.is_valid()).to_numpy(zero_copy_only=False)
    checks.require(~both, np.arange(len(group)), "both value and typed_value are set")
    no_names = pa.repeat(pa.scalar(b"\x01\0\0"), len(group))  # a primitive value has no fields
    values = open_values(no_names, value, checks)
    values = values.take(np.isin(values.kinds(), _CONTAINERS, invert=True))
    return pc.coalesce(typed, cast_values(values, len(group), data_type, strict=False))


_CONTAINERS = (int(Kind.OBJECT), int(Kind.ARRAY))


def read_variants(metadata: Any, group: Any) -> Any:
    """Return the values of any group as Variants; those that are missing are null."""
    checks = RowChecks(len(group))
    names = Names(default_metadata(metadata, valid_mask(metadata)), checks)
    reconstruction = _Reconstruction(names, checks, ordered=False)
    value = reconstruction.build(_Group.from_struct(group), np.arange(len(group)))
    return make_column(default_metadata(metadata, valid_mask(value)), value)
