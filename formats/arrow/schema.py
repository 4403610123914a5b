"""Decoding of schema messages."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError, LimitError
from .bounds import survey_schema
from .features import check_features
from .framing import encapsulate
from .message import HeaderType, read_endianness, read_message_info

_MAX_CACHED_BYTES = 16 << 10
_EXTENSION_NAME = b"ARROW:extension:name"


def read_schema(
    metadata: bytes | memoryview, *, max_nesting: int = 64, max_bytes: int = 16 << 20
) -> pa.Schema:
    """Decode the schema message of a stream.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message.
    max_nesting : int
        The deepest nesting of types. A plain column has depth 1.
    max_bytes : int
        The largest size of the decoded schema in bytes.

    Raises
    ------
    ProtocolError
        If `metadata` is not an Arrow IPC message.
    InvalidDataError
        If the message is not a schema, is malformed, or uses an unknown type.
    LimitError
        If the schema exceeds one of the limits.
    """
    if type(metadata) is bytes and is_self_contained(metadata):
        return _read_cached(metadata, max_nesting, max_bytes)
    return _read(metadata, max_nesting, max_bytes)


def is_self_contained(metadata: bytes) -> bool:
    """Return whether a schema message is small, and always decodes to the same schema.

    Extension types decode to whatever the process has registered at that moment.
    """
    return len(metadata) <= _MAX_CACHED_BYTES and _EXTENSION_NAME not in metadata


@lru_cache(maxsize=32)
def _read_cached(metadata: bytes, max_nesting: int, max_bytes: int) -> pa.Schema:
    return _read(metadata, max_nesting, max_bytes)


def _read(metadata: bytes | memoryview, max_nesting: int, max_bytes: int) -> pa.Schema:
    header_type = read_message_info(metadata).header_type
    if header_type is not HeaderType.SCHEMA:
        raise InvalidDataError(f"received a {header_type.name} message; expected a schema")
    survey_schema(metadata, max_nesting=max_nesting, max_bytes=max_bytes)
    check_features(metadata)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(encapsulate(metadata)))
    except Exception as error:  # an extension type of the user may raise anything
        raise InvalidDataError(f"the schema cannot be decoded: {error}") from None
    if not is_native_endian(metadata):
        # Batches have this machine's byte order once they are decoded, and so has their schema.
        schema = pa.schema(list(schema)).with_metadata(schema.metadata)
    if not has_utf8_names(schema):
        raise InvalidDataError("the schema has column names that are not UTF-8")
    for field in schema:
        if _is_deeper_than(field.type, max_nesting):
            raise LimitError(
                f"the column {field.name!r} nests more than {max_nesting} levels of types"
            )
    return schema


def has_utf8_names(schema: pa.Schema) -> bool:
    """Return whether all field names are UTF-8, as Arrow requires and pyarrow does not check."""
    pending: list[Any] = list(schema)
    try:
        while pending:
            field = pending.pop()
            field.name.encode()
            data_type = field.type
            while isinstance(data_type, (pa.BaseExtensionType, pa.DictionaryType)):
                (data_type,) = _list_children(data_type)
            pending.extend(data_type.field(index) for index in range(data_type.num_fields))
    except UnicodeError:
        return False
    return True


def is_native_endian(metadata: bytes | memoryview) -> bool:
    """Return whether the data of a stream has this machine's byte order.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the stream's schema message.
    """
    return read_endianness(metadata) == sys.byteorder


def _list_children(data_type: pa.DataType) -> list[pa.DataType]:
    if isinstance(data_type, pa.BaseExtensionType):
        return [data_type.storage_type]
    if isinstance(data_type, pa.DictionaryType):
        return [data_type.value_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def _is_deeper_than(data_type: pa.DataType, depth: int) -> bool:
    level, count = [data_type], 0
    while level:
        count += 1
        if count > depth:
            return True
        level = [child for parent in level for child in _list_children(parent)]
    return False
