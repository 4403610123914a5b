"""CSV and JSON Lines keep every value: exactly with the schema, and as text at worst without it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.round_trips import RefusedError, judge, write_sink

SUFFIXES = (".csv", ".jsonl")
UNITS: list[Any] = ["s", "ms", "us", "ns"]
FIXED: list[Any] = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.uuid(), pa.binary(3)),
    *(pa.decimal32(9, 9), pa.decimal64(18, 0), pa.decimal128(38, 10), pa.decimal256(76, 76)),
    *(pa.decimal128(5, -3), pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *map(pa.timestamp, UNITS),
    *(pa.timestamp(unit, tz="Asia/Tokyo") for unit in UNITS),
    *map(pa.duration, UNITS),
]
TEXTS: list[Any] = [pa.string(), pa.large_string(), pa.string_view(), pa.json_()]
BYTES: list[Any] = [pa.binary(), pa.large_binary(), pa.binary_view()]
ODD_TEXTS = ["", "\0", "007", "+1", "NA", "null", "nan", "1e5", "2020-01-01", " x ", 'a"b,c\r\nd']


@st.composite
def draw_arrays(draw: st.DrawFn) -> Any:
    """Draw an array with extreme values, perhaps in a dictionary, in runs or in lists."""
    data_type: Any = draw(st.sampled_from([*FIXED, *TEXTS, *BYTES, pa.bool_(), pa.null()]))
    if data_type in FIXED:
        array = draw(draw_fixed(data_type))
    else:
        values: Any = st.sampled_from(ODD_TEXTS) | st.text(max_size=9)
        if data_type not in TEXTS:
            values = st.binary(max_size=9) if data_type in BYTES else st.booleans()
        values = st.none() if data_type == pa.null() else st.none() | values
        array = pa.array(draw(st.lists(values, max_size=6)), data_type)
    wrap: Any = draw(st.sampled_from(["", "dictionary", "runs", "list", "struct", "slice"]))
    rows = len(array)
    order = pa.array(
        draw(st.lists(st.integers(0, rows - 1), max_size=6)) if rows else [], pa.int8()
    )
    is_extension = isinstance(array.type, pa.BaseExtensionType)
    is_checked = array.type == pa.date64() or pa.types.is_time(array.type)
    if (is_extension or is_checked) and wrap in ("dictionary", "runs"):
        return array  # pyarrow cannot read such a schema, or make such a column
    if wrap == "dictionary":
        return pa.DictionaryArray.from_arrays(order, array)
    if wrap == "runs":
        ends = pa.array(range(2, 2 * rows + 2, 2), pa.int16())
        return pa.RunEndEncodedArray.from_arrays(ends, array)[1:]
    if wrap == "list":
        return pa.ListArray.from_arrays(pa.array([0, rows // 2, None, rows], pa.int32()), array)
    if wrap == "struct":
        fields = [pa.field("x", array.type), pa.field("Ü", pa.int32())]
        children = [array, pa.array(range(rows), pa.int32())]
        mask = pa.array([row % 3 == 1 for row in range(rows)], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    return array[1:] if wrap == "slice" else array


@st.composite
def draw_fixed(draw: st.DrawFn, data_type: Any) -> Any:
    """Draw an array of values with any bits, as far as the type has them."""
    is_decimal = pa.types.is_decimal(data_type)
    storage = data_type.storage_type if isinstance(data_type, pa.UuidType) else data_type
    bits = storage.bit_width
    last = 10**data_type.precision - 1 if is_decimal else (1 << bits - 1) - 1
    first = -last if is_decimal else -last - 1
    extremes = [first, first + 1, -1, 0, 1, min(last, 3_000_000), min(last, 2**53 + 1), last]
    drawn = draw(st.lists(st.sampled_from(extremes) | st.integers(first, last), max_size=6))
    data = b"".join(number.to_bytes(bits // 8, "little", signed=True) for number in drawn)
    valid = pa.array([draw(st.booleans()) for _ in drawn], pa.bool_()).buffers()[1]
    array = pa.Array.from_buffers(storage, len(drawn), [valid, pa.py_buffer(data)])
    return array if storage is data_type else pa.ExtensionArray.from_storage(data_type, array)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(array=draw_arrays(), alone=st.booleans())
def test_extreme_values_return(suffix: str, array: Any, alone: bool) -> None:
    table: Any = pa.table({"c": array} if alone else {"c": array, "d": array})
    table = pa.concat_tables([table, table[2:]])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        try:
            write_sink(path, table)
        except RefusedError as error:
            refusal = str(error)
        else:
            assert judge("c", table, path, others=False) in ("yes", "other type", "as text")
            return
    values = ("has no date", "is not a whole day", "is not a time of a day")
    assert "cannot store the column 'c': " in refusal
    assert "it has the type " in refusal or (
        "in row " in refusal and any(each in refusal for each in values)
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_value_without_text_is_refused_by_column_and_row(tmp_path: Path, suffix: str) -> None:
    times = pa.array([1, 2, 86_400], pa.int32()).view(pa.time32("s"))
    table = pa.table({"n": [1, 2, 3], "t": times})
    with pytest.raises(
        RefusedError, match=r"the column 't': in row 3, the time32\[s\] 86400 is not"
    ):
        write_sink(tmp_path / f"t{suffix}", pa.concat_tables([table[:1], table[1:]]))
