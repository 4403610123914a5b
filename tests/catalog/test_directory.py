"""Directories of shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import DatasetError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.directory import DirectoryDataset

from .reading import (
    PLAIN,
    asking,
    numbers,
    serve,
    table_of,
    write_file,
    write_parquet,
    write_stream,
)


def shard(number: int) -> list[pa.RecordBatch]:
    return numbers(2, 50, start=1000 * number)


ALL = [batch for number in range(3) for batch in shard(number)]


def arrow_shards(folder: Path, **options: Any) -> Path:
    for number in (2, 0, 1):
        write_file(folder / f"part-{number}.arrow", shard(number), **options)
    return folder


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_arrow_files_pass_through_in_the_order_of_names(tmp_path: Path, codec: str | None) -> None:
    dataset = open_dataset(arrow_shards(tmp_path, compression=codec))
    assert isinstance(dataset, DirectoryDataset)
    assert (dataset.kind, dataset.rows) == ("arrow directory", 300)
    assert dataset.nbytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    served = serve(dataset)
    assert not served.blocking
    assert served.batches == ALL
    assert served.rows == 300
    assert serve(dataset, compression=codec or "none").blocking is False
    for asked in asking({"compression": "lz4" if codec == "zstd" else "zstd"}, {"batch_rows": 7}):
        anew = serve(dataset, **asked)
        assert anew.blocking
        assert anew.table == table_of(ALL)
    part = serve(dataset, columns=("d", "n"), limit=130)
    assert part.table == table_of(ALL).select(["d", "n"]).slice(0, 130)


def test_dictionaries_of_each_shard(tmp_path: Path) -> None:
    sent: list[pa.RecordBatch] = []
    for number, words in enumerate((["a", "b"], ["c", "d", "e"], ["c", "d", "e"])):
        indices = pa.array([0, 1, 1], pa.int8())
        array = pa.DictionaryArray.from_arrays(indices, pa.array(words))
        sent.append(pa.record_batch({"d": array}))
        write_file(tmp_path / f"{number}.arrow", sent[-1:])
    served = serve(open_dataset(tmp_path))
    assert not served.blocking
    assert [batch.to_pydict() for batch in served.batches] == [b.to_pydict() for b in sent]
    assert serve(open_dataset(tmp_path), compression="lz4").batches == served.batches


def test_folders_within_and_names_left_out(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "_temporary").mkdir()
    (tmp_path / ".hidden").mkdir()
    write_file(tmp_path / "a.arrow", shard(0))
    write_file(tmp_path / "b" / "deep" / "x.arrow", shard(1))
    write_file(tmp_path / "c.arrow", shard(2))
    for left_out in ("_SUCCESS", ".c.arrow.crc", "_temporary/half.arrow", ".hidden/y"):
        (tmp_path / left_out).write_bytes(b"no shard")
    assert serve(open_dataset(tmp_path)).batches == ALL


def test_kinds_that_differ_are_encoded_anew(tmp_path: Path) -> None:
    write_file(tmp_path / "0.arrow", shard(0))
    write_stream(tmp_path / "1.arrows", shard(1))
    assert not serve(open_dataset(tmp_path)).blocking
    assert open_dataset(tmp_path).kind == "mixed directory"
    write_parquet(tmp_path / "2.parquet", table_of(shard(2)))
    served = serve(open_dataset(tmp_path))
    assert served.blocking
    assert served.table == table_of(ALL)
    assert serve(open_dataset(tmp_path), columns=("t",)).table == table_of(ALL).select(["t"])


def test_schemas_that_are_written_differently_are_encoded_anew(tmp_path: Path) -> None:
    write_file(tmp_path / "0.arrow", shard(0))
    write_file(tmp_path / "1.arrow", shard(1), use_legacy_format=True)
    write_file(tmp_path / "2.arrow", shard(2), metadata_version=pa.ipc.MetadataVersion.V4)
    served = serve(open_dataset(tmp_path))
    assert served.table == table_of(ALL)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (pa.table({"n": [1]}), "it lacks the column 't'"),
        (pa.table({"n": [1], "t": ["x"], "m": [1]}), "it has the column 'm' besides"),
        (pa.table({"t": ["x"], "n": [1]}), "its columns stand in another order"),
        (
            pa.table({"n": pa.array([1], pa.int8()), "t": ["x"]}),
            "its column 'n' is int8, not int64",
        ),
        (
            pa.table(
                {"n": [1], "t": ["x"]},
                pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("t", pa.string())]),
            ),
            "its column 'n' is not nullable",
        ),
        (
            pa.table(
                {"n": [1], "t": ["x"]},
                pa.schema(
                    [pa.field("n", pa.int64(), metadata={"k": "v"}), pa.field("t", pa.string())]
                ),
            ),
            "its column 'n' has other custom metadata",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_another_schema_is_refused_by_name(
    tmp_path: Path, kind: str, second: pa.Table, why: str
) -> None:
    first = pa.table({"n": [1, 2], "t": ["x", None]})
    for name, table in (("a", first), ("b", first), ("c", second)):
        if kind == "arrow":
            write_file(tmp_path / name, table.to_batches(), table.schema)
        else:
            write_parquet(tmp_path / name, table)
    with pytest.raises(DatasetError, match=rf"/c differs from .*/a: {why}"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_the_first_schema_gives_the_custom_metadata(tmp_path: Path, kind: str) -> None:
    tables = [pa.table({"n": [number]}, metadata={"rows": str(number)}) for number in range(3)]
    for number, table in enumerate(tables):
        if kind == "arrow":
            write_file(tmp_path / str(number), table.to_batches(), table.schema)
        else:
            write_parquet(tmp_path / str(number), table)
    served = serve(open_dataset(tmp_path))
    assert served.table.to_pydict() == {"n": [0, 1, 2]}
    assert served.schema.metadata == {b"rows": b"0"}


def test_parquet_files(tmp_path: Path) -> None:
    for number in range(3):
        write_parquet(tmp_path / f"{number}.parquet", table_of(shard(number)), row_group_size=30)
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.rows) == ("parquet directory", 300)
    assert serve(dataset).table == table_of(ALL)
    served = serve(dataset, columns=("t", "n"), limit=120, batch_rows=40)
    assert served.table == table_of(ALL).select(["t", "n"]).slice(0, 120)


def hive(root: Path) -> Path:
    for year in ("2020", "2021", "__HIVE_DEFAULT_PARTITION__"):
        for city in ("Bern", "S%C3%A3o Paulo"):
            table = pa.table({"n": [1, 2, 3], "t": [year, city, None]})
            write_parquet(root / f"year={year}" / f"city={city}" / "part.parquet", table)
    return root


def test_partitions_become_columns(tmp_path: Path) -> None:
    dataset = open_dataset(hive(tmp_path))
    fields = [("n", pa.int64()), ("t", pa.string()), ("year", pa.int32()), ("city", pa.string())]
    assert dataset.schema.equals(pa.schema(fields))
    table = serve(dataset).table
    assert table.schema.equals(dataset.schema)
    assert table["year"].to_pylist() == [2020] * 6 + [2021] * 6 + [None] * 6
    assert table["city"].to_pylist() == (["Bern"] * 3 + ["São Paulo"] * 3) * 3
    assert table["n"].to_pylist() == [1, 2, 3] * 6
    for columns in (("year",), ("city", "n", "year"), ("t", "n"), ("city", "year")):
        served = serve(dataset, columns=columns, limit=10)
        assert served.table.equals(table.select(list(columns)).slice(0, 10))


def test_partitions_that_contradict(tmp_path: Path) -> None:
    hive(tmp_path)
    stray = write_parquet(tmp_path / "month=1" / "x.parquet", pa.table({"n": [1], "t": ["x"]}))
    with pytest.raises(DatasetError, match=r"partitions \('year', 'city'\), .* in \('month',\)"):
        open_dataset(tmp_path)
    stray.unlink()
    (tmp_path / "month=1").rmdir()
    both = tmp_path / "both"
    write_parquet(both / "n=1" / "x.parquet", pa.table({"n": [1]}))
    with pytest.raises(DatasetError, match=r"'n' is both a partition of .*both and a column"):
        open_dataset(both)


def test_what_is_no_shard_is_refused_by_name(tmp_path: Path) -> None:
    arrow_shards(tmp_path)
    (tmp_path / "README.txt").write_text("hello there")
    with pytest.raises(DatasetError, match=r"README\.txt begins with b'hello th'; an Arrow IPC"):
        open_dataset(tmp_path)
    (tmp_path / "README.txt").write_text("")
    with pytest.raises(DatasetError, match=r"README\.txt is empty"):
        open_dataset(tmp_path)


def test_empty_and_unreadable_directories(tmp_path: Path) -> None:
    (tmp_path / "_only").mkdir()
    with pytest.raises(DatasetError, match="is a directory without files; an Arrow IPC file"):
        open_dataset(tmp_path)
    arrow_shards(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(DatasetError, match=r"loop is a link to a folder that it lies in"):
        open_dataset(tmp_path)
    (tmp_path / "loop").unlink()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"cannot read .*gone: No such file"):
        open_dataset(tmp_path)


def test_a_new_reader_gets_what_the_directory_then_holds(tmp_path: Path) -> None:
    dataset = open_dataset(arrow_shards(tmp_path))
    write_file(tmp_path / "part-9.arrow", shard(9))
    (tmp_path / "part-1.arrow").unlink()
    assert serve(dataset).batches == [*shard(0), *shard(2), *shard(9)]
    assert dataset.rows == 300
    os.replace(write_file(tmp_path / "_new", shard(7)), tmp_path / "part-0.arrow")
    assert serve(dataset).batches == [*shard(7), *shard(2), *shard(9)]
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(DatasetError, match="without files"):
        serve(dataset)


@pytest.mark.parametrize("asked", [{}, {"columns": ("n",)}])
@pytest.mark.parametrize("how", ["replace", "remove", "cut"])
def test_a_shard_that_changes_while_the_directory_is_read(
    tmp_path: Path, how: str, asked: dict[str, Any]
) -> None:
    dataset = open_dataset(arrow_shards(tmp_path))
    source = dataset.open(Request("name", **asked), PLAIN)
    groups = iter(source)
    next(groups)
    last = tmp_path / "part-2.arrow"
    if how == "replace":
        os.replace(write_file(tmp_path / "_new", shard(7)), last)
    elif how == "remove":
        last.unlink()
    else:
        os.truncate(last, 1000)
    with pytest.raises(DatasetError, match=r"part-2\.arrow"):
        list(groups)
    source.close()


@pytest.mark.parametrize("asked", [{}, {"columns": ("n",)}])
def test_one_shard_is_open_at_a_time(tmp_path: Path, asked: dict[str, Any]) -> None:
    for number in range(10):
        write_file(tmp_path / f"{number}.arrow", numbers(2, 20_000))
    dataset = open_dataset(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    source = dataset.open(Request("name", **asked), PLAIN)
    most = 0
    for _ in source:
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    source.close()
    assert 1 <= most <= 2
    assert len(os.listdir("/proc/self/fd")) == before
    source = dataset.open(Request("name", **asked), PLAIN)
    groups = iter(source)
    next(groups)
    next(groups)
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before
