"""Dictionaries that have not come: which a stream may hold, and empty ones to stand in.

The Arrow specification lets a dictionary come late if the batches before it have only nulls in
its column. pyarrow wants every dictionary before the first batch.
"""

from __future__ import annotations

import struct
from typing import Any, cast

import pyarrow as pa

from .bounds import survey_schema
from .message import HeaderType, batch_table, parse_prefix

# The tables Message and DictionaryBatch, each after its vtable; the table RecordBatch follows.
_HEAD = struct.Struct("<I 6H iHBxI4xq 4H iIq")
_DATA_REFERENCE = 52
_VERSION_5 = 4


def dictionary_types(metadata: bytes | memoryview, schema: pa.Schema) -> dict[int, pa.DataType]:
    """Return the type of the values of each dictionary of a schema, by the dictionary's id.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the schema message; pyarrow has accepted it.
    schema : pyarrow.Schema
        What pyarrow made of it.

    Returns
    -------
    dict of int to pyarrow.DataType
        Parents come before children.
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
    return dict(zip(ids, found, strict=True))


def empty_dictionary(dictionary_id: int, value_type: pa.DataType) -> tuple[bytes, pa.Buffer]:
    """Return the metadata and the body of a dictionary batch without values.

    Parameters
    ----------
    dictionary_id : int
        Which dictionary it is for.
    value_type : pyarrow.DataType
        The type of its values.
    """
    # A dictionary batch is a record batch of one column in a wrapping of its own.
    message = pa.record_batch([pa.nulls(0, cast(Any, value_type))], names=[""]).serialize()
    prefix = parse_prefix(memoryview(message)[:8])
    start = prefix.nbytes + prefix.metadata_length
    batch = bytes(memoryview(message)[prefix.nbytes : start])
    head = _HEAD.pack(
        *(16, 12, 24, 4, 6, 8, 16),
        *(12, _VERSION_5, HeaderType.DICTIONARY_BATCH, 24, message.size - start),
        *(8, 16, 8, 4),
        *(8, _HEAD.size + batch_table(batch) - _DATA_REFERENCE, dictionary_id),
    )
    return head + batch, message.slice(start)
