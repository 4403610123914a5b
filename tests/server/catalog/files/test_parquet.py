"""Parquet files are decoded a few rows at a time."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from helpers.catalog import DEFAULTS, number_batches, read_dataset, requests, to_table
from helpers.files import write_parquet
from helpers.sources import encode_filter
from splitarrow.errors import DatasetError, ExhaustedError, NotFoundError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.dataset import Budget, Encoding
from splitarrow.server.catalog.files.file_types import open_file
from splitarrow.server.catalog.files.parquet import BATCH_BYTES, MAX_BATCH_ROWS

TABLE = pa.table(
    {
        "n": pa.array(range(5000), pa.int64()),
        "t": pa.array([None if n % 7 == 0 else f"text {n}" for n in range(5000)]),
        "d": pa.array([f"word {n % 9}" for n in range(5000)]).dictionary_encode(),
        "l": pa.array([[n] * (n % 3) for n in range(5000)], pa.large_list(pa.int16())),
        "s": pa.array([{"a": n, "b": str(n)} for n in range(5000)]),
        "v": pa.array([f"view {n}" for n in range(5000)], pa.string_view()),
        "u": pa.array([b"%016d" % n for n in range(5000)], pa.uuid()),
    },
    metadata={"k": "v"},
)


def test_the_whole_file_equals_what_pyarrow_reads(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", TABLE, row_group_size=999)
    dataset = open_file(path)
    assert (dataset.kind, dataset.rows) == ("parquet file", 5000)
    assert dataset.nbytes == path.stat().st_size
    expected = pq.read_table(path)
    assert dataset.schema.equals(expected.schema, check_metadata=True)
    result = read_dataset(dataset)
    assert result.blocking
    assert result.schema.equals(expected.schema, check_metadata=True)
    assert result.table.equals(expected)
    assert result.rows == 5000


@pytest.mark.parametrize("compression", [None, "none", "lz4", "zstd"])
def test_columns_limits_and_batch_sizes_are_applied(
    tmp_path: Path, compression: str | None
) -> None:
    dataset = open_file(write_parquet(tmp_path / "x.parquet", TABLE, row_group_size=1200))
    for columns in (("s", "n"), ("v",), ("u", "l", "d")):
        fields: dict[str, Any] = {
            "columns": columns,
            "limit": 2345,
            "batch_rows": 100,
            "compression": compression,
        }
        result = read_dataset(dataset, **fields)
        assert result.table.equals(TABLE.select(list(columns)).slice(0, 2345))
        assert all(batch.num_rows <= 100 for batch in result.batches)
    assert read_dataset(dataset, limit=0).rows == 0
    with pytest.raises(NotFoundError, match="no column 'N'; the nearest is 'n'"):
        read_dataset(dataset, columns=("N",))


def test_names_with_dots_are_not_paths(tmp_path: Path) -> None:
    table = pa.table({"s": [{"a": 1, "b": 2}], "s.a": [3], "a": [4]})
    dataset = open_file(write_parquet(tmp_path / "x.parquet", table))
    for columns in (("s.a",), ("s", "s.a"), ("a", "s")):
        assert read_dataset(dataset, columns=columns).table.equals(table.select(list(columns)))


def test_a_file_may_have_no_rows(tmp_path: Path) -> None:
    dataset = open_file(write_parquet(tmp_path / "x.parquet", TABLE.slice(0, 0)))
    result = read_dataset(dataset)
    assert (result.rows, dataset.rows) == (0, 0)
    assert result.schema.equals(pq.read_schema(tmp_path / "x.parquet"), check_metadata=True)


def test_batches_have_about_the_target_size(tmp_path: Path) -> None:
    rows = 400_000
    narrow = pa.table({"n": pa.array(range(rows), pa.int64())})
    result = read_dataset(open_file(write_parquet(tmp_path / "narrow.parquet", narrow)))
    assert max(batch.num_rows for batch in result.batches) == MAX_BATCH_ROWS
    wide = pa.table({f"c{c}": pa.array(range(20_000), pa.float64()) for c in range(100)})
    result = read_dataset(open_file(write_parquet(tmp_path / "wide.parquet", wide)))
    sizes = [batch.nbytes for batch in result.batches]
    assert BATCH_BYTES // 2 < max(sizes) <= BATCH_BYTES + (1 << 20)


def test_a_row_group_is_never_completely_in_memory(tmp_path: Path) -> None:
    rows = 1_000_000
    columns = {f"c{c}": pa.array(range(c, rows + c), pa.int64()) for c in range(8)}
    path = write_parquet(
        tmp_path / "x.parquet", pa.table(columns), row_group_size=rows, use_dictionary=False
    )
    del columns
    group_bytes = pq.read_metadata(path).row_group(0).total_byte_size
    assert group_bytes > 60 << 20
    dataset = open_file(path)
    before = pa.total_allocated_bytes()
    peak = rows_seen = 0
    source = dataset.open(Request("name"), DEFAULTS)
    for group in source:
        rows_seen += sum(message.rows for message in group)
        peak = max(peak, pa.total_allocated_bytes() - before)
    source.close()
    assert rows_seen == rows
    assert peak < 32 << 20


def read_with_limit(path: Path, nbytes: int, **fields: Any) -> int:
    encoding = Encoding(budget=Budget(parquet_bytes=nbytes))
    return read_dataset(open_file(path), encoding, **fields).rows


def test_a_column_that_is_too_large_for_its_row_group_is_refused(tmp_path: Path) -> None:
    keys = pa.array(
        [[("a" * (1 << 20), 1)], [("b" * (1 << 20), 2)]], pa.map_(pa.string(), pa.int8())
    )
    table = pa.table({"n": [1, 2], "m": keys})
    path = write_parquet(tmp_path / "x.parquet", table, compression="brotli")
    assert path.stat().st_size < 10_000
    with pytest.raises(ExhaustedError, match=r"column 'm\.key.*row group 0 of x\.parquet.* 1MiB"):
        read_with_limit(path, 1 << 20)
    assert read_with_limit(path, 1 << 20, columns=("n",)) == 2
    assert read_with_limit(path, 3 << 20) == 2
    smaller = write_parquet(tmp_path / "y.parquet", table, compression="brotli", row_group_size=1)
    assert read_with_limit(smaller, (1 << 20) + 100) == 2


def test_pruned_row_groups_do_not_count(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "t": ["a", "b" * 100_000]})
    path = write_parquet(tmp_path / "x.parquet", table, row_group_size=1)
    row_filter = encode_filter(pc.field("n") == 1, table.schema)
    assert read_with_limit(path, 50_000, filter=row_filter) == 1
    with pytest.raises(ExhaustedError, match="row group 1"):
        read_with_limit(path, 50_000)


def test_large_rows_are_decoded_one_at_a_time(tmp_path: Path) -> None:
    texts = ["a"] * 1000 + [letter * (6 << 20) for letter in "bcd"]
    table = pa.table({"t": texts})
    path = write_parquet(tmp_path / "x.parquet", table, row_group_size=1000, use_dictionary=False)
    result = read_dataset(open_file(path))
    assert result.table.equals(table)
    assert max(batch.nbytes for batch in result.batches) < 7 << 20


def test_rows_after_the_limit_are_not_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", TABLE, row_group_size=1000)
    data = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)
    start = metadata.row_group(3).column(0).data_page_offset
    data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    dataset = open_file(path)
    assert read_dataset(dataset, limit=900, batch_rows=300).rows == 900
    with pytest.raises(DatasetError, match=r"cannot read .*x\.parquet as a Parquet file: "):
        read_dataset(dataset)


def test_truncated_and_encrypted_files_are_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", TABLE)
    whole = path.read_bytes()
    for size in (4, 8, 12, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match=r"x\.parquet") as raised:
            open_file(path)
        assert "\n" not in str(raised.value)
    path.write_bytes(b"PARE" + whole[4:])
    with pytest.raises(DatasetError, match="encrypted"):
        open_file(path)


def test_a_file_that_changes_while_it_is_read_fails_the_stream(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", to_table(number_batches(20, 1000)))
    source = open_file(path).open(Request("name", batch_rows=1000), DEFAULTS)
    groups = iter(source)
    next(groups)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(DatasetError, match="changed while it was read"):
        list(groups)
    source.close()


def test_a_replaced_file_is_inspected_again(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", TABLE)
    dataset = open_file(path)
    other = pa.table({"other": [1, 2]})
    os.replace(write_parquet(tmp_path / "y.parquet", other), path)
    assert read_dataset(dataset).table.equals(other)
    assert (dataset.rows, dataset.schema) == (2, other.schema)


def test_files_of_other_writers_are_served(parquet_test_data: Path) -> None:
    paths = sorted((parquet_test_data / "data" / "geospatial").glob("*.parquet"))
    assert paths
    for path in paths:
        assert read_dataset(open_file(path)).table.equals(pq.read_table(path)), path


def test_int96_timestamps_have_their_whole_range(tmp_path: Path) -> None:
    dates = [datetime(1, 1, 1), datetime(2020, 1, 1, 1, 2, 3, 456789), datetime(9999, 12, 31), None]
    table = pa.table({"n": range(4), "t": pa.array(dates, pa.timestamp("us"))})
    path = write_parquet(tmp_path / "x.parquet", table, use_deprecated_int96_timestamps=True)
    dataset = open_file(path)
    assert dataset.schema.field("t").type == pa.timestamp("us")
    for fields in requests({}, {"limit": 4}, {"columns": ("t",)}):
        assert read_dataset(dataset, **fields).table["t"].to_pylist() == dates
    late = encode_filter(pc.field("t") > datetime(9000, 1, 1), table.schema)
    assert read_dataset(dataset, filter=late).table["n"].to_pylist() == [2]
