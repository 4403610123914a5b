"""Arrow columns become tensors: of every type, with and without nulls, sliced, without a copy."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import InvalidDataError, UsageError
from splitarrow.pytorch.tensors import (
    TensorOptions,
    check_schema,
    convert_batch,
    split_rows,
)

torch: Any = import_module("torch")

pytestmark = pytest.mark.torch

NUMBERS = {
    pa.int8(): torch.int8,
    pa.int16(): torch.int16,
    pa.int32(): torch.int32,
    pa.int64(): torch.int64,
    pa.uint8(): torch.uint8,
    pa.uint16(): torch.uint16,
    pa.uint32(): torch.uint32,
    pa.uint64(): torch.uint64,
    pa.float16(): torch.float16,
    pa.float32(): torch.float32,
    pa.float64(): torch.float64,
}
TIMES: list[tuple[Any, Any, int]] = [
    (pa.date32(), date(1970, 1, 3), 2),
    (pa.date64(), date(1970, 1, 3), 2 * 86_400_000),
    (pa.time32("ms"), time(0, 0, 2), 2000),
    (pa.time64("ns"), time(0, 0, 2), 2 * 10**9),
    (pa.timestamp("us"), datetime(1970, 1, 1, 0, 0, 2), 2 * 10**6),
    (pa.timestamp("s", "UTC"), datetime(1970, 1, 1, 0, 0, 2), 2),
    (pa.duration("ms"), timedelta(seconds=2), 2000),
]


def convert(column: Any, categories: Any = None, **options: Any) -> dict[str, Any]:
    """Convert one column, x, and also each slice of it."""
    field = pa.field("x", column.type)
    batch = pa.record_batch([column], schema=pa.schema([field]))
    return convert_batch(batch, TensorOptions(**options), categories or {})


def padded(values: list[Any], data_type: Any) -> Any:
    """Return an array with an offset in its buffers."""
    filler = [values[0]] * 3 if values else []
    return pa.array(filler + values, data_type).slice(len(filler))


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_numbers_share_their_memory(kind: Any) -> None:
    column = padded([1, 2, 3], kind)
    tensor = convert(column)["x"]
    assert tensor.dtype == NUMBERS[kind]
    assert tensor.tolist() == [1, 2, 3]
    address = column.buffers()[1].address + column.offset * kind.bit_width // 8
    assert tensor.data_ptr() == address
    empty = convert(pa.array([], kind))["x"]
    assert (empty.dtype, empty.shape) == (NUMBERS[kind], (0,))


def test_a_tensor_keeps_its_memory() -> None:
    column = pa.array(range(100_000), pa.int64())
    tensor = convert(column)["x"]
    del column
    assert int(tensor.sum()) == 100_000 * 99_999 // 2


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.float16()], ids=str)
def test_nulls_of_numbers(kind: Any) -> None:
    column = padded([1, None, 3], kind)
    with pytest.raises(InvalidDataError, match=r"column 'x' has 1 nulls; pass on_null='mask'"):
        convert(column)
    masked = convert(column, on_null="mask")
    assert masked["x"].tolist() == [1, 0, 3]
    assert masked["x.mask"].tolist() == [True, False, True]
    assert masked["x.mask"].dtype == torch.bool
    filled = convert(column, on_null="fill")["x"].tolist()
    assert (filled[0], filled[2]) == (1, 3)
    assert math.isnan(filled[1]) if pa.types.is_floating(kind) else filled[1] == 0


def test_a_mask_is_there_whether_or_not_a_batch_has_nulls() -> None:
    assert convert(pa.array([1, 2]), on_null="mask")["x.mask"].tolist() == [True, True]
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    batch = pa.record_batch([pa.array([1, 2])], schema=schema)
    assert list(convert_batch(batch, TensorOptions(on_null="mask"), {})) == ["x"]


def test_booleans() -> None:
    column = padded([True, False, None, True], pa.bool_())
    masked = convert(column, on_null="mask")
    assert masked["x"].dtype == torch.bool
    assert masked["x"].tolist() == [True, False, False, True]
    assert masked["x.mask"].tolist() == [True, True, False, True]
    assert convert(pa.array([], pa.bool_()))["x"].dtype == torch.bool


@pytest.mark.parametrize(("kind", "value", "number"), TIMES, ids=[str(kind) for kind, *_ in TIMES])
def test_times_are_the_numbers_that_arrow_stores(kind: Any, value: Any, number: int) -> None:
    masked = convert(padded([value, None], kind), on_null="mask")
    assert masked["x"].tolist() == [number, 0]
    assert masked["x"].dtype == (torch.int32 if kind.bit_width == 32 else torch.int64)


@pytest.mark.parametrize("kind", [pa.decimal128(9, 2), pa.decimal256(40, 2)], ids=str)
def test_decimals_become_floats(kind: Any) -> None:
    tensor = convert(padded([Decimal("1.25"), Decimal("-3.50")], kind))["x"]
    assert (tensor.dtype, tensor.tolist()) == (torch.float64, [1.25, -3.5])


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()],
    ids=str,
)
def test_texts(kind: Any) -> None:
    is_text = "string" in str(kind)
    values = ["äb", "", None, "c"] if is_text else [b"ab", b"", None, b"c"]
    empty = "" if is_text else b""
    masked = convert(padded(values, kind), on_null="mask")
    assert masked["x"] == [value if value is not None else empty for value in values]
    assert masked["x.mask"].tolist() == [True, True, False, True]
    data = convert(padded(values, kind), on_null="fill", strings="bytes")
    offsets = data["x.offsets"].tolist()
    assert data["x"].dtype == torch.uint8
    encoded = [value.encode() if isinstance(value, str) else value or b"" for value in values]
    assert [bytes(data["x"][begin:end].tolist()) for begin, end in pairwise(offsets)] == encoded
    nothing = convert(pa.array([], kind), strings="bytes")
    assert (nothing["x"].tolist(), nothing["x.offsets"].tolist()) == ([], [0])


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_lists_become_values_and_offsets(make: Any) -> None:
    column = padded([[1, 2], [], [3]], make(pa.int32()))
    found = convert(column)
    assert found["x"].tolist() == [1, 2, 3]
    assert found["x"].dtype == torch.int32
    assert found["x.offsets"].tolist() == [0, 2, 2, 3]
    nulls = convert(padded([[1, 2], None, [3, None]], make(pa.int32())), on_null="mask")
    assert (nulls["x"].tolist(), nulls["x.offsets"].tolist()) == ([1, 2, 3, 0], [0, 2, 2, 4])
    assert nulls["x.mask"].tolist() == [True, False, True]
    nested = torch.nested.nested_tensor_from_jagged(found["x"], found["x.offsets"].long())
    assert [row.tolist() for row in nested.unbind()] == [[1, 2], [], [3]]


def test_each_level_of_nested_lists_has_offsets() -> None:
    rows: list[Any] = [[[1, 2], []], [], [[3], [4, 5, 6]]]
    found = convert(padded(rows, pa.list_(pa.large_list(pa.int16()))))
    assert list(found) == ["x", "x.offsets.1", "x.offsets"]
    assert found["x"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found["x.offsets.1"].tolist() == [0, 2, 2, 3, 6]
    assert found["x.offsets"].tolist() == [0, 2, 2, 4]
    deep = convert(pa.array([[[["a"], []]], [[["b", "cd"]]]]), strings="bytes")
    assert bytes(deep["x"].tolist()) == b"abcd"
    offsets = [deep[name].tolist() for name in ("x.offsets", "x.offsets.1", "x.offsets.2")]
    assert offsets == [[0, 1, 2], [0, 2, 3], [0, 1, 1, 3]]
    assert deep["x.offsets.3"].tolist() == [0, 1, 2, 4]
    structs = convert(pa.array([[{"a": [1, 2]}], [{"a": [3]}, {"a": []}]]))
    assert list(structs) == ["x.a", "x.a.offsets", "x.offsets"]
    with pytest.raises(InvalidDataError, match="the column 'x' has 1 nulls"):
        convert(pa.array([[[1], None]]))


def as_shaped(tensors: list[Any], permutation: list[int] | None = None) -> pa.RecordBatch:
    """Return tensors as a ``variable_shape_tensor`` column, x."""
    values: Any = [
        None if each is None else {"data": each.flatten().tolist(), "shape": list(each.shape)}
        for each in tensors
    ]
    kind = pa.struct([("data", pa.list_(pa.float32())), ("shape", pa.list_(pa.int32(), 2))])
    text = "" if permutation is None else f'{{"permutation": {permutation}}}'
    metadata = {
        "ARROW:extension:name": "arrow.variable_shape_tensor",
        "ARROW:extension:metadata": text,
    }
    field = pa.field("x", kind, metadata=metadata)
    return pa.record_batch([pa.array(values, kind)], schema=pa.schema([field]))


def test_tensors_of_different_shapes_become_a_list() -> None:
    tensors = [torch.arange(6.0).reshape(2, 3), torch.zeros(1, 0), torch.arange(4.0).reshape(4, 1)]
    batch = as_shaped(tensors)
    found = convert_batch(batch.slice(1), TensorOptions(), {})["x"]
    assert [each.shape for each in found] == [(1, 0), (4, 1)]
    assert torch.equal(found[1], tensors[2])
    permuted = convert_batch(as_shaped(tensors, [1, 0]), TensorOptions(), {})["x"]
    assert all(torch.equal(each, other.T) for each, other in zip(permuted, tensors, strict=True))
    nulls = as_shaped([tensors[0], None])
    masked = convert_batch(nulls, TensorOptions("mask"), {})
    assert [each.shape for each in masked["x"]] == [(2, 3), (0, 0)]
    assert masked["x.mask"].tolist() == [True, False]
    with pytest.raises(InvalidDataError, match="the column 'x' has 1 nulls"):
        convert_batch(nulls, TensorOptions(), {})
    wrong: Any = pa.array([{"data": [1.0], "shape": [2, 1]}], nulls.schema.field("x").type)
    batch = pa.record_batch([wrong], schema=nulls.schema)
    with pytest.raises(InvalidDataError, match=r"has 1 values, but the shape \[2, 1\]"):
        convert_batch(batch, TensorOptions(), {})
    check_schema(nulls.schema, TensorOptions(), {})


def as_values(item: Any) -> Any:
    """Return plain values in place of tensors."""
    if isinstance(item, (list, tuple)):
        return [as_values(each) for each in item]  # pyright: ignore[reportUnknownVariableType]
    return item.tolist() if isinstance(item, torch.Tensor) else item


@pytest.mark.parametrize("strings", ["list", "bytes"])
def test_the_values_of_a_row_are_those_of_its_lists(strings: Any) -> None:
    columns: dict[str, list[Any]] = {
        "number": [1, 2, 3],
        "text": ["a", "", "bc"],
        "list": [[1, 2], [], [3]],
        "words": [["a", "b"], [], ["cd"]],
        "nested": [[[1, 2], []], [], [[3], [4, 5, 6]]],
        "structs": [[{"a": 1, "b": [1, 2]}], [], [{"a": 2, "b": []}, {"a": 3, "b": [4]}]],
    }
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    options = TensorOptions("mask", strings)
    items = split_rows(convert_batch(batch, options, {}), batch.schema, 3, options)
    for row, item in enumerate(items):
        found = {name: as_values(value) for name, value in item.items()}
        texts = {name: found[name] for name in ("text", "words")}
        if strings == "bytes":
            texts["text"] = bytes(texts["text"]).decode()
            texts["words"] = [bytes(word).decode() for word in texts["words"]]
        assert texts == {name: columns[name][row] for name in texts}
        for name in ("number", "list", "nested"):
            assert found[name] == columns[name][row]
        for name in "ab":
            assert found[f"structs.{name}"] == [each[name] for each in columns["structs"][row]]
        assert found["structs.a.mask"] == [True] * len(columns["structs"][row])
        assert found["number.mask"] is True
    assert not any("offsets" in name for item in items for name in item)
    empty = batch.slice(0, 0)
    assert split_rows(convert_batch(empty, options, {}), empty.schema, 0, options) == []


def test_lists_of_fixed_size_become_dimensions() -> None:
    column = padded([[1, 2, 3], [4, 5, 6]], pa.list_(pa.float32(), 3))
    tensor = convert(column)["x"]
    assert tensor.tolist() == [[1, 2, 3], [4, 5, 6]]
    values = column.values
    assert tensor.data_ptr() == values.buffers()[1].address + column.offset * 3 * 4
    deep = padded([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.int8(), 2), 2))
    assert convert(deep)["x"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    nulls = padded([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2))
    masked = convert(nulls, on_null="mask")
    assert masked["x"].tolist() == [[1, 2], [0, 0], [3, 0]]
    assert masked["x.mask"].tolist() == [True, False, True]
    with pytest.raises(InvalidDataError, match="the lists of the column 'x' have nulls"):
        convert(pa.array([[3, None]], pa.list_(pa.int16(), 2)))
    flags = convert(padded([[True, False], [False, True]], pa.list_(pa.bool_(), 2)))["x"]
    assert (flags.dtype, flags.tolist()) == (torch.bool, [[True, False], [False, True]])
    assert convert(pa.array([], pa.list_(pa.int16(), 2)))["x"].shape == (0, 2)


def test_fixed_shape_tensors_have_their_logical_shape() -> None:
    storage = pa.array([list(range(6)), list(range(6, 12))], pa.list_(pa.int32(), 6))
    kind = pa.fixed_shape_tensor(pa.int32(), (2, 3))
    tensor = convert(pa.ExtensionArray.from_storage(kind, storage))["x"]
    assert tensor.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    kind = pa.fixed_shape_tensor(pa.int32(), (2, 3), permutation=[1, 0])
    column = pa.ExtensionArray.from_storage(kind, storage)
    tensor = convert(column)["x"]
    assert tensor[0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert tensor.shape[1:] == (3, 2)
    # As in the specification: the shape [100, 200, 500] becomes [500, 100, 200].
    kind = pa.fixed_shape_tensor(pa.int32(), (1, 2, 3), permutation=[2, 0, 1])
    tensor = convert(pa.ExtensionArray.from_storage(kind, storage))["x"]
    assert tensor.shape == (2, 3, 1, 2)
    assert tensor[1].tolist() == [[[6, 9]], [[7, 10]], [[8, 11]]]


def test_dictionaries_become_codes_of_the_categories() -> None:
    categories = {"x": pa.array(["c", "b", "a"])}
    column = pa.array(["a", "b", "a", None, "c"]).dictionary_encode().slice(1)
    masked = convert(column, categories, on_null="mask")
    assert (masked["x"].dtype, masked["x"].tolist()) == (torch.int64, [1, 2, 0, 0])
    assert masked["x.mask"].tolist() == [True, True, False, True]
    unknown = pa.array(["a", None, "z"]).dictionary_encode()
    with pytest.raises(InvalidDataError, match=r"has the value 'z', .* pass categories="):
        convert(unknown, categories, on_null="mask")
    inside = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    assert convert(inside, categories, on_null="mask")["x.mask"].tolist() == [True, False]


def test_structs_become_one_column_for_each_field() -> None:
    column = pa.array([{"a": 1, "b": [1.5, 2.5]}, None, {"a": None, "b": []}])
    masked = convert(column, on_null="mask")
    assert masked["x.a"].tolist() == [1, 0, 0]
    assert masked["x.a.mask"].tolist() == [True, False, False]
    assert masked["x.b"].tolist() == [1.5, 2.5]
    assert masked["x.b.offsets"].tolist() == [0, 2, 2, 2]
    assert masked["x.mask"].tolist() == [True, False, True]


def test_runs_are_expanded() -> None:
    ends = pa.array([2, 3], pa.int32())
    column: Any = pa.RunEndEncodedArray.from_arrays(ends, pa.array([7, 8]))  # pyright: ignore
    assert convert(column)["x"].tolist() == [7, 7, 8]


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.month_day_nano_interval(), pa.map_(pa.string(), pa.int8()), pa.binary(3)],
    ids=str,
)
def test_other_types_are_refused_before_reading(kind: Any) -> None:
    schema = pa.schema([pa.field("x", kind)])
    with pytest.raises(UsageError, match=r"the column 'x' has the type .* leave it out of columns"):
        check_schema(schema, TensorOptions(), {})


def test_a_nested_dictionary_is_refused_before_reading() -> None:
    kind = pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))])
    with pytest.raises(UsageError, match=r"'x\.d' has a dictionary, but is not a column"):
        check_schema(pa.schema([pa.field("x", kind)]), TensorOptions(), {})
