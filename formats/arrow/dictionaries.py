"""The dictionaries of a schema, and empty dictionaries for those that have not arrived.

The Arrow specification allows a dictionary to arrive late if the batches before it have only nulls
in its column. pyarrow needs every dictionary before the first batch.
"""

from __future__ import annotations

import struct
from typing import Any, cast

import pyarrow as pa

from ...errors import InvalidDataError
from .message import HeaderType, find_batch_table, parse_prefix
from .metadata_limits import survey_schema

# The tables Message and DictionaryBatch, each after its vtable; the table RecordBatch follows.
_HEAD = struct.Struct("<I 6H iHBxI4xq 4H iIq")
_DATA_REFERENCE = 52
_VERSION_5 = 4


def read_dictionary_types(
    metadata: bytes | memoryview, schema: pa.Schema
) -> dict[int, pa.DataType]:
    """Return the type of the values of each dictionary of a schema, by the dictionary's ID.

    Raises `InvalidDataError` if the message declares a dictionary for a type that pyarrow reads
    without one.
    """
    found: list[pa.DataType] = []
    pending = [field.type for field in reversed(list(schema))]
    while pending:
        data_type = pending.pop()
        if isinstance(data_type, pa.BaseExtensionType):
            pending.append(data_type.storage_type)
        elif isinstance(data_type, pa.DictionaryType):
            found.append(data_type.value_type)
            pending.append(data_type.value_type)
        else:
            children = range(data_type.num_fields)
            pending.extend(data_type.field(index).type for index in reversed(children))
    ids = survey_schema(metadata, max_nesting=1 << 31, max_bytes=1 << 62).dictionary_ids
    if len(ids) != len(found):
        raise InvalidDataError(
            f"the schema declares {len(ids)} dictionaries; its types have {len(found)}"
        )
    return dict(zip(ids, found, strict=True))


def encode_empty_dictionary(dictionary_id: int, value_type: pa.DataType) -> tuple[bytes, pa.Buffer]:
    """Return the metadata and the body of a dictionary batch without values."""
    # A dictionary batch wraps a record batch of one column.
    message = pa.record_batch([pa.nulls(0, cast(Any, value_type))], names=[""]).serialize()
    prefix = parse_prefix(memoryview(message)[:8])
    start = prefix.nbytes + prefix.metadata_length
    batch = bytes(memoryview(message)[prefix.nbytes : start])
    head = _HEAD.pack(
        *(16, 12, 24, 4, 6, 8, 16),
        *(12, _VERSION_5, HeaderType.DICTIONARY_BATCH, 24, message.size - start),
        *(8, 16, 8, 4),
        *(8, _HEAD.size + find_batch_table(batch) - _DATA_REFERENCE, dictionary_id),
    )
    return head + batch, message.slice(start)
