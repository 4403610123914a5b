"""Metadata that is small and stands for much is refused before it is read."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from splitarrow.errors import InvalidDataError, LimitError
from splitarrow.formats.arrow.bounds import survey_custom_metadata, survey_schema
from splitarrow.formats.arrow.message import parse_prefix
from splitarrow.formats.arrow.schema import read_schema

from .crafting import INT, RECORD_BATCH, SCHEMA, STRUCT, TIMESTAMP, V4, Crafter

LONG = "x" * (1 << 16)


def schema_metadata(schema: pa.Schema) -> bytes:
    data = schema.serialize().to_pybytes()
    return data[8 : 8 + parse_prefix(data[:8]).metadata_length]


def shared_children(depth: int = 40) -> bytes:
    """A field of two children that are the same field of two children, and so on."""
    crafter = Crafter()
    name = crafter.text("n")
    field = crafter.field(name, INT, crafter.int_type())
    struct = crafter.empty_table()
    for _ in range(depth):
        field = crafter.field(name, STRUCT, struct, [field, field])
    return crafter.message(SCHEMA, crafter.schema([field]))


def one_vector_for_all(width: int = 2000) -> bytes:
    """A thousand fields that share one vector of a thousand children."""
    crafter = Crafter()
    name = crafter.text("n")
    leaf = crafter.field(name, INT, crafter.int_type())
    children = crafter.vector([leaf] * width)
    struct = crafter.empty_table()
    parent = crafter.field(name, STRUCT, struct, child_vector=children)
    return crafter.message(SCHEMA, crafter.schema([parent] * width))


def shared_names() -> bytes:
    crafter = Crafter()
    field = crafter.field(crafter.text(LONG), INT, crafter.int_type())
    return crafter.message(SCHEMA, crafter.schema([field] * 5000))


def shared_zones() -> bytes:
    crafter = Crafter()
    zone = crafter.timestamp_type(crafter.text(LONG))
    field = crafter.field(crafter.text("t"), TIMESTAMP, zone)
    return crafter.message(SCHEMA, crafter.schema([field] * 5000))


def shared_pairs(crafter: Crafter) -> int:
    pair = crafter.pair(crafter.text("k"), crafter.text(LONG))
    return crafter.vector([pair] * 5000)


def custom_metadata_of_a_schema() -> bytes:
    crafter = Crafter()
    field = crafter.field(crafter.text("n"), INT, crafter.int_type())
    pairs = shared_pairs(crafter)
    return crafter.message(SCHEMA, crafter.schema([field], custom_metadata=pairs))


def custom_metadata_of_a_field() -> bytes:
    crafter = Crafter()
    pairs = shared_pairs(crafter)
    field = crafter.field(crafter.text("n"), INT, crafter.int_type(), custom_metadata=pairs)
    return crafter.message(SCHEMA, crafter.schema([field]))


def custom_metadata_of_the_message() -> bytes:
    crafter = Crafter()
    field = crafter.field(crafter.text("n"), INT, crafter.int_type())
    pairs = shared_pairs(crafter)
    return crafter.message(SCHEMA, crafter.schema([field]), custom_metadata=pairs)


@pytest.mark.parametrize(
    "craft",
    [
        shared_children,
        one_vector_for_all,
        shared_names,
        shared_zones,
        custom_metadata_of_a_schema,
        custom_metadata_of_a_field,
        custom_metadata_of_the_message,
    ],
)
def test_a_schema_that_stands_for_much_more_than_its_bytes_is_refused(
    craft: Callable[[], bytes],
) -> None:
    metadata = craft()
    assert len(metadata) < 100_000
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(LimitError, match="stands for more than"):
            survey_schema(metadata, max_bytes=1 << 20)
        with pytest.raises(LimitError):
            read_schema(metadata, max_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("pairs", [0, 3])
def test_what_is_not_shared_passes_at_its_own_size(pairs: int) -> None:
    fields = [
        pa.field(f"column {k}", pa.struct([("a", pa.int8()), ("b", pa.timestamp("us", "UTC"))]))
        for k in range(200)
    ]
    schema = pa.schema(fields, {f"key {k}": "value" * 100 for k in range(pairs)})
    metadata = schema_metadata(schema)
    survey = survey_schema(metadata, max_bytes=len(metadata))
    assert survey.fields == 600
    assert read_schema(metadata, max_bytes=len(metadata)).equals(schema, check_metadata=True)


def test_depth_is_that_of_nested_fields() -> None:
    data_type = pa.int8()
    for _ in range(5):
        data_type = pa.list_(data_type)
    metadata = schema_metadata(pa.schema([("n", data_type)]))
    assert survey_schema(metadata, max_nesting=6).fields == 6
    with pytest.raises(LimitError, match="deeper than 5"):
        survey_schema(metadata, max_nesting=5)


def test_a_shared_field_counts_at_its_deepest_place() -> None:
    def schema(wrappings: int) -> bytes:
        crafter = Crafter()
        name, struct = crafter.text("n"), crafter.empty_table()
        shared = crafter.field(name, INT, crafter.int_type())
        for _ in range(4):
            shared = crafter.field(name, STRUCT, struct, [shared])
        outer = shared
        for _ in range(wrappings):
            outer = crafter.field(name, STRUCT, struct, [outer])
        return crafter.message(SCHEMA, crafter.schema([shared, outer]))

    assert survey_schema(schema(3), max_nesting=8).fields == 5 + 8
    with pytest.raises(LimitError, match="deeper than 8"):
        survey_schema(schema(4), max_nesting=8)


def test_custom_metadata_of_a_batch_is_bounded() -> None:
    crafter = Crafter()
    pairs = shared_pairs(crafter)
    header = crafter.batch(0, [], [])
    metadata = crafter.message(RECORD_BATCH, header, custom_metadata=pairs)
    with pytest.raises(LimitError, match="stands for more than"):
        survey_custom_metadata(metadata, max_bytes=1 << 20)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ([], False),
        (["codec"], False),
        (["ARROW:experimental_compression"], True),
        (["a", "ARROW:experimental_compression", "b"], True),
    ],
)
def test_the_compression_of_arrow_0_17_is_found(keys: list[str], found: bool) -> None:
    crafter = Crafter()
    pairs = [crafter.pair(crafter.text(key), crafter.text("ZSTD")) for key in keys]
    vector = crafter.vector(pairs)
    header = crafter.batch(0, [], [])
    metadata = crafter.message(RECORD_BATCH, header, version=V4, custom_metadata=vector)
    assert survey_custom_metadata(metadata) is found
    assert survey_custom_metadata(memoryview(metadata)) is found


def test_every_prefix_and_every_changed_byte_is_walked_or_refused() -> None:
    metadata = schema_metadata(
        pa.schema(
            [
                ("t", pa.timestamp("ns", "Europe/Zurich")),
                ("d", pa.dictionary(pa.int8(), cast(Any, pa.list_(pa.string())))),
            ],
            {"k": "v"},
        )
    )
    changed = [metadata[:length] for length in range(len(metadata))]
    changed += [
        metadata[:position] + bytes([value]) + metadata[position + 1 :]
        for position in range(len(metadata))
        for value in (0, 1, 4, 127, 255)
    ]
    for data in changed:
        for survey in (survey_schema, survey_custom_metadata):
            with contextlib.suppress(InvalidDataError, LimitError):
                survey(data, max_bytes=1 << 16)
