"""Parquet files, decoded some rows at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from splitarrow.errors import DatasetError, NotFoundError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.kinds import open_file
from splitarrow.server.catalog.parquet import BATCH_BYTES, MOST_ROWS

from .reading import PLAIN, numbers, serve, table_of, write_parquet

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


def test_all_of_it(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", TABLE, row_group_size=999)
    dataset = open_file(path)
    assert (dataset.kind, dataset.rows) == ("parquet file", 5000)
    assert dataset.nbytes == path.stat().st_size
    want = pq.read_table(path)
    assert dataset.schema.equals(want.schema, check_metadata=True)
    served = serve(dataset)
    assert served.blocking
    assert served.schema.equals(want.schema, check_metadata=True)
    assert served.table.equals(want)
    assert served.rows == 5000


@pytest.mark.parametrize("compression", [None, "none", "lz4", "zstd"])
def test_parts_of_it(tmp_path: Path, compression: str | None) -> None:
    dataset = open_file(write_parquet(tmp_path / "x.parquet", TABLE, row_group_size=1200))
    for columns in (("s", "n"), ("v",), ("u", "l", "d")):
        asked: dict[str, Any] = {
            "columns": columns,
            "limit": 2345,
            "batch_rows": 100,
            "compression": compression,
        }
        served = serve(dataset, **asked)
        assert served.table.equals(TABLE.select(list(columns)).slice(0, 2345))
        assert all(batch.num_rows <= 100 for batch in served.batches)
    assert serve(dataset, limit=0).rows == 0
    with pytest.raises(NotFoundError, match="no column 'N'; the nearest is 'n'"):
        serve(dataset, columns=("N",))


def test_names_with_dots_are_not_paths(tmp_path: Path) -> None:
    table = pa.table({"s": [{"a": 1, "b": 2}], "s.a": [3], "a": [4]})
    dataset = open_file(write_parquet(tmp_path / "x.parquet", table))
    for columns in (("s.a",), ("s", "s.a"), ("a", "s")):
        assert serve(dataset, columns=columns).table.equals(table.select(list(columns)))


def test_no_rows(tmp_path: Path) -> None:
    dataset = open_file(write_parquet(tmp_path / "x.parquet", TABLE.slice(0, 0)))
    served = serve(dataset)
    assert (served.rows, dataset.rows) == (0, 0)
    assert served.schema.equals(pq.read_schema(tmp_path / "x.parquet"), check_metadata=True)


def test_batches_are_neither_large_nor_small(tmp_path: Path) -> None:
    rows = 400_000
    narrow = pa.table({"n": pa.array(range(rows), pa.int64())})
    served = serve(open_file(write_parquet(tmp_path / "narrow.parquet", narrow)))
    assert max(batch.num_rows for batch in served.batches) == MOST_ROWS
    wide = pa.table({f"c{c}": pa.array(range(20_000), pa.float64()) for c in range(100)})
    served = serve(open_file(write_parquet(tmp_path / "wide.parquet", wide)))
    sizes = [batch.nbytes for batch in served.batches]
    assert BATCH_BYTES // 2 < max(sizes) <= BATCH_BYTES + (1 << 20)


def test_a_row_group_is_never_in_memory_whole(tmp_path: Path) -> None:
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
    source = dataset.open(Request("name"), PLAIN)
    for group in source:
        rows_seen += sum(message.rows for message in group)
        peak = max(peak, pa.total_allocated_bytes() - before)
    source.close()
    assert rows_seen == rows
    assert peak < 32 << 20


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", TABLE, row_group_size=1000)
    data = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)
    start = metadata.row_group(3).column(0).data_page_offset
    data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    dataset = open_file(path)
    assert serve(dataset, limit=900, batch_rows=300).rows == 900
    with pytest.raises(DatasetError, match=r"cannot read .*x\.parquet as a Parquet file: "):
        serve(dataset)


def test_bad_files(tmp_path: Path) -> None:
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


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", table_of(numbers(20, 1000)))
    source = open_file(path).open(Request("name", batch_rows=1000), PLAIN)
    groups = iter(source)
    next(groups)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(DatasetError, match="changed while it was read"):
        list(groups)
    source.close()


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", TABLE)
    dataset = open_file(path)
    other = pa.table({"other": [1, 2]})
    os.replace(write_parquet(tmp_path / "y.parquet", other), path)
    assert serve(dataset).table.equals(other)
    assert (dataset.rows, dataset.schema) == (2, other.schema)


def test_files_of_other_writers(parquet_test_data: Path) -> None:
    paths = sorted((parquet_test_data / "data" / "geospatial").glob("*.parquet"))
    assert paths
    for path in paths:
        assert serve(open_file(path)).table.equals(pq.read_table(path)), path
