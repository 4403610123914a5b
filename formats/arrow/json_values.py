"""Values as those of JSON, and the other way round.

Integers are numbers, floats are numbers or the texts ``NaN``, ``Infinity`` and ``-Infinity``, as in
the JSON of protobuf. Structs are objects, lists are arrays, and maps are arrays of objects with a
key and a value. Intervals are arrays of months, days and nanoseconds. All other values are text;
see `text_values`.
"""

from __future__ import annotations

import math
from typing import Any, cast

import pyarrow as pa

from .data_types import list_fields, replace_fields
from .text_values import (
    format_values,
    get_plain_type,
    get_plain_values,
    parse_plain,
    parse_values,
)
from .truncation import pc

CONSTANTS = ("NaN", "Infinity", "-Infinity")
"""The texts of floats that JSON has no numbers for."""


def find_unsupported(field: Any, *, nested: bool) -> str | None:
    """Return why the values of a field cannot be written and read back, or None.

    Without `nested`, the format has no values inside of others.
    """
    data_type, types = field.type, pa.types
    plain = get_plain_type(data_type)
    has_dictionary = isinstance(data_type, pa.DictionaryType)
    is_single = not (types.is_nested(plain) or types.is_interval(plain))
    if types.is_union(plain) or not (is_single or (nested and not has_dictionary)):
        return f"the type {str(data_type).partition('<')[0]}"
    fields = list_fields(plain)
    names = [field.name for field in fields]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if types.is_struct(plain) and repeated is not None:
        return f"several fields named {repeated!r}"
    return next(filter(None, (find_unsupported(each, nested=nested) for each in fields)), None)


def to_json_values(array: Any) -> list[Any]:
    """Return values that Python's JSON writes.

    Raises `ValueError` if a value has no text that `from_json_values` reads.
    """
    array = get_plain_values(array)
    data_type = array.type
    types = pa.types
    if isinstance(data_type, pa.Bool8Type):
        return array.storage.cast(pa.bool_()).to_pylist()
    if types.is_struct(data_type):
        return _write_structs(array)
    if types.is_nested(data_type):
        return _write_lists(array)
    if types.is_floating(data_type):
        return [
            value if value is None or math.isfinite(value) else _name_constant(value)
            for value in array.to_pylist()
        ]
    if types.is_interval(data_type):
        return array.to_pylist()
    if types.is_null(data_type) or types.is_boolean(data_type) or types.is_integer(data_type):
        return array.to_pylist()
    return format_values(array).to_pylist()


def _name_constant(value: float) -> str:
    return CONSTANTS[0] if math.isnan(value) else CONSTANTS[1 if value > 0 else 2]


def _write_structs(array: Any) -> list[Any]:
    names = [field.name for field in list_fields(array.type)]
    columns = [to_json_values(child) for child in array.flatten()]
    rows = zip(*columns, strict=True) if columns else ((),) * len(array)
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _write_lists(array: Any) -> list[Any]:
    if pa.types.is_map(array.type):
        entries: Any = pa.list_(array.type.field(0))
        own = array.buffers()[:2]
        children = [array.values]
        array = pa.Array.from_buffers(
            entries, len(array), own, offset=array.offset, children=children
        )
    values = to_json_values(array.flatten())
    lists: list[Any] = []
    begin = 0
    for length in pc.list_value_length(array).to_pylist():
        lists.append(None if length is None else values[begin : begin + length])
        begin += length or 0
    return lists


class Number(str):
    """A number of JSON with all of its digits."""

    __slots__ = ()


def from_json_values(values: list[Any], data_type: Any) -> Any:
    """Return an array of values that Python's JSON has read, with a `Number` for each number.

    Raises an exception if a value is not one of the type; `convert_column` finds it.
    """
    form = _get_form(data_type)
    return _parse(pa.array([_arrange(value, form) for value in values], form), data_type)


def _get_form(data_type: Any) -> Any:
    """Return the type of values as pyarrow takes them from Python: their text, or nested."""
    plain = get_plain_type(data_type)
    types = pa.types
    if types.is_boolean(plain) or isinstance(plain, pa.Bool8Type):
        return pa.bool_()
    if types.is_null(plain):
        return plain
    if types.is_interval(plain):
        return pa.list_(pa.string(), 3)
    if not types.is_nested(plain):
        return pa.string()
    fields = [field.with_type(_get_form(field.type)) for field in list_fields(plain)]
    if types.is_map(plain):
        return pa.list_(fields[0])
    return replace_fields(plain, fields)


def _arrange(value: Any, form: Any) -> Any:
    """Return a value as pyarrow takes it, if it has the form."""
    if value is None or not form.num_fields:
        return value
    types = pa.types
    if types.is_struct(form):
        if not isinstance(value, dict):
            raise ValueError("a value is not an object")
        members = cast("dict[str, Any]", value)
        fields = {field.name: field.type for field in list_fields(form)}
        unknown = next((name for name in members if name not in fields), None)
        if unknown is not None:
            raise ValueError(f"the schema has no field {unknown!r}")
        return {name: _arrange(members.get(name), each) for name, each in fields.items()}
    if not isinstance(value, list):
        raise ValueError("a value is not an array")
    items = cast("list[Any]", value)
    child = form.field(0).type
    return [_arrange(each, child) for each in items]


def _parse(array: Any, data_type: Any) -> Any:
    """Return an array of the form of a type as an array of the type."""
    return parse_values(array, data_type, _parse_plain)


def _parse_plain(array: Any, data_type: Any) -> Any:
    types = pa.types
    if types.is_interval(data_type):
        parts = array.to_pylist()
        return pa.array([each and tuple(map(int, each)) for each in parts], data_type)
    if not types.is_nested(data_type):
        return parse_plain(array, data_type)
    fields = list_fields(data_type)
    if types.is_struct(data_type):
        children = array.flatten()
        present = [child.filter(array.is_valid()) for child in children]
    else:
        children = [array.values]
        present = [array.flatten()]
    for field, values in zip(fields, present, strict=True):
        if not field.nullable and values.null_count:
            raise ValueError(f"the field {field.name!r} is null, but not nullable")
    parsed = [_parse(child, field.type) for child, field in zip(children, fields, strict=True)]
    own = len(array.buffers()) - sum(len(child.buffers()) for child in children)
    return pa.Array.from_buffers(data_type, len(array), array.buffers()[:own], children=parsed)
