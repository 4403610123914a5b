"""Schemas: reading one from a message, and what a decoder must know of it."""

from __future__ import annotations

import sys

import pyarrow as pa

from ...errors import InvalidDataError, LimitError
from .bounds import survey_schema
from .message import HeaderType, encapsulate, message_facts, schema_endianness


def read_schema(
    metadata: bytes | memoryview, *, max_nesting: int = 64, max_bytes: int = 16 << 20
) -> pa.Schema:
    """Decode the schema message of a stream.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message.
    max_nesting : int
        How deep types may nest; a plain column has depth 1.
    max_bytes : int
        How large the schema may become when it is read, in bytes.

    Raises
    ------
    ProtocolError
        If the message is no schema.
    InvalidDataError
        If it is malformed, or uses a type that is not known.
    LimitError
        If a type nests deeper than `max_nesting`, or the schema becomes larger than `max_bytes`.
    """
    header_type = message_facts(metadata).header_type
    if header_type is not HeaderType.SCHEMA:
        raise InvalidDataError(f"a {header_type.name} message where a schema was expected")
    survey_schema(metadata, max_nesting=max_nesting, max_bytes=max_bytes)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(encapsulate(metadata)))
    except Exception as error:  # an extension type that the user registered may raise anything
        raise InvalidDataError(f"the schema cannot be decoded: {error}") from None
    for field in schema:
        if _deeper_than(field.type, max_nesting):
            raise LimitError(f"the column {field.name!r} nests deeper than {max_nesting} types")
    return schema


def is_native_endian(metadata: bytes | memoryview) -> bool:
    """Tell whether the data of a stream lies in this machine's byte order.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the stream's schema message.
    """
    return schema_endianness(metadata) == sys.byteorder


def _children(data_type: pa.DataType) -> list[pa.DataType]:
    if isinstance(data_type, pa.BaseExtensionType):
        return [data_type.storage_type]
    if isinstance(data_type, pa.DictionaryType):
        return [data_type.value_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def _deeper_than(data_type: pa.DataType, depth: int) -> bool:
    level, count = [data_type], 0
    while level:
        count += 1
        if count > depth:
            return True
        level = [child for parent in level for child in _children(parent)]
    return False
