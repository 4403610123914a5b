"""Row groups are skipped only if their statistics exclude the filter, for each type."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from helpers.catalog import read_dataset
from helpers.parquet_files import edit_schema, field, footer_of, with_footer, write_parquet
from splitarrow.filters import encode_filter
from splitarrow.filters.ranges import UNKNOWN
from splitarrow.formats.parquet.thrift import Type, Value
from splitarrow.server.catalog.files import parquet
from splitarrow.server.catalog.files.file_types import open_file
from splitarrow.server.catalog.files.row_groups import read_range

START = datetime(2026, 1, 1)
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "int8": (pa.int8(), [-5, 0, 5, 100]),
    "uint32": (pa.uint32(), [0, 5, 2**31, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 5, 2**63, 2**64 - 1]),
    "float16": (pa.float16(), [-1.5, 0.0, 0.5, 2.0]),
    "float32": (pa.float32(), [-1.5, 0.0, 0.5, 2.0]),
    "float64": (pa.float64(), [float("-inf"), -0.0, 0.5, 2.0]),
    "decimal": (pa.decimal128(9, 2), [Decimal(n) / 100 for n in (-499, 0, 1, 501)]),
    "wide decimal": (pa.decimal256(50, 2), [Decimal(n) / 100 for n in (-499, 0, 1, 501)]),
    "string": (pa.string(), ["", "a", "é", "\U0001f600"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["", "a", "é", "ü"]),
    "binary": (pa.binary(), [b"", b"a", b"\x7f", b"\xff"]),
    "fixed": (pa.binary(2), [b"\0\0", b"\0\1", b"\x7f\0", b"\xff\0"]),
    "uuid": (pa.uuid(), [UUID(int=n << 60).bytes for n in range(0, 8, 2)]),
    "bool": (pa.bool_(), [False, False, True, True]),
    "date": (pa.date32(), [date(1969, 1, n + 1) for n in range(4)]),
    "timestamp s": (pa.timestamp("s"), [START + timedelta(seconds=n) for n in range(4)]),
    "timestamp ns": (pa.timestamp("ns", "UTC"), [-1, 0, 1, 2]),
    "time": (pa.time32("s"), [time(n) for n in range(4)]),
    "duration": (pa.duration("us"), [timedelta(n) for n in range(-1, 3)]),
}


def write(path: Path, data_type: Any, values: list[Any]) -> pa.Table:
    column = pa.array(values, getattr(data_type, "value_type", data_type))
    table = pa.table({"row": range(len(values)), "v": column.cast(data_type)})
    pq.write_table(table, path, row_group_size=1, store_schema=True)
    return table


@pytest.mark.parametrize("name", VALUES)
def test_only_the_row_groups_in_range_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_type, values = VALUES[name]
    table = write(tmp_path / "x.parquet", data_type, values)
    dataset = open_file(tmp_path / "x.parquet")
    chosen: list[list[int]] = []
    former: Any = getattr(parquet, "select_row_groups")  # noqa: B009

    def record(*arguments: Any) -> list[int]:
        chosen.append(former(*arguments))
        return chosen[-1]

    monkeypatch.setattr(parquet, "select_row_groups", record)
    for index in range(4):
        scalar: Any = table["v"][index]
        equal = [row for row in range(4) if table["v"][row].as_py() == scalar.as_py()]
        for symbol, expected in (
            ("=", equal),
            (">", list(range(equal[-1] + 1, 4))),
            ("<=", list(range(equal[-1] + 1))),
            ("in", equal),
        ):
            value = [scalar] if symbol == "in" else scalar
            text = encode_filter(("v", symbol, value), dataset.schema)
            found = read_dataset(dataset, filter=text)
            assert found.table["row"].to_pylist() == expected
            assert chosen.pop() == expected


def test_nulls_decide_too(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", pa.int64(), [None, 1, None, 2])
    metadata = pq.ParquetFile(tmp_path / "x.parquet")
    ranges = [
        read_range(metadata.metadata.row_group(n).column(1), metadata.schema.column(1), pa.int64())
        for n in range(4)
    ]
    assert [(each.nulls, each.values) for each in ranges] == [(True, False), (False, True)] * 2
    assert [(each.minimum, each.maximum) for each in ranges[1::2]] == [(1, 1), (2, 2)]


def test_a_nan_is_never_skipped(tmp_path: Path) -> None:
    table = pa.table({"row": [0, 1], "v": [float("nan"), 1.0]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    dataset = open_file(tmp_path / "x.parquet")
    for condition, expected in (("v <> 1", [0]), ("NOT v <= 5", [0]), ("v > 5", [])):
        text = encode_filter(condition, dataset.schema)
        assert read_dataset(dataset, filter=text).table["row"].to_pylist() == expected


def test_lists_have_no_range(tmp_path: Path) -> None:
    table = pa.table({"v": [[1], [2, 3]]})
    pq.write_table(table, tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    chunk = file.metadata.row_group(0).column(0)
    assert read_range(chunk, file.schema.column(0), pa.list_(pa.int64())) is UNKNOWN
    assert read_range(chunk, file.schema.column(0), pa.int64()) is UNKNOWN


def test_bounds_of_a_type_without_a_known_order_rule_nothing_out(tmp_path: Path) -> None:
    file = write_parquet(pa.table({"n": [0, 1, 2], "c": [b"bbb", b"mmm", b"zzz"]}))
    later: dict[int, Any] = {99: Value(Type.STRUCT, {})}  # a type of a later version of the format
    file = edit_schema(file, {"c": field(10, Type.STRUCT, later)})
    # In the order of that type, "mmm" may be between these bounds.
    file = with_footer(file, footer_of(file).replace(b"zzz", b"ccc"))
    path = tmp_path / "later.parquet"
    path.write_bytes(file)
    dataset = open_file(path)
    row_filter = encode_filter(pc.field("c") == b"mmm", dataset.schema)
    assert read_dataset(dataset, filter=row_filter).table["n"].to_pylist() == [1]
