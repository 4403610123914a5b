"""Schema messages that are read again and again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import LimitError
from splitarrow.formats.arrow.schema import find_schema_facts, read_schema


class Celsius(pa.ExtensionType):
    """A type that is registered after its schema was read."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        return cls()


def message_of(schema: pa.Schema) -> bytes:
    return pa.ipc.read_message(schema.serialize()).metadata.to_pybytes()


def test_a_type_that_is_registered_later_is_found() -> None:
    metadata = message_of(pa.schema([("heat", Celsius())]))
    assert read_schema(metadata).field("heat").type == pa.float64()
    celsius: Any = Celsius()
    pa.register_extension_type(celsius)
    try:
        assert read_schema(metadata).field("heat").type == celsius
    finally:
        pa.unregister_extension_type("test.celsius")
    assert read_schema(metadata).field("heat").type == pa.float64()


def test_a_schema_that_was_read_is_still_held_to_smaller_limits() -> None:
    metadata = message_of(pa.schema([("lists", pa.list_(pa.list_(pa.int8())))]))
    assert read_schema(metadata, max_nesting=3).names == ["lists"]
    with pytest.raises(LimitError, match=r"nests more than 2 levels"):
        read_schema(metadata, max_nesting=2)


def test_facts_are_those_of_each_schema() -> None:
    schemas = [
        pa.schema([(f"column {number}", pa.int8()), ("text", pa.dictionary(pa.int8(), pa.utf8()))])
        for number in range(40)
    ]
    schemas.append(pa.schema([("n", pa.int64())]))
    for schema in [*schemas, *schemas]:
        facts = find_schema_facts(message_of(schema), schema)
        assert facts.is_fixed_width == (len(schema) == 1)
        assert [*facts.dictionary_types.values()] == [pa.utf8()] * (len(schema) - 1)
        assert not facts.swaps_bytes
