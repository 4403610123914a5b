"""Arrays of every Arrow type, fixed or drawn by hypothesis, and streams of them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
from hypothesis import assume
from hypothesis import strategies as st

from splitarrow.fbs import arrow_generated as fbs

INNER = pa.dictionary(pa.int8(), pa.string())


def _dictionary(values: pa.Array, indices: list[int | None], index: pa.DataType) -> pa.Array:
    places: Any = pa.array(indices, index)
    return pa.DictionaryArray.from_arrays(places, values)


def _nested_dictionary() -> pa.Array:
    inner = _dictionary(pa.array(["x", "y"]), [0, 1, None, 1], pa.int8())
    values = pa.ListArray.from_arrays(pa.array([0, 2, 3, 4], pa.int32()), inner)
    return _dictionary(values, [2, None, 0, 1, 0], pa.int16())


def _unions() -> dict[str, pa.Array]:
    kinds = pa.array([0, 1, 0, 1, 0], pa.int8())
    numbers, texts = pa.array([1, None, 3, 4, 5], pa.int8()), pa.array(["a", "b", None, "d", "e"])
    offsets = pa.array([0, 0, 1, 1, 2], pa.int32())
    encoded = texts.dictionary_encode()
    return {
        "sparse_union": pa.UnionArray.from_sparse(kinds, [numbers, texts]),
        "dense_union": pa.UnionArray.from_dense(kinds, offsets, [numbers, texts]),
        "dense_union of dictionary": pa.UnionArray.from_dense(kinds, offsets, [numbers, encoded]),
    }


def _views() -> dict[str, pa.Array]:
    texts = ["short", None, "a text that is longer than twelve bytes", "", "another one, as long"]
    lists = [[1, 2], None, [], [3], [None, 5]]
    return {
        "string_view": pa.array(texts, pa.string_view()),
        "binary_view": pa.array([t and t.encode() for t in texts], pa.binary_view()),
        "list_view": pa.array(lists, pa.list_view(pa.int32())),
        "large_list_view": pa.array(lists, pa.large_list_view(pa.int8())),
    }


def _numbers() -> dict[str, pa.Array]:
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    unsigned = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    arrays = {str(t): pa.array([1, -2, None, 4, 5], t) for t in integers}
    arrays |= {str(t): pa.array([1, 2, None, 4, 5], t) for t in unsigned}
    arrays |= {
        str(t): pa.array([1.5, -2.0, None, 4.25, 0.0]).cast(t)
        for t in (pa.float16(), pa.float32(), pa.float64())
    }
    decimals = [decimal.Decimal(n) for n in ("1.25", "-2.50", "0.00", "9.99")]
    arrays |= {
        str(t): pa.array([*decimals, None], t)
        for t in (
            pa.decimal32(5, 2),
            pa.decimal64(10, 2),
            pa.decimal128(20, 2),
            pa.decimal256(60, 2),
        )
    }
    return arrays


def _times() -> dict[str, pa.Array]:
    units = ("s", "ms", "us", "ns")
    types: list[pa.DataType] = [pa.date32(), pa.date64(), pa.month_day_nano_interval()]
    types += [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    zones: list[Any] = [None, "Europe/Zurich"]
    types += [pa.timestamp(unit, zone) for unit in units for zone in zones]
    types += [pa.duration(unit) for unit in units]
    arrays: dict[str, pa.Array] = {}
    for data_type in types:
        if data_type == pa.month_day_nano_interval():
            values = [(1, 2, 3), None, (-1, 0, 9), (0, 0, 0), (5, -5, 1 << 40)]
            arrays[str(data_type)] = pa.array(values, data_type)
        elif data_type == pa.date64():
            day = dt.date(2020, 2, 29)
            arrays[str(data_type)] = pa.array([day, None, day, day, day], data_type)
        else:
            width = pa.int32() if data_type.bit_width == 32 else pa.int64()
            arrays[str(data_type)] = pa.array([0, 1, None, 4, 5], width).cast(data_type)
    return arrays


def _bytes_and_texts() -> dict[str, pa.Array]:
    texts = ["one", None, "", "zwei Wörter", "three" * 20]
    binaries = [text and text.encode() for text in texts]
    return {
        "string": pa.array(texts, pa.string()),
        "large_string": pa.array(texts, pa.large_string()),
        "binary": pa.array(binaries, pa.binary()),
        "large_binary": pa.array(binaries, pa.large_binary()),
        "fixed_size_binary": pa.array([b"abc", None, b"\0\0\0", b"xyz", b"..."], pa.binary(3)),
        "fixed_size_binary of 0": pa.array([b"", None, b"", b"", b""], pa.binary(0)),
    }


def _nested() -> dict[str, pa.Array]:
    structs = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": None}, {}]
    struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
    maps = [[("k", 1)], None, [], [("k", None), ("l", 2)], [("m", 3)]]
    deep: pa.DataType = pa.int8()
    for _ in range(20):
        deep = pa.list_(deep)
    deep_value: Any = 7
    for _ in range(20):
        deep_value = [deep_value]
    return {
        "list": pa.array([[1], None, [], [2, None], [3, 4, 5]], pa.list_(pa.int64())),
        "large_list": pa.array([["a"], None, [], ["b", None], ["c"]], pa.large_list(pa.string())),
        "fixed_size_list": pa.array(
            [[1, 2], None, [3, None], [4, 5], [6, 7]], pa.list_(pa.int8(), 2)
        ),
        "struct": pa.array(structs, struct),
        "struct of nothing": pa.array([{}, None, {}, {}, {}], pa.struct([])),
        "list of struct": pa.array([[structs[0]], None, [], structs, []], pa.list_(struct)),
        "map": pa.array(maps, pa.map_(pa.string(), pa.int32())),
        "20 lists deep": pa.array([deep_value, None, [], [[]], deep_value], deep),
    }


def _run_ends() -> dict[str, pa.Array]:
    return {
        f"run_end_encoded by {t}": pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 3, 5], t), pa.array(["a", None, "c"])
        )
        for t in cast(list[Any], [pa.int16(), pa.int32(), pa.int64()])
    }


def _dictionaries() -> dict[str, pa.Array]:
    texts = pa.array(["x", "yy", "zzz"])
    indices = [0, None, 2, 1, 0]
    arrays = {
        f"dictionary by {t}": _dictionary(texts, indices, t)
        for t in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
        )
    }
    arrays["dictionary with a null value"] = _dictionary(
        pa.array(["x", None]), [0, 1, None, 0, 1], pa.int8()
    )
    arrays["dictionary of struct"] = _dictionary(
        pa.array([{"a": 1}, {"a": None}], pa.struct([("a", pa.int8())])),
        [1, 0, 1, None, 0],
        pa.int8(),
    )
    arrays["dictionary of list of dictionary"] = _nested_dictionary()
    arrays["list of dictionary"] = pa.ListArray.from_arrays(
        pa.array([0, 2, 2, 5], pa.int32()), _dictionary(texts, indices, pa.int8())
    )
    return arrays


def _extensions() -> dict[str, pa.Array]:
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.int32(), 4))
    tensor = pa.fixed_shape_tensor(pa.int32(), [2, 2])
    return {
        "extension": pa.ExtensionArray.from_storage(tensor, storage),
        "extension uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([bytes(range(16)), None], pa.binary(16))
        ),
        "extension json": pa.ExtensionArray.from_storage(
            pa.json_(pa.string()), pa.array(['{"a": 1}', None], pa.string())
        ),
        "extension bool8": pa.ExtensionArray.from_storage(
            pa.bool8(), pa.array([0, 1, None], pa.int8())
        ),
    }


def make_arrays_of_all_types() -> dict[str, pa.Array]:
    """Return an array of each type, with nulls where the type has them."""
    makers: list[Callable[[], dict[str, pa.Array]]] = [
        _numbers,
        _times,
        _bytes_and_texts,
        _views,
        _nested,
        _unions,
        _run_ends,
        _dictionaries,
        _extensions,
    ]
    arrays: dict[str, pa.Array] = {
        "null": pa.nulls(5),
        "bool": pa.array([True, None, False, True, True]),
    }
    for make in makers:
        arrays |= make()
    return arrays


YEAR_1, YEAR_10183 = -719_162, 3_000_000
"""Days since 1970: the first of Python's `datetime`, and one that it lacks."""
TEXTS = [
    "",
    "\0",
    "a\0b",
    " x ",
    "01067",
    "true",
    "null",
    "NaN",
    "2020-02-29",
    'a "b", c',
    "a\r\nb",
    "\ufeffé",
    "\U0001f600" * 5,
    "\\N",
    "#",
    "-",
    "[1]",
    "\t",
]


