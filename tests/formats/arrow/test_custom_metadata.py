"""The custom metadata of a footer travels in a schema message, which stays what it was."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.crafting import SCHEMA, Crafter, schema_of_ints
from splitarrow.formats.arrow.custom_metadata import (
    PREFIX,
    add_footer_metadata,
    find_footer_metadata,
)
from splitarrow.formats.arrow.message import read_custom_metadata, read_endianness
from splitarrow.formats.arrow.metadata_limits import survey_schema
from splitarrow.formats.arrow.schema import read_schema

FOOTERS = st.dictionaries(st.binary(max_size=40), st.binary(max_size=40), min_size=1)


@given(FOOTERS, st.lists(st.text(max_size=9), max_size=4), st.integers(0, 1))
def test_a_schema_message_carries_a_footer(
    footer: dict[bytes, bytes], names: list[str], endianness: int
) -> None:
    metadata = schema_of_ints(names, endianness=endianness)
    extended = add_footer_metadata(metadata, footer)
    assert len(extended) % 8 == 0
    assert find_footer_metadata(extended) == footer
    assert find_footer_metadata(metadata) is None
    assert read_schema(extended).equals(read_schema(metadata), check_metadata=True)
    assert read_endianness(extended) == read_endianness(metadata)
    assert survey_schema(extended) == survey_schema(metadata)


@pytest.mark.parametrize("size", range(8))
def test_the_message_may_have_any_size_and_metadata_of_its_own(size: int) -> None:
    crafter = Crafter()
    pair = crafter.pair(crafter.text("own"), crafter.text("x" * size))
    metadata = crafter.message(SCHEMA, crafter.schema([]), custom_metadata=crafter.vector([pair]))
    metadata += bytes(size)
    extended = add_footer_metadata(metadata, {b"k": b"v"})
    assert read_custom_metadata(extended) == {b"own": b"x" * size, PREFIX + b"k": b"v"}
    assert find_footer_metadata(extended) == {b"k": b"v"}
    assert read_schema(extended) == pa.schema([])
