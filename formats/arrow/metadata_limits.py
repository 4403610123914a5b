"""Limits on the memory that decoding metadata takes, checked before pyarrow decodes it.

The tables, vectors and strings of a FlatBuffer can be shared. One MiB of metadata can refer to the
same long string a million times, or nest one field in itself until it represents millions of
fields. A decoder copies each reference, so the size of a message does not bound the memory that
decoding it takes. The functions here follow the references as a decoder does, add up their sizes
and stop at a limit.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import InvalidDataError, LimitError
from ..flatbuffer import PARSE_ERRORS, Bytes, follow, read_slots
from .message import OLD_COMPRESSION_KEY

_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

# The numbers of fields in the tables of Message.fbs and Schema.fbs.
_MESSAGE_HEADER, _MESSAGE_CUSTOM_METADATA = 2, 4
_FOOTER_SCHEMA = 1
_SCHEMA_FIELDS, _SCHEMA_CUSTOM_METADATA = 1, 2
_FIELD_NAME, _FIELD_TYPE_TYPE, _FIELD_TYPE, _FIELD_DICTIONARY = 0, 2, 3, 4
_FIELD_CHILDREN, _FIELD_CUSTOM_METADATA = 5, 6
_DICTIONARY_ID = 0
_TIMESTAMP, _TIMESTAMP_ZONE = 10, 1
_KEY, _VALUE = 0, 1

_FIELD_COST, _PAIR_COST = 32, 24
"""The smallest sizes of an unshared field and of an unshared pair of custom metadata, in bytes."""
_MAX_NESTING = 128
"""The deepest nesting that pyarrow accepts."""


class SchemaSurvey(NamedTuple):
    """The result of a walk through the metadata of a schema."""

    fields: int
    """The number of fields, including nested ones."""
    dictionary_ids: list[int]
    """The IDs of the dictionary-encoded fields, parents before children."""


class _Walk:
    """A walk through a FlatBuffer with a budget in bytes; raises `PARSE_ERRORS`."""

    def __init__(self, data: Bytes, max_bytes: int) -> None:
        self.data = data
        self.left = self._limit = max_bytes
        self._pairs: dict[int, tuple[int, bool]] = {}

    def charge(self, cost: int) -> None:
        """Take `cost` bytes from the budget."""
        self.left -= cost
        if self.left < 0:
            raise LimitError(
                f"{len(self.data)} bytes of metadata take more than {self._limit} bytes when "
                "decoded"
            )

    def read_table(self, reference: int) -> tuple[int, ...]:
        """Return the positions of the fields of the table that a reference points to."""
        return read_slots(self.data, follow(self.data, reference))

    def read_vector(self, position: int, cost: int) -> range:
        """Return the positions of the elements of a vector of tables and charge `cost` for each."""
        if not position:
            return range(0)
        start = follow(self.data, position)
        count = _U32.unpack_from(self.data, start)[0]
        end = start + 4 + 4 * count
        if end > len(self.data):
            raise IndexError
        self.charge(cost * count)
        return range(start + 4, end, 4)

    def read_string(self, position: int) -> tuple[int, int]:
        """Return the begin and the end of a string and charge its length."""
        if not position:
            return 0, 0
        start = follow(self.data, position)
        length = _U32.unpack_from(self.data, start)[0]
        if start + 4 + length > len(self.data):
            raise IndexError
        self.charge(length)
        return start + 4, start + 4 + length

    def walk_custom_metadata(self, position: int) -> bool:
        """Walk custom metadata and return whether it declares compression as in Arrow 0.17."""
        if not position:
            return False
        start = follow(self.data, position)
        if start in self._pairs:
            cost, found = self._pairs[start]
            self.charge(cost)
            return found
        left, found = self.left, False
        for element in self.read_vector(position, _PAIR_COST):
            pair = self.read_table(element)
            begin, end = self.read_string(pair[_KEY])
            self.read_string(pair[_VALUE])
            found = found or self.data[begin:end] == OLD_COMPRESSION_KEY
        self._pairs[start] = left - self.left, found
        return found


class _SchemaWalk(_Walk):
    """A walk through the fields of a schema.

    A shared field is walked once and charged for every reference.
    """

    def __init__(self, data: Bytes, max_bytes: int, max_nesting: int) -> None:
        super().__init__(data, max_bytes)
        self._max_nesting = min(max_nesting, _MAX_NESTING)
        self._seen: dict[int, tuple[int, int, int, list[int]]] = {}
        self.fields = 0
        self.dictionary_ids: list[int] = []

    def walk_field(self, position: int, depth: int) -> int:
        """Walk a field and return the number of levels that it nests."""
        seen = self._seen.get(position)
        if seen is not None:
            height, cost, fields, ids = seen
            self.check_depth(depth + height - 1)
            self.charge(cost)
            self.fields += fields
            self.dictionary_ids += ids
            return height
        left, fields, ids_before = self.left, self.fields, len(self.dictionary_ids)
        slots = read_slots(self.data, position)
        self.fields += 1
        self.read_string(slots[_FIELD_NAME])
        self.walk_custom_metadata(slots[_FIELD_CUSTOM_METADATA])
        kind, data_type = slots[_FIELD_TYPE_TYPE], slots[_FIELD_TYPE]
        if kind and data_type and self.data[kind] == _TIMESTAMP:
            self.read_string(self.read_table(data_type)[_TIMESTAMP_ZONE])
        if slots[_FIELD_DICTIONARY]:
            at = self.read_table(slots[_FIELD_DICTIONARY])[_DICTIONARY_ID]
            self.dictionary_ids.append(_I64.unpack_from(self.data, at)[0] if at else 0)
        height = 1
        for element in self.read_vector(slots[_FIELD_CHILDREN], _FIELD_COST):
            self.check_depth(depth + 1)
            height = max(height, 1 + self.walk_field(follow(self.data, element), depth + 1))
        self._seen[position] = (
            height,
            left - self.left,
            self.fields - fields,
            self.dictionary_ids[ids_before:],
        )
        return height

    def walk_schema(self, position: int) -> None:
        """Walk the schema that the reference at `position` points to."""
        schema = self.read_table(position)
        self.walk_custom_metadata(schema[_SCHEMA_CUSTOM_METADATA])
        for element in self.read_vector(schema[_SCHEMA_FIELDS], _FIELD_COST):
            self.walk_field(follow(self.data, element), 1)

    def check_depth(self, depth: int) -> None:
        if depth > self._max_nesting:
            raise LimitError(f"a column nests more than {self._max_nesting} levels of types")


def survey_schema(
    metadata: Bytes, *, max_nesting: int = 64, max_bytes: int = 16 << 20
) -> SchemaSurvey:
    """Walk the metadata of a message that is known to be a schema.

    A plain column has depth 1. `max_bytes` bounds the decoded metadata. Raises `LimitError` if the
    schema exceeds a limit, and `InvalidDataError` if the metadata is malformed.
    """
    walk = _SchemaWalk(metadata, max_bytes, max_nesting)
    try:
        message = walk.read_table(0)
        walk.walk_custom_metadata(message[_MESSAGE_CUSTOM_METADATA])
        walk.walk_schema(message[_MESSAGE_HEADER])
    except PARSE_ERRORS:
        raise InvalidDataError("the metadata of the schema is malformed") from None
    return SchemaSurvey(walk.fields, walk.dictionary_ids)


def survey_footer(footer: bytes) -> SchemaSurvey:
    """Walk the schema in the footer of a file, which pyarrow has accepted."""
    walk = _SchemaWalk(footer, 1 << 62, _MAX_NESTING)
    try:
        walk.walk_schema(walk.read_table(0)[_FOOTER_SCHEMA])
    except PARSE_ERRORS:
        raise InvalidDataError("the schema in the footer is malformed") from None
    return SchemaSurvey(walk.fields, walk.dictionary_ids)


def survey_custom_metadata(metadata: Bytes, *, max_bytes: int = 16 << 20) -> bool:
    """Walk the custom metadata of any message; return whether it declares compression.

    Raises `LimitError` if it takes more than `max_bytes` when decoded, and `InvalidDataError` if it
    is malformed.
    """
    walk = _Walk(metadata, max_bytes)
    try:
        return walk.walk_custom_metadata(walk.read_table(0)[_MESSAGE_CUSTOM_METADATA])
    except PARSE_ERRORS:
        raise InvalidDataError("the custom metadata of the message is malformed") from None
