"""Small metadata that decodes to much memory is refused before it is decoded."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from helpers.crafting import INT, RECORD_BATCH, SCHEMA, STRUCT, TIMESTAMP, V4, Crafter
from helpers.footers import footer
from splitarrow.errors import InvalidDataError, LimitError
from splitarrow.formats.arrow.message import parse_prefix
from splitarrow.formats.arrow.metadata_limits import (
    survey_custom_metadata,
    survey_footer,
    survey_schema,
)
from splitarrow.formats.arrow.schema import read_schema

LONG = "x" * (1 << 16)


def schema_metadata(schema: pa.Schema) -> bytes:
    data = schema.serialize().to_pybytes()
    return data[8 : 8 + parse_prefix(data[:8]).metadata_length]


def shared_children(depth: int = 40) -> bytes:
    """Return a schema of nested fields, each of which has one shared child twice."""
    crafter = Crafter()
    name = crafter.text("n")
    field = crafter.field(name, INT, crafter.int_type())
    struct = crafter.empty_table()
    for _ in range(depth):
        field = crafter.field(name, STRUCT, struct, [field, field])
    return crafter.message(SCHEMA, crafter.schema([field]))


def one_vector_for_all(width: int = 2000) -> bytes:
    """Return a schema of `width` fields that share one vector of `width` children."""
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
def test_a_schema_that_decodes_to_too_many_bytes_is_refused(
    craft: Callable[[], bytes],
) -> None:
    metadata = craft()
    assert len(metadata) < 100_000
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(LimitError, match="when decoded"):
            survey_schema(metadata, max_bytes=1 << 20)
        with pytest.raises(LimitError):
            read_schema(metadata, max_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("pairs", [0, 3])
def test_unshared_metadata_counts_at_its_own_size(pairs: int) -> None:
    fields = [
        pa.field(f"column {k}", pa.struct([("a", pa.int8()), ("b", pa.timestamp("us", "UTC"))]))
        for k in range(200)
    ]
    schema = pa.schema(fields, {f"key {k}": "value" * 100 for k in range(pairs)})
    metadata = schema_metadata(schema)
    survey = survey_schema(metadata, max_bytes=len(metadata))
    assert survey.fields == 600
    assert read_schema(metadata, max_bytes=len(metadata)).equals(schema, check_metadata=True)


def test_each_part_counts_at_its_exact_size_whenever_it_is_referred_to() -> None:
    crafter = Crafter()
    pair = crafter.pair(crafter.text("key"), crafter.text("value"))
    pairs, none = crafter.vector([pair, pair]), crafter.text("")
    zoned = crafter.field(none, TIMESTAMP, crafter.timestamp_type(crafter.text("zone")))
    leaf = crafter.field(
        crafter.text("leaf"), INT, crafter.int_type(), custom_metadata=pairs, dictionary=0
    )
    encoded = crafter.field(none, INT, crafter.int_type(), dictionary=crafter.encoding(7))
    plain_zero = crafter.field(none, INT, crafter.int_type(), dictionary=crafter.encoding(0))
    parent = crafter.field(none, STRUCT, crafter.empty_table(), [leaf, encoded, leaf])
    fields = [zoned, parent, leaf, plain_zero, parent]
    metadata = crafter.message(
        SCHEMA, crafter.schema(fields, custom_metadata=pairs), custom_metadata=pairs
    )
    pairs_cost = 2 * (24 + len("key") + len("value"))
    leaf_cost = 32 + len("leaf") + pairs_cost
    parent_cost = 32 + leaf_cost + 32 + leaf_cost
    cost = 2 * pairs_cost + 32 + len("zone") + parent_cost + leaf_cost + 32 + parent_cost
    assert survey_schema(metadata, max_bytes=cost) == (11, [7, 0, 7])
    with pytest.raises(LimitError, match=f"take more than {cost - 1} bytes when decoded"):
        survey_schema(metadata, max_bytes=cost - 1)
    assert survey_custom_metadata(metadata, max_bytes=pairs_cost) is False
    with pytest.raises(LimitError):
        survey_custom_metadata(metadata, max_bytes=pairs_cost - 1)


def test_the_nesting_of_fields_is_limited() -> None:
    data_type = pa.int8()
    for _ in range(5):
        data_type = pa.list_(data_type)
    metadata = schema_metadata(pa.schema([("n", data_type)]))
    assert survey_schema(metadata, max_nesting=6).fields == 6
    with pytest.raises(LimitError, match="more than 5 levels"):
        survey_schema(metadata, max_nesting=5)


def test_a_shared_field_counts_at_its_greatest_depth() -> None:
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
    with pytest.raises(LimitError, match="more than 8 levels"):
        survey_schema(schema(4), max_nesting=8)


def test_custom_metadata_of_a_batch_is_bounded() -> None:
    crafter = Crafter()
    pairs = shared_pairs(crafter)
    header = crafter.batch(0, [], [])
    metadata = crafter.message(RECORD_BATCH, header, custom_metadata=pairs)
    with pytest.raises(LimitError, match="when decoded"):
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
def test_the_compression_of_arrow_0_17_is_recognized(keys: list[str], found: bool) -> None:
    crafter = Crafter()
    pairs = [crafter.pair(crafter.text(key), crafter.text("ZSTD")) for key in keys]
    vector = crafter.vector(pairs)
    header = crafter.batch(0, [], [])
    metadata = crafter.message(RECORD_BATCH, header, version=V4, custom_metadata=vector)
    assert survey_custom_metadata(metadata) is found
    assert survey_custom_metadata(memoryview(metadata)) is found


def test_every_prefix_and_changed_byte_is_surveyed_or_refused() -> None:
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


def pairs_of_64_kib(count: int) -> bytes:
    """Return a message whose pairs of custom metadata take 64 KiB each when decoded."""
    crafter = Crafter()
    pair = crafter.pair(crafter.text("k"), crafter.text("x" * ((1 << 16) - 24 - 1)))
    pairs = crafter.vector([pair] * count)
    return crafter.message(SCHEMA, crafter.schema([]), custom_metadata=pairs)


def test_the_default_limit_is_16_mib() -> None:
    within, beyond = pairs_of_64_kib(256), pairs_of_64_kib(257)
    for survey in (survey_schema, survey_custom_metadata, read_schema):
        survey(within)
        with pytest.raises(LimitError, match=f"more than {16 << 20} bytes when decoded"):
            survey(beyond)


def add_nested_field(crafter: Crafter, levels: int) -> int:
    name, struct = crafter.text("n"), crafter.empty_table()
    field = crafter.field(name, INT, crafter.int_type(), dictionary=crafter.encoding(7))
    for _ in range(levels - 1):
        field = crafter.field(name, STRUCT, struct, [field])
    return field


def nested(levels: int) -> bytes:
    crafter = Crafter()
    return crafter.message(SCHEMA, crafter.schema([add_nested_field(crafter, levels)]))


def nested_footer(levels: int, columns: int = 1) -> bytes:
    crafter = Crafter()
    schema = crafter.schema([add_nested_field(crafter, levels)] * columns)
    crafter.builder.StartObject(2)
    crafter.builder.PrependUOffsetTRelativeSlot(1, schema, 0)
    crafter.builder.Finish(crafter.builder.EndObject())
    return bytes(crafter.builder.Output())


def test_types_nest_64_levels_by_default_and_never_more_than_128() -> None:
    assert survey_schema(nested(64)) == (64, [7])
    assert survey_schema(nested(128), max_nesting=1000).fields == 128
    with pytest.raises(LimitError, match="more than 64 levels"):
        survey_schema(nested(65))
    with pytest.raises(LimitError, match="more than 128 levels"):
        survey_schema(nested(129), max_nesting=1000)


def test_a_footer_has_the_limits_of_pyarrow_only() -> None:
    assert survey_footer(footer(columns=["a", "b"])) == (2, [])
    assert survey_footer(nested_footer(128, 10_000)) == (1_280_000, [7] * 10_000)
    with pytest.raises(LimitError, match="more than 128 levels"):
        survey_footer(nested_footer(129))


def test_a_footer_that_is_cut_off_is_refused() -> None:
    data = footer(columns=["a", "b"])
    for length in range(4):
        with pytest.raises(InvalidDataError, match="the schema in the footer is malformed"):
            survey_footer(data[:length])
    for length in range(len(data)):
        with contextlib.suppress(InvalidDataError):
            assert survey_footer(data[:length]).fields <= 2


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_shared_field_counts_each_time(before: int) -> None:
    crafter = Crafter()
    name = crafter.text("n")
    leaf = crafter.field(name, INT, crafter.int_type())
    others = [crafter.field(name, INT, crafter.int_type()) for _ in range(before)]
    parent = crafter.field(name, STRUCT, crafter.empty_table(), [leaf, leaf, leaf])
    metadata = crafter.message(SCHEMA, crafter.schema([*others, parent, leaf]))
    assert survey_schema(metadata).fields == before + 5
