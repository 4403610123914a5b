"""The Arrow fields of Variant columns: their storage, and the fields inside of them (``v.a.b``).

A text gives the type to shred Variants as: ``struct<id: int64, tags: list<string>>``.

The metadata of a Variant field describes the fields that requests can name: a JSON object of their
names, without that of the column, and their types. The type ``variant`` stands for values of any
type. Clients need the types for filters, and servers find the fields by them.

This module needs no NumPy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ....errors import UsageError
from ...arguments import check_text, check_type, refuse

EXTENSION_NAME: Final = "arrow.parquet.variant"
_FIELD_METADATA: Final = {
    b"ARROW:extension:name": EXTENSION_NAME.encode(),
    b"ARROW:extension:metadata": b"",
}
_SPARK_MARK: Final = {b"variant": b"true"}
"""Spark takes a struct for a Variant if its field ``metadata`` has this metadata."""

FIELDS_KEY: Final = b"splitarrow:shredded_fields"
"""The key in the metadata of a Variant field for the names and types of its shredded fields."""
STORAGE_TYPE: Any = pa.struct(
    [
        pa.field("metadata", pa.binary(), nullable=False, metadata=_SPARK_MARK),
        pa.field("value", pa.binary()),
    ]
)
"""The Arrow type of an unshredded Variant."""


def variant_field(name: str, *, nullable: bool = True, metadata: Any = None) -> Any:
    """Return the field of an unshredded Variant column, with further metadata."""
    former: dict[bytes, bytes] = metadata or {}
    return pa.field(name, STORAGE_TYPE, nullable, {**former, **_FIELD_METADATA})


def make_column(metadata: Any, value: Any) -> Any:
    """Return a column of Variants, in which a row without a value is null."""
    mask = value.is_null() if value.null_count else None
    fields = [STORAGE_TYPE.field(index) for index in range(2)]
    children = [metadata.cast(pa.binary()), value.cast(pa.binary())]
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def is_variant_field(field: Any) -> bool:
    """Return whether a field of Arrow is an unshredded Variant, as Arrow or Spark mark one."""
    data_type: Any = field.type
    if isinstance(data_type, pa.BaseExtensionType):
        return data_type.extension_name == EXTENSION_NAME
    if not isinstance(data_type, pa.StructType):
        return False
    names = sorted(data_type.field(index).name for index in range(data_type.num_fields))
    if names != ["metadata", "value"]:
        return False
    extension = (field.metadata or {}).get(b"ARROW:extension:name")
    mark = data_type.field("metadata").metadata or {}
    return extension == EXTENSION_NAME.encode() or mark.get(b"variant") == b"true"


_MAX_DEPTH: Final = 100
_PRIMITIVES: Final[dict[str, Any]] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "time": pa.time64("us"),
    "time64[us]": pa.time64("us"),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[ns]": pa.timestamp("ns"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
    "timestamp[ns, UTC]": pa.timestamp("ns", "UTC"),
    "binary": pa.binary(),
    "string": pa.string(),
    "uuid": pa.uuid(),
    "variant": pa.null(),
}
_DECIMAL: Final = re.compile(r"decimal(?:128)?\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_PRIMITIVE: Final = re.compile(r"\s*([a-z0-9]+(?:\[[^\]]*\]|\([^)]*\))?)\s*")
_NAME: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^\s:<>,"][^:<>,"]*)\s*:')
_OPEN: Final = re.compile(r"\s*(struct|list)\s*<")


def parse_type(text: str) -> Any:
    """Return the type that a text names.

    ``struct<NAME: TYPE, …>`` is for objects, ``list<TYPE>`` for arrays, and ``variant`` for values
    that stay encoded. A name with one of ``:<>,`` or a space at an end is in double quotes, as in
    JSON.

    Raises `UsageError` if the text is malformed, or names a type that Variants do not have.
    """
    parser = _Parser(text)
    found = parser.read_type(0)
    if parser.position < len(text):
        raise parser.expected("the end")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0

    def read_type(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise UsageError(f"a Variant is nested at most {_MAX_DEPTH} deep")
        opening = self._take(_OPEN)
        if opening is None:
            return self._read_primitive()
        if opening[1] == "list":
            element = self.read_type(depth + 1)
            self._require(">")
            return pa.list_(element)
        fields: list[Any] = []
        while True:
            name = self._take(_NAME)
            if name is None:
                raise self.expected("the name of a field and a colon")
            fields.append(pa.field(self._unquote(name[1]), self.read_type(depth + 1)))
            if self._take(re.compile(r"\s*>\s*")) is not None:
                return pa.struct(fields)
            self._require(",")

    def expected(self, what: str) -> UsageError:
        """Return an error that names the position."""
        rest = self._text[self.position : self.position + 20]
        return UsageError(
            f"the type {self._text[:200]!r} is malformed: expected {what} at {rest!r}; write a "
            "type such as struct<id: int64, tags: list<string>>"
        )

    def _read_primitive(self) -> Any:
        start = self.position
        match = self._take(_PRIMITIVE)
        if match is not None:
            name = re.sub(r"\[\s*(us|ns)\s*,\s*(?:tz\s*=\s*)?UTC\s*\]", r"[\1, UTC]", match[1])
            decimal = _DECIMAL.fullmatch(name)
            if decimal is not None:
                precision, scale = int(decimal[1]), int(decimal[2])
                if 0 < precision <= 38 and scale <= precision:
                    return pa.decimal128(precision, scale)
            elif name.removesuffix("[day]") in _PRIMITIVES:
                return _PRIMITIVES[name.removesuffix("[day]")]
        self.position = start
        names = ", ".join([*_PRIMITIVES, "decimal(9, 2)", "struct<…>", "list<…>"])
        raise self.expected(f"one of {names}")

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def _require(self, mark: str) -> None:
        if self._take(re.compile(rf"\s*{mark}\s*")) is None:
            raise self.expected(repr(mark))

    def _unquote(self, text: str) -> str:
        if not text.startswith('"'):
            return text.strip()
        try:
            return str(json.loads(text))
        except ValueError:
            raise self.expected(f"a name that is a JSON string, not {text}, before") from None


MAX_FIELDS: Final = 1000
"""The largest number of fields of one column that have names of their own."""
MAX_STEPS: Final = 100
"""The largest number of names of nested fields in one name."""
_VARIANT: Final = "variant"
_FIELD_TYPES: Final = {
    str(each): each
    for each in _PRIMITIVES.values()
    if each not in (pa.time64("us"), pa.uuid(), pa.null())
}
_FIELD_DECIMAL: Final = re.compile(r"decimal128\((\d{1,2}), (\d{1,2})\)")


@dataclass(frozen=True, slots=True)
class VariantField:
    """A field of the objects in a Variant column."""

    name: str
    """The name of the column and those of the fields, with dots between them."""
    column: str
    """The Variant column."""
    steps: tuple[str, ...]
    """The names of the fields."""
    path: str
    """The path of its group in the schema of a Parquet file. Empty if it is not shredded."""
    data_type: Any
    """The Arrow type of its values; None for Variants."""

    @property
    def field(self) -> Any:
        """The field of Arrow."""
        if self.data_type is None:
            return variant_field(self.name)
        return pa.field(self.name, self.data_type)


def is_field_type(data_type: Any) -> bool:
    """Return whether a field can have an Arrow type, which may be None."""
    return data_type is not None and _parse_field_type(str(data_type)) == data_type


def _parse_field_type(text: str) -> Any:
    match = _FIELD_DECIMAL.fullmatch(text)
    if match is None:
        return _FIELD_TYPES.get(text)
    precision, scale = int(match[1]), int(match[2])
    return pa.decimal128(precision, scale) if 0 < precision <= 38 and scale <= precision else None


def describe_fields(schema: pa.Schema, fields: Mapping[str, VariantField]) -> pa.Schema:
    """Return a schema whose Variant fields describe the fields inside of them."""
    described: list[Any] = []
    for field in schema:
        types = {
            ".".join(each.steps): each.data_type
            for each in fields.values()
            if each.column == field.name
        }
        described.append(describe_field(field, types) if types else field)
    metadata: Any = schema.metadata
    return pa.schema(described, metadata=metadata)


def describe_field(field: Any, types: Mapping[str, Any]) -> Any:
    """Return the field of a Variant column with a description.

    Raises `UsageError` if a field cannot have the name or the type.
    """
    if not isinstance(types, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        refuse("fields", types, "a mapping of names to types")
    for name, data_type in types.items():
        check_text("a name in fields", name)
        check_type(f"the type of {name!r}", data_type, optional=True)
        if not all(name.split(".")) or name.count(".") >= MAX_STEPS:
            raise UsageError(f"{name!r} is not the name of a field; write a.b for b in a")
        if data_type is not None and not is_field_type(data_type):
            allowed = ", ".join([*_FIELD_TYPES, "decimal128"])
            raise UsageError(f"the field {name!r} cannot be {data_type}; use one of {allowed}")
    if len(types) > MAX_FIELDS:
        raise UsageError(f"{field.name!r} has {len(types)} fields; at most {MAX_FIELDS} have names")
    text = {name: _VARIANT if each is None else str(each) for name, each in types.items()}
    former: Any = field.metadata or {}
    return field.with_metadata({**former, FIELDS_KEY: json.dumps(text).encode()})


def drop_description(schema: pa.Schema) -> pa.Schema:
    """Return a schema without what `describe_fields` adds."""
    fields: list[Any] = []
    for field in schema:
        former: Any = field.metadata or {}
        if FIELDS_KEY in former:
            kept = {key: value for key, value in former.items() if key != FIELDS_KEY}
            field = field.with_metadata(kept)
        fields.append(field)
    metadata: Any = schema.metadata
    return pa.schema(fields, metadata=metadata)


def list_described_fields(schema: pa.Schema) -> dict[str, VariantField]:
    """Return the fields that a schema describes, by their names.

    A malformed description is ignored. A column takes precedence over a field of the same name. If
    columns have the same name, there are no fields.
    """
    names = set(schema.names)
    found: dict[str, VariantField] = {}
    if len(names) == len(schema):
        for field in schema:
            if is_variant_field(field):
                found.update((each.name, each) for each in _parse_description(field))
    return {name: each for name, each in found.items() if name not in names}


def _parse_description(field: Any) -> Iterator[VariantField]:
    text = (field.metadata or {}).get(FIELDS_KEY, b"{}")
    try:
        types: Any = json.loads(text)
    except (ValueError, RecursionError):
        return
    pairs: list[tuple[str, Any]] = list(types.items()) if isinstance(types, dict) else []
    for name, text in pairs[:MAX_FIELDS]:
        data_type = _parse_field_type(str(text))
        steps = tuple(name.split("."))
        if all(steps) and len(steps) <= MAX_STEPS and (data_type is not None or text == _VARIANT):
            yield VariantField(f"{field.name}.{name}", field.name, steps, "", data_type)


def merge_fields(files: Iterable[Mapping[str, VariantField]]) -> dict[str, VariantField]:
    """Return the fields of several files.

    A field that has different types is the wider type of integers or decimals, or else a Variant.
    """
    merged: dict[str, VariantField] = {}
    counts: dict[str, int] = {}
    for fields in files:
        for name, each in fields.items():
            known = merged.get(name)
            if known is not None:
                data_type = _find_common_type(known.data_type, each.data_type)
                merged[name] = replace(known, data_type=data_type)
            elif counts.get(each.column, 0) < MAX_FIELDS:
                merged[name] = replace(each, path="")
                counts[each.column] = counts.get(each.column, 0) + 1
    return merged


def _find_common_type(one: Any, other: Any) -> Any:
    if one == other:
        return one
    if one is None or other is None:
        return None
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return max(one, other, key=lambda each: each.bit_width)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale)
        return pa.decimal128(digits + scale, scale) if digits + scale <= 38 else None
    return None