def _spread(low: int, high: int) -> list[int | None]:
    return [low, None, 0, high, high - 1, *(n for n in (2**53 + 1, -(2**53) - 1) if low < n < high)]


def make_extreme_arrays() -> dict[str, pa.Array]:
    """Return an array of each type that has the first value, the last one, and odd ones."""
    arrow: Any = pa  # its stubs want literals
    arrays: dict[str, pa.Array] = {}

    def add(data_type: Any, values: Any, storage: Any = None) -> None:
        array: Any = pa.array(values, storage or data_type)
        arrays[f"{data_type} with extremes"] = array if storage is None else array.view(data_type)

    for width in (8, 16, 32, 64):
        add(getattr(pa, f"int{width}")(), _spread(-(1 << width - 1), (1 << width - 1) - 1))
        add(getattr(pa, f"uint{width}")(), _spread(0, (1 << width) - 1))
    for data_type in (pa.float16(), pa.float32(), pa.float64()):
        kind: Any = np.dtype(data_type.to_pandas_dtype())
        limits: Any = np.finfo(kind)
        odd = [limits.max, limits.min, limits.tiny, limits.smallest_subnormal, np.inf, -np.inf]
        numbers = np.array([*odd, np.nan, -0.0, 1 / 3, 1, 0], kind)
        add(data_type, pa.array(numbers, mask=np.arange(len(numbers)) == 10))
    decimals = [(pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76)]
    for make, digits in decimals:
        for scale in (0, digits // 2, digits):
            nines = decimal.Decimal((0, (9,) * digits, -scale))
            last = decimal.Decimal((1, (1,), -scale))
            add(make(digits, scale), [nines, nines.copy_negate(), None, last])
    last_day = (1 << 63) // 86_400_000
    add(pa.date32(), [*_spread(-(1 << 31), (1 << 31) - 1), YEAR_1, YEAR_10183], pa.int32())
    days = [-last_day, last_day - 1, None, YEAR_1, YEAR_10183]
    add(pa.date64(), [day and day * 86_400_000 for day in days], pa.int64())
    for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        is_short = unit in ("s", "ms")
        time: Any = (arrow.time32 if is_short else arrow.time64)(unit)
        last = 86_400 * per_second - 1
        add(time, [0, None, last, last // 2], pa.int32() if is_short else pa.int64())
        ends = _spread(-(1 << 63), (1 << 63) - 1)
        add(arrow.duration(unit), ends, pa.int64())
        seconds = (86_400 * YEAR_1, 86_400 * YEAR_10183 + 1) if unit != "ns" else (-1, 1)
        known = [None, *(second * per_second + 1 for second in seconds)]
        for zone in (None, "UTC", "Europe/Zurich", "+05:30"):
            add(arrow.timestamp(unit, zone), known, pa.int64())
            arrays[f"timestamp[{unit}, {zone}] with extremes of its width"] = pa.array(
                ends, pa.int64()
            ).view(arrow.timestamp(unit, zone))
    low, high = -(1 << 31), (1 << 31) - 1
    intervals = [(low, low, -(1 << 63)), None, (high, high, (1 << 63) - 1), (0, 0, 0)]
    add(pa.month_day_nano_interval(), intervals)
    binaries = [*(text.encode() for text in TEXTS), None, bytes(range(256))]
    for data_type in (pa.string(), pa.large_string(), pa.string_view()):
        add(data_type, [*TEXTS, None])
    for data_type in (pa.binary(), pa.large_binary(), pa.binary_view()):
        add(data_type, binaries)
    add(pa.binary(3), [bytes(3), b"\xff" * 3, None, b'"\r\n'])
    return arrays | _make_odd_shapes()


def _make_odd_shapes() -> dict[str, pa.Array]:
    """Return arrays with few values, and with those of `make_extreme_arrays` in other types."""
    arrow: Any = pa
    numbers = pa.array([-(1 << 63), None, (1 << 63) - 1, 2**53 + 1])
    texts = pa.array(["", None, "a\0b", "01067"])
    offsets = pa.array([0, 1, 1, 4, 4], pa.int32())
    return {
        "month_day_nano_interval of milliseconds": pa.array(
            [(1, 2, 3_000_000), None], pa.month_day_nano_interval()
        ),
        "int64 with nulls only": pa.nulls(3, pa.int64()),
        "string with nulls only": pa.nulls(3, pa.string()),
        "int64 with a null at the end": pa.array([1, None], pa.int64()),
        "string with one empty text": pa.array([""]),
        "bool with nulls only": pa.nulls(2, pa.bool_()),
        "list of extremes": pa.ListArray.from_arrays(offsets, numbers),
        "list of text": pa.ListArray.from_arrays(offsets, texts),
        "list of infinities": pa.array([[math.inf, -math.inf], None, [], [math.nan, None, -0.0]]),
        "struct of extremes": arrow.StructArray.from_arrays([numbers, texts], ["n", "a b"]),
        "struct with nulls only": pa.nulls(2, pa.struct([("a", pa.int8())])),
        "map of extremes": arrow.MapArray.from_arrays(
            offsets, pa.array(["", "k", "k\0", "01"]), numbers
        ),
        "dictionary of extremes": _dictionary(numbers, [2, None, 0, 3, 1], pa.int16()),
        "dictionary of texts": _dictionary(texts, [2, None, 0, 3], pa.uint8()),
        "dictionary of views": _dictionary(texts.cast(pa.string_view()), [2, 0], pa.uint32()),
        "dictionary without values": _dictionary(texts.slice(0, 0), [None, None], pa.int8()),
        "run_end_encoded of extremes": arrow.RunEndEncodedArray.from_arrays(
            pa.array([1, 3, 4, 9], pa.int64()), numbers
        ),
    }


def make_interval_type(unit: int) -> pa.DataType:
    """Return the type of intervals of months (0), or of days and milliseconds (1).

    pyarrow has no function for it. So it reads a schema in which the unit was changed.
    """
    schema = pa.schema([("", pa.month_day_nano_interval())])
    data = bytearray(schema.serialize().to_pybytes())
    message: Any = fbs.Message.GetRootAs(data, 8)
    header = fbs.Schema()
    header.Init(message.Header().Bytes, message.Header().Pos)
    first: Any = header.Fields(0)
    table: Any = first.Type()
    place = table.Pos + table.Offset(4)
    data[place : place + 2] = unit.to_bytes(2, "little")
    return pa.ipc.read_schema(pa.py_buffer(bytes(data))).field(0).type


MONTHS, DAYS = make_interval_type(0), make_interval_type(1)


def set_types(batch: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch whose columns have other types of the same layout."""
    fields: list[Any] = [
        field.with_type(cast("Any", types.get(field.name, field.type))) for field in batch.schema
    ]
    schema = pa.schema(fields)

    class Typed:
        def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
            _, array = batch.__arrow_c_array__()
            return schema.__arrow_c_schema__(), array

    return pa.record_batch(Typed())


def _halves(days: int, milliseconds: int) -> int:
    return int.from_bytes(struct.pack("<ii", days, milliseconds), "little", signed=True)


SHORT_INTERVALS: list[tuple[int, int, int] | None] = [
    (14, 0, 0),
    None,
    (-1, 0, 0),
    (2**31 - 1, 0, 0),
    (-(2**31), 0, 0),
]
"""The values of the column ``months`` of `make_short_intervals`."""
SHORT_DAYS: list[tuple[int, int, int] | None] = [
    (0, 3, 4_000_000),
    None,
    (0, -1, 1_000_000),
    (0, 2**31 - 1, (2**31 - 1) * 1_000_000),
    (0, -(2**31), -(2**31) * 1_000_000),
]
"""The values of the column ``days``."""


def make_short_intervals() -> pa.RecordBatch:
    """Return a batch with five rows, a number ``n``, and intervals, alone and in other types."""
    arrow: Any = pa  # its stubs do not accept these types
    months = pa.array([each and each[0] for each in SHORT_INTERVALS], pa.int32())
    days = pa.array(
        [each and _halves(each[1], each[2] // 1_000_000) for each in SHORT_DAYS], pa.int64()
    )
    codes, offsets = pa.array([0, 1, 0, 1, 0], pa.int8()), pa.array([0, 0, 2, 3, 4], pa.int32())
    batch = pa.record_batch(
        {
            "n": pa.array(range(5)),
            "months": months,
            "days": days,
            "list": arrow.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4, 5], pa.int32()), months),
            "views": arrow.ListViewArray.from_arrays(
                pa.array([3, 0, 2, 1, 0], pa.int32()), pa.array([2, 1, 0, 3, 1], pa.int32()), days
            ),
            "fixed": arrow.FixedSizeListArray.from_arrays(pa.concat_arrays([days, days]), 2),
            "struct": arrow.StructArray.from_arrays([months, days], ["m", "d"]),
            "map": arrow.MapArray.from_arrays(range(6), pa.array(list("abcde")), months),
            "dictionary": arrow.DictionaryArray.from_arrays(pa.array([0, 1, None, 2, 0]), months),
            "runs": arrow.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5]), months.slice(0, 3)),
            "sparse": arrow.UnionArray.from_sparse(codes, [months, days]),
            "dense": arrow.UnionArray.from_dense(codes, offsets, [months, days]),
        }
    )
    types: dict[str, Any] = {
        "months": MONTHS,
        "days": DAYS,
        "list": pa.list_(MONTHS),
        "views": pa.list_view(DAYS),
        "fixed": pa.list_(DAYS, 2),
        "struct": pa.struct([("m", MONTHS), ("d", DAYS)]),
        "map": pa.map_(pa.string(), MONTHS),
        "dictionary": arrow.dictionary(pa.int64(), MONTHS),
        "runs": arrow.run_end_encoded(pa.int64(), MONTHS),
        "sparse": pa.sparse_union([pa.field("0", MONTHS), pa.field("1", DAYS)]),
        "dense": pa.dense_union([pa.field("0", MONTHS), pa.field("1", DAYS)]),
    }
    return set_types(batch, types)


def make_batches(array: pa.Array) -> list[pa.RecordBatch]:
    """Return batches of an array: whole, sliced on both sides, empty, all null, whole again."""
    pieces = [array, array.slice(1, len(array) - 1), array.slice(0, 1), array.slice(1, 0)]
    pieces += [pa.nulls(3, array.type), array]
    return [pa.record_batch([piece], names=["c"]) for piece in pieces]


# Drawn batches.

_LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 65535),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=20),
    pa.large_binary(): st.binary(max_size=20),
    pa.string_view(): st.text(max_size=20),
    pa.binary_view(): st.binary(max_size=20),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.timestamp("us", "UTC"): st.integers(-(1 << 50), 1 << 50),
    pa.date32(): st.integers(-10_000, 10_000),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.duration("ns"): st.integers(-(1 << 62), 1 << 62),
    pa.dictionary(pa.int16(), pa.string()): st.text(max_size=3),
    pa.dictionary(pa.int32(), pa.int64()): st.integers(0, 5),
}


def _values(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    if data_type in _LEAVES:
        return st.none() | _LEAVES[data_type]
    if isinstance(data_type, pa.StructType):
        fields = {field.name: _values(field.type) for field in data_type}
        return st.none() | st.fixed_dictionaries(fields)
    if isinstance(data_type, pa.MapType):
        keys, items = st.text(max_size=3), _values(data_type.item_type)
        return st.none() | st.lists(st.tuples(keys, items), max_size=3)
    if isinstance(data_type, pa.FixedSizeListType):
        size = data_type.list_size
        return st.none() | st.lists(_values(data_type.value_type), min_size=size, max_size=size)
    return st.none() | st.lists(_values(data_type.field(0).type), max_size=4)


def _wrap(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(lambda data_type: pa.list_(data_type, 2)),
        inner.map(lambda data_type: pa.map_(pa.string(), data_type)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f{k}", t) for k, t in enumerate(types)])
        ),
    )


data_types = st.recursive(st.sampled_from(list(_LEAVES)), _wrap, max_leaves=4)


def is_valid(batch: pa.RecordBatch) -> bool:
    """Return whether Arrow considers a batch valid. pyarrow can build invalid ones."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@st.composite
def draw_batches(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Draw a schema of some columns and some batches, sliced or not."""
    types = draw(st.lists(data_types, max_size=4))
    schema = pa.schema([(f"c{k}", data_type) for k, data_type in enumerate(types)])
    batches: list[pa.RecordBatch] = []
    for _ in range(draw(st.integers(0, 3))):
        rows = draw(st.integers(0, 8))
        arrays = [
            pa.array(draw(st.lists(_values(t), min_size=rows, max_size=rows)), t) for t in types
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        assume(is_valid(batch))
        start = draw(st.integers(0, batch.num_rows))
        batches.append(batch.slice(start, draw(st.integers(0, batch.num_rows - start))))
    return schema, batches
