"""The features of the Delta protocol: which of those that a table lists a version really uses.

Writers list features that no column uses: delta-rs adds ``variantType`` to each table that allows
deletion vectors. A feature counts if the schema or the metadata uses it ("Active Features").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...formats.parquet.variant.arrow_fields import variant_field

DELETION_VECTORS = "deletionVectors"
_READER_VERSION = 3
_COLUMN_MAPPING = "columnMapping"
_KNOWN = frozenset(
    {
        *(DELETION_VECTORS, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
        *(_COLUMN_MAPPING, "typeWidening", "variantType", "variantShredding"),
    }
)
"""The features that are implemented or change nothing for readers, and those that are refused only
where a version uses them."""
_MODE = "delta.columnMapping.mode"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_TYPE_CHANGES = "delta.typeChanges"
_INTEGERS = ("byte", "short", "integer", "long")
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


def find_unsupported_use(
    reader_version: int,
    features: Collection[str],
    configuration: Mapping[str, str],
    schema: Mapping[str, Any],
) -> str | None:
    """Return the feature that a version of a table uses and that is not supported; None if none is.

    `schema` is the schema in its form for JSON ("Schema Serialization Format").
    """
    if reader_version > _READER_VERSION:
        return f"the reader version {reader_version}"
    unknown = {name for name in features if name.removesuffix("-preview") not in _KNOWN}
    if unknown:
        return f"the feature {', '.join(sorted(unknown))}"
    fields = list(_list_fields(schema))
    mode = configuration.get(_MODE, "none")
    if mode != "none" and (reader_version < _READER_VERSION or _COLUMN_MAPPING in features):
        if mode != "name":
            return f"columnMapping by {mode}"
        for field in fields:
            name = field["metadata"].get(_PHYSICAL_NAME)
            if name != field["name"]:
                return f"columnMapping (the column {field['name']!r} is {name!r} in the files)"
    for column in schema["fields"]:
        if column["type"] != "variant" and _contains_variant(column["type"]):
            return f"variantType (a Variant inside of the column {column['name']!r})"
    for field in fields:
        for change in field["metadata"].get(_TYPE_CHANGES, ()):
            old, new = change["fromType"], change["toType"]
            if not _is_exact(old, new):
                return f"typeWidening of the column {field['name']!r} from {old} to {new}"
    return None


def mark_variants(schema: pa.Schema, delta_schema: Mapping[str, Any]) -> pa.Schema:
    """Return the schema of a table with its columns that are Variants marked as such."""
    for index, column in enumerate(delta_schema["fields"]):
        if column["type"] == "variant":
            field = schema.field(index)
            marked = variant_field(field.name, nullable=field.nullable, metadata=field.metadata)
            schema = schema.set(index, marked)
    return schema


def _list_fields(data_type: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of a type and of all types in it."""
    if not isinstance(data_type, dict):
        return
    for field in data_type.get("fields", ()):
        yield field
        yield from _list_fields(field["type"])
    for name in ("elementType", "keyType", "valueType"):
        yield from _list_fields(data_type.get(name))


def _contains_variant(data_type: Any) -> bool:
    """Return whether a type is a Variant or contains one."""
    if not isinstance(data_type, dict):
        return data_type == "variant"
    types = [field["type"] for field in data_type.get("fields", ())]
    types += [data_type.get(name) for name in ("elementType", "keyType", "valueType")]
    return any(map(_contains_variant, types))


def _is_exact(old: str, new: str) -> bool:
    """Return whether a change of type is one of the protocol, which keep all values."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) <= _INTEGERS.index(new)
    if new == "double":
        return old in ("float", "byte", "short", "integer")
    target = _DECIMAL.fullmatch(new)
    if target is None:
        return (old, new) == ("date", "timestamp_ntz")
    precision, scale = _find_digits(old)
    added_scale = int(target[2]) - scale
    return precision > 0 and int(target[1]) - precision >= added_scale >= 0


def _find_digits(name: str) -> tuple[int, int]:
    """Return the precision and scale of a decimal or integer type; zeros for other types."""
    if name in _INTEGERS:
        return (20 if name == "long" else 10, 0)
    found = _DECIMAL.fullmatch(name)
    return (int(found[1]), int(found[2])) if found is not None else (0, 0)
