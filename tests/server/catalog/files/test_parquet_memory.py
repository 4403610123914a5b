"""The memory of a row group is that of its pages and values, whatever the footer claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.catalog import read_dataset
from helpers.files import write_parquet
from helpers.parquet_files import footer_of, with_footer
from helpers.parquet_pages import (
    RLE_DICTIONARY,
    Chunk,
    data_page,
    dictionary_page,
    leaf,
    levels,
    write_pages,
)
from splitarrow.errors import ExhaustedError, SplitArrowError
from splitarrow.formats.parquet.schema import Physical, Repetition
from splitarrow.formats.parquet.thrift import CompactReader, Value, encode_struct
from splitarrow.server.catalog.dataset import Budget, Encoding
from splitarrow.server.catalog.decoding_shares import DecodingShares
from splitarrow.server.catalog.files.file_types import open_file
from splitarrow.server.catalog.files.parquet import ParquetDataset
from splitarrow.server.catalog.files.parquet_memory import EXPANDED_BYTES, measure_row_group
from splitarrow.testing import Daemon

MIB = 1 << 20


def read_within(path: Path, nbytes: int, **fields: Any) -> Any:
    """Return what a reader gets if row groups may take `nbytes` of memory."""
    encoding = Encoding(budget=Budget(decoding=DecodingShares(nbytes)))
    return read_dataset(open_file(path), encoding, **fields)


def claim_sizes(file: bytes, nbytes: int) -> bytes:
    """Return a file whose footer claims that each column chunk has a decoded size of `nbytes`."""
    footer = CompactReader(footer_of(file)).read_struct()
    for group in footer[4].content.items:
        for chunk in group[1].content.items:
            metadata = chunk[3].content
            metadata[6] = Value(metadata[6].type, nbytes)
        group[2] = Value(group[2].type, nbytes)
    return with_footer(file, encode_struct(footer))


@pytest.mark.parametrize("size", [1, 1 << 30])
def test_the_footer_may_claim_any_size(tmp_path: Path, size: int) -> None:
    table = pa.table({"m": pa.array([[("a" * 2 * MIB, 1)]] * 2, pa.map_(pa.string(), pa.int8()))})
    path = write_parquet(tmp_path / "x.parquet", table, compression="brotli")
    assert path.stat().st_size < 10_000
    path.write_bytes(claim_sizes(path.read_bytes(), size))
    assert read_within(path, 16 * MIB).rows == 2
    with pytest.raises(ExhaustedError, match="parquet_decoding_bytes"):
        read_within(path, 4 * MIB)


@pytest.mark.parametrize("nested", [False, True])
def test_rows_that_repeat_a_long_value_are_decoded_a_few_at_a_time(
    tmp_path: Path, nested: bool
) -> None:
    texts = ["a" * 400_000, "b" * 300_000, None]
    values = [[text, text] if nested else text for text in texts] * 60
    path = write_parquet(tmp_path / "x.parquet", pa.table({"t": values}))
    result = read_within(path, 256 * MIB)
    assert result.table.column("t").to_pylist() == values
    assert MIB < max(batch.nbytes for batch in result.batches) <= EXPANDED_BYTES + MIB
    with pytest.raises(ExhaustedError):
        read_within(path, 16 * MIB)


def test_values_of_fixed_width_count_with_their_pages(tmp_path: Path) -> None:
    table = pa.table({"n": range(MIB)})
    path = write_parquet(tmp_path / "x.parquet", table, use_dictionary=False)
    assert read_within(path, 4 * MIB).rows == MIB
    with pytest.raises(ExhaustedError, match="parquet_decoding_bytes"):
        read_within(path, 3 * MIB)


def test_short_values_of_a_large_dictionary_do_not_make_batches_small(tmp_path: Path) -> None:
    texts = [f"a text of moderate length with the number {n}" for n in range(100_000)] * 2
    path = write_parquet(
        tmp_path / "x.parquet", pa.table({"t": texts}), dictionary_pagesize_limit=64 * MIB
    )
    whole, bounded = read_dataset(open_file(path)), read_within(path, 256 * MIB)
    assert [len(b) for b in bounded.batches] == [len(b) for b in whole.batches]
    assert bounded.table.equals(whole.table)


def test_runs_of_repeated_values_count_as_often_as_they_occur(tmp_path: Path) -> None:
    count = 100_000_000
    body = levels([0]) + levels([1]) + bytes(8)
    runs = (
        b"".join(
            len(data).to_bytes(4, "little") + data for data in (_run(count, 1), _run(count, 1))
        )
        + b"\x01"
        + _run(count, 0)
    )
    pages = [dictionary_page(1, bytes(8)), data_page(count, runs, RLE_DICTIONARY)]
    assert len(body) < 100
    column = Chunk("n", Physical.INT64, pages, count)
    data = write_pages([leaf("n", Physical.INT64, Repetition.REPEATED)], [column], 1)
    path = tmp_path / "x.parquet"
    path.write_bytes(data)
    assert path.stat().st_size < 1000
    with pytest.raises(ExhaustedError, match="parquet_decoding_bytes"):
        read_within(path, 256 * MIB)


def _run(count: int, value: int) -> bytes:
    out = bytearray()
    header = count << 1
    while header >= 128:
        out.append(header & 127 | 128)
        header >>= 7
    return bytes([*out, header, value])


def test_large_values_that_follow_small_ones_count(tmp_path: Path) -> None:
    texts = ["x"] * 200_000 + ["y" * 10_000 for _ in range(2000)]
    path = write_parquet(
        tmp_path / "x.parquet", pa.table({"t": texts}), use_dictionary=False, compression="zstd"
    )
    with pytest.raises(ExhaustedError):
        read_within(path, 16 * MIB)  # a batch has 20 MB
    assert read_within(path, 40 * MIB).rows == len(texts)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", ["dictionary", "PLAIN", "DELTA_BYTE_ARRAY"])
def test_what_is_read_does_not_depend_on_the_memory(
    tmp_path: Path, version: str, encoding: str
) -> None:
    texts = [None if n % 7 == 0 else f"text {n % 3000}" for n in range(50_000)]
    views: Any = pa.array(texts, pa.string_view())
    table = pa.table(
        {
            "t": texts,
            "v": views,
            "b": pa.array(texts, pa.large_string()),
            "l": [[text] * (n % 3) for n, text in enumerate(texts)],
            "s": [{"a": {"b": text}} for text in texts],
        }
    )
    options: dict[str, Any] = {"use_dictionary": encoding == "dictionary"}
    if encoding != "dictionary":
        options["column_encoding"] = {"t": encoding, "b": encoding}
    path = write_parquet(
        tmp_path / "x.parquet",
        table,
        row_group_size=20_000,
        data_page_version=version,
        data_page_size=20_000,
        **options,
    )
    assert read_within(path, 256 * MIB).table.equals(pq.read_table(path))
    names = ("l", "t")
    assert read_within(path, 256 * MIB, columns=names).table.equals(
        pq.read_table(path).select(names)
    )


def test_small_row_groups_share_batches(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", pa.table({"n": range(9)}), row_group_size=2)
    assert [len(batch) for batch in read_within(path, MIB).batches] == [9]


def test_small_batches_are_decoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "x.parquet", pa.table({"n": range(100)}), row_group_size=7)
    reads: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def record(self: Any, batch_size: int, **options: Any) -> Any:
        reads.append(batch_size)
        return iter_batches(self, batch_size=batch_size, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", record)
    result = read_within(path, MIB, batch_rows=9)
    assert [len(batch) for batch in result.batches] == [9] * 11 + [1]
    assert result.table.equals(pq.read_table(path))
    (rows,) = reads
    assert rows > 1000
    assert rows % 9 == 0


def test_a_file_is_measured_once_for_each_selection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"n": range(9), "m": range(9)})
    path = write_parquet(tmp_path / "x.parquet", table, row_group_size=3)
    measured: list[int] = []

    def record(file: Any, parquet: Any, group: int, *rest: Any) -> tuple[int, int]:
        measured.append(group)
        return measure_row_group(file, parquet, group, *rest)

    monkeypatch.setattr(f"{ParquetDataset.__module__}.measure_row_group", record)
    dataset = open_file(path)
    encoding = Encoding(budget=Budget(decoding=DecodingShares(MIB)))
    for columns, expected in ((None, [0, 1, 2]), (None, []), (("m",), [0, 1, 2]), (None, [])):
        measured.clear()
        assert read_dataset(dataset, encoding, columns=columns).rows == 9
        assert measured == expected
    small = Encoding(budget=Budget(parquet_bytes=1, decoding=DecodingShares(MIB)))
    with pytest.raises(ExhaustedError, match="more parquet_bytes"):
        read_dataset(dataset, small)
    write_parquet(path, table.slice(0, 5), row_group_size=1)
    measured.clear()
    assert read_dataset(dataset, encoding).rows == 5
    assert measured == [0, 1, 2, 3, 4]


def test_a_damaged_page_fails_the_reader_that_gets_to_it(tmp_path: Path) -> None:
    table = pa.table({"n": range(100_000)})
    path = write_parquet(tmp_path / "x.parquet", table, row_group_size=50_000, use_dictionary=False)
    data = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data[start : start + 20] = b"\xff" * 20
    path.write_bytes(data)
    assert read_within(path, 64 * MIB, limit=10).rows == 10
    with pytest.raises(SplitArrowError, match=r"x\.parquet"):
        read_within(path, 64 * MIB)


_READER = """
import sys, splitarrow
with splitarrow.open(sys.argv[1]) as stream:
    print(sum(batch.num_rows for batch in stream))
"""


@pytest.mark.slow
def test_the_memory_of_a_server_is_bounded_for_all_readers(tmp_path: Path) -> None:
    """A file of a few kilobytes has two strings of 128 MiB."""
    array: Any = pa.array([[("a" * (128 * MIB), 1)]], pa.map_(pa.string(), pa.int32()))
    column: Any = pa.chunked_array([array, array])
    table = pa.table({"m": column})
    path = write_parquet(tmp_path / "x.parquet", table, compression="brotli")
    del array, column, table
    assert path.stat().st_size < 10_000
    limit = 768 * MIB
    with Daemon({"x": path}, parquet_decoding_bytes=limit) as daemon:
        uri = daemon.uri("x")
        readers = [
            subprocess.Popen([sys.executable, "-c", _READER, uri], stdout=subprocess.PIPE)
            for _ in range(3)
        ]
        assert [int(reader.communicate()[0]) for reader in readers] == [2, 2, 2]
        status = Path(f"/proc/{daemon.pid}/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    # A batch is still being sent when the next reader gets its share.
    assert peak < limit + 256 * MIB
