"""How large metadata becomes when it is read, counted before pyarrow reads it.

In a FlatBuffer, tables, vectors and strings may be shared: one MiB of metadata can name the same
long string a million times, or nest the same field in itself until it stands for millions of
fields. A reader makes a copy for each mention, so the size of a message does not bound the
memory that reading it takes. The functions here walk the metadata as a reader would, charge each
mention, and stop at a limit.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import InvalidDataError, LimitError

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_SLOTS = 8
_ABSENT = (0,) * _SLOTS

# The places of fields in the tables of Message.fbs and Schema.fbs.
_MESSAGE_HEADER, _MESSAGE_CUSTOM_METADATA = 2, 4
_SCHEMA_FIELDS, _SCHEMA_CUSTOM_METADATA = 1, 2
_FIELD_NAME, _FIELD_TYPE_TYPE, _FIELD_TYPE, _FIELD_DICTIONARY = 0, 2, 3, 4
_FIELD_CHILDREN, _FIELD_CUSTOM_METADATA = 5, 6
_DICTIONARY_ID = 0
_TIMESTAMP, _TIMESTAMP_ZONE = 10, 1
_KEY, _VALUE = 0, 1

_FIELD_COST, _PAIR_COST = 32, 24
"""The fewest bytes that a field, and a pair of custom metadata, take where nothing is shared."""
_MOST_NESTING = 128
"""What pyarrow accepts at most."""
_OLD_COMPRESSION = b"ARROW:experimental_compression"


class SchemaSurvey(NamedTuple):
    """What a walk through the metadata of a schema found."""

    fields: int
    """How many fields there are, nested ones included."""
    dictionary_ids: list[int]
    """The ids of the dictionary-encoded fields, parents before children."""


class _Walk:
    """Bounds-checked access to a FlatBuffer, with a budget in bytes."""

    def __init__(self, data: bytes | memoryview, max_bytes: int) -> None:
        self.data = data
        self.left = self._limit = max_bytes
        self._pairs: dict[int, tuple[int, bool]] = {}

    def charge(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise LimitError(
                f"the metadata of {len(self.data)} bytes stands for more than "
                f"{self._limit} bytes once it is read"
            )

    def slots(self, table: int) -> tuple[int, ...]:
        """Return the positions of the first fields of a table; 0 for those that are absent."""
        data = self.data
        vtable = table - _I32.unpack_from(data, table)[0]
        if vtable < 0:
            raise IndexError
        count = min(_U16.unpack_from(data, vtable)[0] // 2 - 2, _SLOTS)
        if count <= 0:
            return _ABSENT
        offsets = struct.unpack_from(f"<{count}H", data, vtable + 4)
        return (*(table + offset if offset else 0 for offset in offsets), *_ABSENT[count:])

    def follow(self, position: int) -> int:
        """Return what the reference at `position` points to."""
        return position + _U32.unpack_from(self.data, position)[0]

    def vector(self, position: int, cost: int) -> range:
        """Return the positions of the elements of a vector of tables; `cost` is for each."""
        if not position:
            return range(0)
        start = self.follow(position)
        count = _U32.unpack_from(self.data, start)[0]
        end = start + 4 + 4 * count
        if end > len(self.data):
            raise IndexError
        self.charge(cost * count)
        return range(start + 4, end, 4)

    def text(self, position: int) -> tuple[int, int]:
        """Return where a string begins and ends."""
        if not position:
            return 0, 0
        start = self.follow(position)
        length = _U32.unpack_from(self.data, start)[0]
        if start + 4 + length > len(self.data):
            raise IndexError
        self.charge(length)
        return start + 4, start + 4 + length

    def pairs(self, position: int) -> bool:
        """Walk custom metadata; tell whether it declares compression as Arrow 0.17 did."""
        if not position:
            return False
        start = self.follow(position)
        if start in self._pairs:
            cost, found = self._pairs[start]
            self.charge(cost)
            return found
        left, found = self.left, False
        for element in self.vector(position, _PAIR_COST):
            pair = self.slots(self.follow(element))
            begin, end = self.text(pair[_KEY])
            self.text(pair[_VALUE])
            found = found or self.data[begin:end] == _OLD_COMPRESSION
        self._pairs[start] = left - self.left, found
        return found


class _SchemaWalk(_Walk):
    """A walk through fields; one that is met again is charged again, but not walked again."""

    def __init__(self, data: bytes | memoryview, max_bytes: int, max_nesting: int) -> None:
        super().__init__(data, max_bytes)
        self._max_nesting = min(max_nesting, _MOST_NESTING)
        self._seen: dict[int, tuple[int, int, int, list[int]]] = {}
        self.fields = 0
        self.dictionary_ids: list[int] = []

    def field(self, position: int, depth: int) -> int:
        """Walk a field; return how deep it nests."""
        seen = self._seen.get(position)
        if seen is not None:
            height, cost, fields, ids = seen
            self.check_depth(depth + height - 1)
            self.charge(cost)
            self.fields += fields
            self.dictionary_ids += ids
            return height
        left, fields, ids_before = self.left, self.fields, len(self.dictionary_ids)
        slots = self.slots(position)
        self.fields += 1
        self.text(slots[_FIELD_NAME])
        self.pairs(slots[_FIELD_CUSTOM_METADATA])
        kind, data_type = slots[_FIELD_TYPE_TYPE], slots[_FIELD_TYPE]
        if kind and data_type and self.data[kind] == _TIMESTAMP:
            self.text(self.slots(self.follow(data_type))[_TIMESTAMP_ZONE])
        if slots[_FIELD_DICTIONARY]:
            at = self.slots(self.follow(slots[_FIELD_DICTIONARY]))[_DICTIONARY_ID]
            self.dictionary_ids.append(_I64.unpack_from(self.data, at)[0] if at else 0)
        height = 1
        for element in self.vector(slots[_FIELD_CHILDREN], _FIELD_COST):
            self.check_depth(depth + 1)
            height = max(height, 1 + self.field(self.follow(element), depth + 1))
        self._seen[position] = (
            height,
            left - self.left,
            self.fields - fields,
            self.dictionary_ids[ids_before:],
        )
        return height

    def check_depth(self, depth: int) -> None:
        if depth > self._max_nesting:
            raise LimitError(f"a column nests deeper than {self._max_nesting} types")


def survey_schema(
    metadata: bytes | memoryview, *, max_nesting: int = 64, max_bytes: int = 16 << 20
) -> SchemaSurvey:
    """Walk the metadata of a schema message.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message. That it is a schema is not checked.
    max_nesting : int
        How deep fields may nest; a plain column has depth 1.
    max_bytes : int
        How large the metadata may become, in bytes.

    Raises
    ------
    LimitError
        If it nests deeper, or becomes larger.
    InvalidDataError
        If it is malformed.
    """
    walk = _SchemaWalk(metadata, max_bytes, max_nesting)
    try:
        message = walk.slots(walk.follow(0))
        walk.pairs(message[_MESSAGE_CUSTOM_METADATA])
        schema = walk.slots(walk.follow(message[_MESSAGE_HEADER]))
        walk.pairs(schema[_SCHEMA_CUSTOM_METADATA])
        for element in walk.vector(schema[_SCHEMA_FIELDS], _FIELD_COST):
            walk.field(walk.follow(element), 1)
    except (struct.error, IndexError):
        raise InvalidDataError("the metadata of the schema is malformed") from None
    return SchemaSurvey(walk.fields, walk.dictionary_ids)


def survey_custom_metadata(metadata: bytes | memoryview, *, max_bytes: int = 16 << 20) -> bool:
    """Walk the custom metadata of any message.

    Returns
    -------
    bool
        Whether it declares that the body is compressed, as Arrow 0.17 wrote it.

    Raises
    ------
    LimitError
        If it becomes larger than `max_bytes`.
    InvalidDataError
        If it is malformed.
    """
    walk = _Walk(metadata, max_bytes)
    try:
        return walk.pairs(walk.slots(walk.follow(0))[_MESSAGE_CUSTOM_METADATA])
    except (struct.error, IndexError):
        raise InvalidDataError("the custom metadata of the message is malformed") from None
