"""The storage of every Arrow type restores to the type and the values that it came from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from helpers.arrow_data import draw_batches, make_arrays_of_all_types, make_batches
from splitarrow.errors import InvalidDataError
from splitarrow.formats.vortex.storage import (
    StorageConverter,
    find_storage_schema,
    find_storage_type,
    is_own_storage,
)

ARRAYS = make_arrays_of_all_types()


def check(batch: pa.RecordBatch) -> None:
    converter = StorageConverter(batch.schema)
    storage = converter.to_storage(batch)
    storage.validate(full=True)
    assert storage.type.equals(pa.struct(list(converter.storage_schema)))
    restored = converter.restore(storage, batch.slice(0, 0))
    restored.validate(full=True)
    assert restored.schema.equals(batch.schema, check_metadata=True)
    assert restored.equals(batch)


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_is_restored(name: str) -> None:
    for batch in make_batches(ARRAYS[name]):
        check(batch)


@given(draw_batches())
def test_drawn_batches_are_restored(drawn: tuple[pa.Schema, list[pa.RecordBatch]]) -> None:
    for batch in drawn[1]:
        check(batch)


def test_metadata_nullability_and_names_are_restored() -> None:
    key: Any = pa.field("K", pa.string(), False)
    item: Any = pa.field("V", pa.int8(), False)
    fields = [
        pa.field("a", pa.int8(), False, {"k": "v"}),
        pa.field("a", pa.list_(pa.field("x", pa.int8(), False, {"l": "w"}))),
        pa.field("", pa.map_(key, item)),
        pa.field("t", pa.timestamp("ms", "no/zone")),
        pa.field("d", pa.decimal128(3, 7)),
        pa.field("o", pa.dictionary(pa.int8(), pa.string(), ordered=True)),
    ]
    categories = pa.DictionaryArray.from_arrays(
        pa.array([1, None], pa.int8()), pa.array(["unused", "b", "also unused"]), ordered=True
    )
    columns: list[Any] = [
        pa.array([1, 2], pa.int8()),
        pa.array([[1], None], fields[1].type),
        pa.array([[("k", 3)], []], fields[2].type),
        pa.array([5, None], pa.int64()).cast(fields[3].type),
        pa.array([None, None], fields[4].type),
        categories,
    ]
    batch = pa.record_batch(columns, schema=pa.schema(fields, {"s": "m"}))
    check(batch)
    check(batch.slice(1))
    for field in find_storage_schema(batch.schema):
        assert is_own_storage(field.type)
        assert field.nullable


def test_a_name_with_a_nul_is_refused() -> None:
    cut = pa.field("a\0b", pa.int8())
    for field in (cut, pa.field("s", pa.struct([cut])), pa.field("u", pa.sparse_union([cut]))):
        with pytest.raises(InvalidDataError, match=r"no names with a NUL.*read it in the format"):
            find_storage_schema(pa.schema([field]))


def test_a_batch_without_columns_keeps_its_rows() -> None:
    batch = pa.record_batch([pa.nulls(3)], names=["x"]).select([])
    check(batch.replace_schema_metadata({"k": "v"}))
    converter = StorageConverter(batch.schema)
    assert converter.restore(converter.to_storage(batch), None).num_rows == 3


def test_runs_keep_the_bits_of_floats() -> None:
    values = pa.array([0.0, -0.0, np.nan, 1.0, 1.0])
    ends = pa.array([1, 2, 3, 4, 5], pa.int32())
    runs: Any = pa.RunEndEncodedArray.from_arrays(ends, values)
    batch = pa.record_batch([runs], names=["r"])
    converter = StorageConverter(batch.schema)
    restored: Any = converter.restore(converter.to_storage(batch), None).column("r")
    assert np.signbit(restored.values.to_numpy()).tolist() == [False, True, False, False]
    assert restored.run_ends.to_pylist() == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("data_type", "storage"),
    [
        (pa.binary(3), pa.list_(pa.field("item", pa.uint8(), False), 3)),
        (pa.duration("s"), pa.int64()),
        (pa.dictionary(pa.int8(), pa.string()), pa.int8()),
        (pa.run_end_encoded(pa.int16(), pa.string()), pa.string()),
        (pa.timestamp("s", "Europe/Zurich"), pa.timestamp("s", "UTC")),
        (pa.decimal64(4, 9), pa.decimal64(18, 0)),
        (pa.uuid(), pa.list_(pa.field("item", pa.uint8(), False), 16)),
        (pa.large_string(), pa.large_string()),
        (pa.list_(pa.duration("s")), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_storage_types(data_type: pa.DataType, storage: pa.DataType) -> None:
    assert find_storage_type(data_type) == storage


def restore(schema: pa.Schema, column: pa.Array[Any]) -> None:
    StorageConverter(schema).restore(pa.StructArray.from_arrays([column], names=["c"]), None)


def test_a_storage_that_does_not_fit_is_refused() -> None:
    schema = pa.schema([("c", pa.duration("s"))])
    with pytest.raises(InvalidDataError, match="does not fit the schema"):
        restore(schema, pa.array([1], pa.int32()))
    with pytest.raises(InvalidDataError, match="'c' cannot be restored: its dictionary"):
        restore(pa.schema([("c", pa.dictionary(pa.int8(), pa.string()))]), pa.array([0], pa.int8()))
    union = pa.sparse_union([pa.field("a", pa.int8())], [7])
    storage = find_storage_type(union)
    for code, problem in ((3, "unknown type code"), (None, "type code that is null")):
        with pytest.raises(InvalidDataError, match=problem):
            restore(pa.schema([("c", union)]), pa.array([{"type_code": code, "a": 1}], storage))


def test_indices_outside_of_the_dictionary_are_refused() -> None:
    batch = pa.record_batch([pa.array(["a", "b"]).dictionary_encode()], names=["c"])
    converter = StorageConverter(batch.schema)
    storage: Any = pa.StructArray.from_arrays([pa.array([0, 2], pa.int32())], names=["c"])
    with pytest.raises(InvalidDataError, match="'c' cannot be restored"):
        converter.restore(storage, batch.slice(0, 0))
