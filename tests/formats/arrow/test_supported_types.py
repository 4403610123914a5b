from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import (
    DAYS,
    MONTHS,
    SHORT_DAYS,
    SHORT_INTERVALS,
    make_arrays_of_all_types,
    make_short_intervals,
)
from splitarrow.formats.arrow.decoding import validate_memory
from splitarrow.formats.arrow.supported_types import (
    SupportedTypes,
    convert_to_supported,
    hide_intervals,
    make_empty_batch,
    set_types,
)
from splitarrow.formats.arrow.truncation import truncate

TEXTS = ["x", None, "a text that is longer than twelve bytes"]
INDICES = [2, 0, None, 1, 0]


def encode(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(INDICES, pa.uint32()), values)


def make_encoded_views() -> dict[str, pa.Array]:
    """Return arrays with views in a dictionary or in runs, alone and in other types."""
    untyped: Any = pa  # whose stubs lack some arguments
    view = pa.array(TEXTS, pa.string_view())
    encoded = encode(view)
    ends = pa.array([2, 3, 5], pa.int32())
    offsets = pa.array([0, 2, 2, 3, 4, 5], pa.int32())
    codes = pa.array([0, 1, 0, 1, 0], pa.int8())
    return {
        "dictionary": encoded,
        "ordered": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 2, 0]), view, ordered=True),
        "binary": encode(view.cast(pa.binary_view())),
        "struct": encode(pa.StructArray.from_arrays([view], ["v"])),
        "runs": pa.RunEndEncodedArray.from_arrays(ends, view),
        "list": pa.ListArray.from_arrays(offsets, encoded),
        "list in dictionary": encode(
            pa.LargeListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int64()), view)
        ),
        "list view": untyped.ListViewArray.from_arrays(
            offsets[:5], pa.array([1, 0, 2, 1, 1], pa.int32()), encoded
        ),
        "fixed": pa.FixedSizeListArray.from_arrays(pa.concat_arrays([encoded] * 2), 2),
        "map": untyped.MapArray.from_arrays(range(6), pa.array(list("abcde")), encoded),
        "struct of it": pa.StructArray.from_arrays([encoded], ["d"]),
        "sparse": pa.UnionArray.from_sparse(codes, [encoded, encoded]),
        "dense": pa.UnionArray.from_dense(codes, offsets[:5], [encoded, encoded]),
    }


def list_types(data_type: Any) -> list[pa.DataType]:
    children = [data_type.field(index).type for index in range(data_type.num_fields)]
    if isinstance(data_type, pa.DictionaryType):
        children = [data_type.value_type]
    return [data_type, *(each for child in children for each in list_types(child))]


@pytest.mark.parametrize("name", make_encoded_views())
@pytest.mark.parametrize(("start", "rows"), [(0, 5), (1, 3), (2, 0)])
def test_encoded_views_become_texts_with_the_same_values(name: str, start: int, rows: int) -> None:
    array = make_encoded_views()[name].slice(start, rows)
    batch = pa.record_batch({"c": array})
    types = SupportedTypes(batch.schema)
    converted = types.convert(batch)
    converted.validate(full=True)
    assert converted.schema.equals(types.schema, check_metadata=True)
    assert converted.to_pydict() == batch.to_pydict()
    assert not {pa.string_view(), pa.binary_view()} & {*list_types(converted.schema.field(0).type)}


def test_other_types_are_the_same_objects() -> None:
    arrays = make_arrays_of_all_types()
    for name, array in arrays.items():
        batch = pa.record_batch({"c": array})
        assert SupportedTypes(batch.schema).convert(batch) is batch, name
        assert hide_intervals(batch) is batch, name
        table = pa.Table.from_batches([batch])
        assert convert_to_supported(table) is table, name


@pytest.mark.parametrize(("start", "rows"), [(0, 5), (1, 3), (2, 0)])
def test_short_intervals_become_those_of_three_units(start: int, rows: int) -> None:
    batch = make_short_intervals().slice(start, rows)
    converted = SupportedTypes(batch.schema).convert(batch)
    converted.validate(full=True)
    months, days = (part[start : start + rows] for part in (SHORT_INTERVALS, SHORT_DAYS))
    found = converted.to_pydict()
    assert found["months"] == months
    assert found["days"] == days
    pairs = zip(months, days, strict=True)
    assert found["struct"] == [{"m": month, "d": day} for month, day in pairs]
    if rows == 5:
        assert found["list"] == [months[:2], [], *([each] for each in months[2:])]
        assert found["views"] == [days[3:5], days[:1], [], days[1:4], days[:1]]
        assert found["map"] == [[pair] for pair in zip("abcde", months, strict=True)]
        assert found["dictionary"] == [months[0], None, None, months[2], months[0]]
        assert found["runs"] == [months[0], months[0], None, months[2], months[2]]
        assert found["sparse"] == [months[0], days[1], months[2], days[3], months[4]]
        assert found["dense"] == [months[0], days[0], months[2], days[3], months[4]]


def test_hidden_intervals_share_their_memory_and_come_back() -> None:
    batch = make_short_intervals()
    hidden = hide_intervals(batch)
    assert hidden.schema.field("months").type == pa.int32()
    restored = set_types(hidden.slice(1, 3), batch.schema)
    assert restored.schema.equals(batch.schema)
    assert restored.equals(batch.slice(1, 3))


def test_batches_with_short_intervals_are_truncated() -> None:
    batch = make_short_intervals()
    assert truncate(batch.slice(1, 3)).equals(batch.slice(1, 3))


def test_values_out_of_range_beside_short_intervals_are_allowed() -> None:
    days = pa.Array.from_buffers(pa.date64(), 5, [None, pa.py_buffer(bytes(range(40)))])
    batch = make_short_intervals().append_column("day", days)
    assert not validate_memory(batch)


def test_an_empty_batch_has_any_types() -> None:
    arrays = {**make_arrays_of_all_types(), **make_encoded_views()}
    schema = pa.schema(
        [(name, array.type) for name, array in arrays.items()] + [("m", MONTHS), ("d", DAYS)]
    )
    empty = make_empty_batch(schema)
    assert empty.num_rows == 0
    assert empty.schema.equals(schema)
