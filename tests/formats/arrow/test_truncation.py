"""Truncated slices equal the original slices and contain no other values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from splitarrow.formats.arrow.data_types import has_unions
from splitarrow.formats.arrow.encoder import MessageEncoder
from splitarrow.formats.arrow.truncation import has_offsets, needs_truncation, truncate

ROWS = 3000
VIEW = pa.string_view()


def text(number: int) -> str | None:
    return None if number % 7 == 0 else f"a text that is not inlined {number}"


def sparsely(values: list[Any]) -> list[Any]:
    return [None if number % 5 == 0 else value for number, value in enumerate(values)]


def unions() -> dict[str, pa.Array]:
    halves = range(ROWS // 2)
    offsets = pa.array([number // 2 for number in range(ROWS)], pa.int32())
    codes = [number % 2 for number in range(ROWS)]
    numbers, texts = pa.array(halves), pa.array(map(text, halves), VIEW)
    far = pa.array([5 + code for code in codes], pa.int8())
    whole = [pa.array(range(ROWS)), pa.array(map(text, range(ROWS)), VIEW)]
    codes_of: Any = [5, 6]
    return {
        "dense": pa.UnionArray.from_dense(pa.array(codes, pa.int8()), offsets, [numbers, texts]),
        "dense, other codes": pa.UnionArray.from_dense(
            far, offsets, [texts, numbers], ["t", "n"], codes_of
        ),
        "sparse": pa.UnionArray.from_sparse(pa.array(codes, pa.int8()), whole),
    }


def arrays() -> dict[str, pa.Array]:
    numbers = range(ROWS)
    texts = [[text(number)] * (number % 4) for number in numbers]
    pairs = [[(str(number), text(number))] * (number % 3) for number in numbers]
    structs = [{"a": text(number), "b": [number] * (number % 3)} for number in numbers]
    struct = pa.struct([("a", VIEW), ("b", pa.list_view(pa.int32()))])
    ends = pa.array([3 * (number + 1) for number in range(ROWS // 3)], pa.int32())
    runs = pa.array(map(text, range(ROWS // 3)), VIEW)
    uuids = pa.array([b"%016d" % number for number in numbers], pa.binary_view())
    return {
        "string view": pa.array(map(text, numbers), VIEW),
        "binary view": uuids,
        "list": pa.array(sparsely(texts), pa.list_(VIEW)),
        "large list": pa.array(sparsely(texts), pa.large_list(VIEW)),
        "list view": pa.array(sparsely(texts), pa.list_view(VIEW)),
        "large list view": pa.array(sparsely(texts), pa.large_list_view(VIEW)),
        "fixed list": pa.array(
            sparsely([[text(n), text(n + 1)] for n in numbers]), pa.list_(VIEW, 2)
        ),
        "map": pa.array(sparsely(pairs), pa.map_(pa.string(), VIEW)),
        "struct": pa.array(sparsely(structs), struct),
        "runs": pa.RunEndEncodedArray.from_arrays(ends, runs),
        **unions(),
    }


ARRAYS = arrays()
ALL = make_arrays_of_all_types()


def body_length(batch: pa.RecordBatch) -> int:
    return sum(message.body_length for message in MessageEncoder(batch.schema).encode(batch))


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    ("start", "rows"), [(0, ROWS), (0, 10), (7, 0), (1000, 13), (ROWS - 5, 5), (1, ROWS - 1)]
)
def test_truncated_slices_are_equal_and_small(name: str, start: int, rows: int) -> None:
    whole = pa.record_batch({"x": ARRAYS[name]})
    batch = whole.slice(start, rows)
    assert needs_truncation(batch.schema)
    small = truncate(batch)
    small.validate(full=True)
    assert small.equals(batch)
    assert small.to_pydict() == batch.to_pydict()
    if 0 < rows < 20:
        assert body_length(small) < 1500 < body_length(whole)


@pytest.mark.parametrize("name", ALL)
def test_truncation_keeps_every_type_equal(name: str) -> None:
    for batch in (
        pa.record_batch({"x": ALL[name]}),
        pa.record_batch({"x": ALL[name]}).slice(2, 2),
        pa.record_batch({"x": ALL[name]}).slice(0, 0),
    ):
        assert truncate(batch).equals(batch)


def test_whole_views_are_not_copied() -> None:
    batch = pa.record_batch({"x": pa.array(["a text that is not inlined"] * 9, VIEW)})
    before: Any = batch.column(0).buffers()[2]
    after: Any = truncate(batch).column(0).buffers()[2]
    assert after.address == before.address


@pytest.mark.parametrize("data_type", [VIEW, pa.binary_view()])
def test_values_behind_nulls_are_ignored(data_type: pa.DataType) -> None:
    texts = ["a text that is not inlined", None] * 500
    array: Any = pa.array(texts, VIEW).cast(data_type)
    views = bytearray(array.buffers()[1].to_pybytes())
    views[16:32] = b"\xff\x00\x00\x00" + b"\x7f" * 12
    buffers = [array.buffers()[0], pa.py_buffer(bytes(views)), *array.buffers()[2:]]
    odd = pa.Array.from_buffers(data_type, 1000, buffers, array.null_count)
    odd.validate(full=True)
    batch = pa.record_batch({"x": odd}).slice(0, 5)
    assert truncate(batch).to_pydict() == {"x": array.to_pylist()[:5]}


def test_truncation_keeps_extension_types() -> None:
    texts = pa.array(["a json text that is not inlined"] * 9, VIEW)
    array = pa.ExtensionArray.from_storage(pa.json_(VIEW), texts)
    batch = pa.record_batch({"x": array}).slice(3, 2)
    assert truncate(batch).equals(batch)
    assert truncate(batch).schema == batch.schema


def test_list_views_may_be_out_of_order() -> None:
    offsets: Any = pa.array([5, 0, 3, 3], pa.int32())
    sizes: Any = pa.array([2, 2, 2, 0], pa.int32())
    values: Any = pa.array(range(100))
    array: Any = pa.ListViewArray.from_arrays(offsets, sizes, values)  # pyright: ignore[reportCallIssue]
    for start in range(4):
        batch = pa.record_batch({"x": array.slice(start)})
        assert truncate(batch).to_pydict() == batch.to_pydict()
        kept: Any = truncate(batch).column(0)
        assert len(kept.values) <= 7


def test_columns_that_the_writer_truncates_are_unchanged() -> None:
    schema = pa.schema([("a", pa.int8()), ("b", pa.list_(pa.string())), ("c", pa.struct([]))])
    assert not needs_truncation(schema)
    assert not needs_truncation(pa.schema([("d", pa.dictionary(pa.int8(), VIEW))]))


def test_nested_unions_are_found() -> None:
    union: Any = pa.sparse_union([pa.field("a", pa.int8())])
    for found in (
        union,
        pa.list_(union),
        pa.struct([("u", union)]),
        pa.dictionary(pa.int8(), union),
    ):
        assert has_unions(pa.schema([("x", found)]))
    assert not has_unions(pa.schema([("x", pa.list_(VIEW))]))


NUMBERS = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.bool_())]))])
TEXTS = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])


@pytest.mark.parametrize(
    ("data_type", "expected"),
    [
        (pa.int64(), False),
        (pa.binary(4), False),
        (pa.struct([]), False),
        (NUMBERS, False),
        (TEXTS, True),
        (pa.list_(pa.int64(), 2), False),
        (pa.list_(NUMBERS, 2), False),
        (pa.list_(pa.string(), 2), True),
        (pa.list_(pa.int64()), True),
        (pa.large_list(pa.int64()), True),
        (pa.list_view(pa.int64()), True),
        (pa.map_(pa.int64(), pa.int64()), True),
        (pa.string(), True),
        (pa.large_binary(), True),
        (pa.uuid(), False),
        (pa.json_(), True),
        (pa.dictionary(pa.int8(), pa.string()), False),
    ],
    ids=str,
)
def test_types_with_offsets_are_those_whose_data_has_them(
    data_type: pa.DataType, expected: bool
) -> None:
    assert has_offsets(data_type) is expected
