"""The features that a schema declares ("Schema.fbs", enum ``Feature``).

A writer declares what a reader must be able to handle beyond the basic format. A reader refuses a
stream that declares a feature that it does not know, instead of misreading it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from enum import IntEnum
from typing import Any

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs

_PARSE_ERRORS = (struct.error, IndexError, OverflowError, TypeError, ValueError, AttributeError)
_MAX_FEATURES = 64
_UNUSED = 0
_FEATURES = 10  # the slot of the field in the vtable of Schema


class Feature(IntEnum):
    """A feature that a schema may declare."""

    DICTIONARY_REPLACEMENT = 1
    """A stream may replace a dictionary, or extend it by deltas."""
    COMPRESSED_BODY = 2
    """Bodies may be compressed."""


def read_features(schema: fbs.Schema) -> tuple[int, ...]:
    """Return the numbers of the features that a schema declares, known or not.

    Raises
    ------
    InvalidDataError
        If the list is malformed, or longer than any that a writer has a reason to write.
    """
    try:
        count = schema.FeaturesLength()
        if count > _MAX_FEATURES:
            raise InvalidDataError(
                f"the schema declares {count} features; expected at most {_MAX_FEATURES}"
            )
        table = schema._tab  # pyright: ignore[reportPrivateUsage]
        if not count:
            return ()
        start = table.Vector(table.Offset(_FEATURES))
        return struct.unpack_from(f"<{count}q", table.Bytes, start)
    except _PARSE_ERRORS:
        raise InvalidDataError("the features of the schema are malformed") from None


def check_features(metadata: bytes | memoryview) -> None:
    """Refuse a schema message that declares an unknown feature.

    Raises
    ------
    InvalidDataError
        If it does. The error names the number of the feature and the known ones.
    """
    check_schema_features(_find_schema(metadata))


def check_schema_features(schema: fbs.Schema) -> None:
    """Refuse a schema that declares an unknown feature; see `check_features`."""
    known = {_UNUSED, *Feature}
    unknown = sorted(set(read_features(schema)) - known)
    if unknown:
        names = ", ".join(f"{each.value} ({each.name})" for each in Feature)
        numbers = ", ".join(map(str, unknown))
        raise InvalidDataError(
            f"the schema declares the unknown feature {numbers}; known are {names}. "
            "The data needs a newer reader"
        )


def _find_schema(metadata: bytes | memoryview) -> fbs.Schema:
    try:
        header: Any = fbs.Message.GetRootAs(metadata, 0).Header()
        schema = fbs.Schema()
        schema.Init(header.Bytes, header.Pos)
    except _PARSE_ERRORS:
        raise InvalidDataError("the metadata of the schema is malformed") from None
    return schema


def name_features(features: Collection[int]) -> list[str]:
    """Return the names of features, in order; a number for an unknown one.

    Examples
    --------
    >>> name_features([2, 9])
    ['COMPRESSED_BODY', '9']
    """
    known = {each.value: each.name for each in Feature}
    return [known.get(number, str(number)) for number in sorted(features) if number != _UNUSED]
