"""Comparison of schemas, with a description of the first difference."""

from __future__ import annotations

import pyarrow as pa


def describe_difference(one: pa.Schema, other: pa.Schema) -> str | None:
    """Describe the first difference of `other` from `one`, or return None if there is none.

    The comparison ignores byte order and the custom metadata of the schema itself, where pandas
    stores the number of rows.
    """
    if one.names != other.names:
        missing = [name for name in one.names if name not in other.names]
        added = [name for name in other.names if name not in one.names]
        if missing:
            return f"it lacks the column {missing[0]!r}"
        if added:
            return f"it has the additional column {added[0]!r}"
        return "its columns are in a different order"
    for ours, theirs in zip(one, other, strict=True):
        if not ours.type.equals(theirs.type, check_metadata=True):
            return f"its column {ours.name!r} is {theirs.type}, not {ours.type}"
        if ours.nullable != theirs.nullable:
            return f"its column {ours.name!r} is {'' if theirs.nullable else 'not '}nullable"
        if not ours.equals(theirs, check_metadata=True):
            return f"its column {ours.name!r} has different custom metadata"
    return None


def are_schemas_equal(one: pa.Schema, other: pa.Schema) -> bool:
    """Return whether two schemas and their custom metadata are equal, apart from byte order."""
    return describe_difference(one, other) is None and (one.metadata or {}) == (
        other.metadata or {}
    )
