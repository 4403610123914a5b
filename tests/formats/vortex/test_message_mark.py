"""The mark of a stream of Vortex arrays."""

from __future__ import annotations

import pyarrow as pa

from splitarrow.formats.arrow.custom_metadata import add_footer_metadata, find_footer_metadata
from splitarrow.formats.arrow.encoder import MessageEncoder
from splitarrow.formats.arrow.message import read_custom_metadata
from splitarrow.formats.arrow.schema import read_schema
from splitarrow.formats.vortex.message import is_marked, mark_schema, unmark_schema


def test_a_mark_is_added_and_removed() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), metadata={"a": "b"})], {"k": "v"})
    plain = bytes(MessageEncoder(schema).schema_message.metadata)
    plain = add_footer_metadata(plain, {b"f": b"g"})
    marked = mark_schema(plain)
    assert not is_marked(plain)
    assert is_marked(marked)
    unmarked = unmark_schema(marked)
    assert not is_marked(unmarked)
    assert unmark_schema(plain) is plain
    for metadata in (marked, unmarked):
        assert read_schema(metadata).equals(schema, check_metadata=True)
        assert find_footer_metadata(metadata) == {b"f": b"g"}
    assert read_custom_metadata(unmarked) == read_custom_metadata(plain)
