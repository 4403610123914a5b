"""Directories: the files in them are one dataset, in the order of their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.catalog import DEFAULTS, number_batches, read_dataset, requests, to_table
from helpers.files import write_file, write_parquet, write_stream
from splitarrow.errors import DatasetError
from splitarrow.formats.arrow.schema import describe_difference
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.files import directory
from splitarrow.server.catalog.files.arrow import ArrowFileDataset
from splitarrow.server.catalog.files.directory import (
    DirectoryDataset,
    FolderListing,
    Listing,
    PatternListing,
)
from splitarrow.server.catalog.files.origins import FileOrigin


def file_batches(number: int) -> list[pa.RecordBatch]:
    return number_batches(2, 50, start=1000 * number)


ALL = [batch for number in range(3) for batch in file_batches(number)]


def write_files(folder: Path, **options: Any) -> Path:
    for number in (2, 0, 1):
        write_file(folder / f"part-{number}.arrow", file_batches(number), **options)
    return folder


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_arrow_files_pass_through_in_the_order_of_their_names(
    tmp_path: Path, codec: str | None
) -> None:
    dataset = open_dataset(write_files(tmp_path, compression=codec))
    assert isinstance(dataset, DirectoryDataset)
    assert (dataset.kind, dataset.rows) == ("arrow directory", 300)
    assert dataset.nbytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    result = read_dataset(dataset)
    assert not result.blocking
    assert result.batches == ALL
    assert result.rows == 300
    assert read_dataset(dataset, compression=codec or "none").blocking is False
    for fields in requests(
        {"compression": "lz4" if codec == "zstd" else "zstd"}, {"batch_rows": 7}
    ):
        reencoded = read_dataset(dataset, **fields)
        assert reencoded.blocking
        assert reencoded.table == to_table(ALL)
    part = read_dataset(dataset, columns=("d", "n"), limit=130)
    assert part.table == to_table(ALL).select(["d", "n"]).slice(0, 130)


def test_each_file_may_have_its_own_dictionaries(tmp_path: Path) -> None:
    sent: list[pa.RecordBatch] = []
    for number, words in enumerate((["a", "b"], ["c", "d", "e"], ["c", "d", "e"])):
        indices = pa.array([0, 1, 1], pa.int8())
        array = pa.DictionaryArray.from_arrays(indices, pa.array(words))
        sent.append(pa.record_batch({"d": array}))
        write_file(tmp_path / f"{number}.arrow", sent[-1:])
    result = read_dataset(open_dataset(tmp_path))
    assert not result.blocking
    assert [batch.to_pydict() for batch in result.batches] == [b.to_pydict() for b in sent]
    assert read_dataset(open_dataset(tmp_path), compression="lz4").batches == result.batches


def test_subfolders_are_read_and_hidden_names_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "_temporary").mkdir()
    (tmp_path / ".hidden").mkdir()
    write_file(tmp_path / "a.arrow", file_batches(0))
    write_file(tmp_path / "b" / "deep" / "x.arrow", file_batches(1))
    write_file(tmp_path / "c.arrow", file_batches(2))
    for ignored in ("_SUCCESS", ".c.arrow.crc", "_temporary/half.arrow", ".hidden/y"):
        (tmp_path / ignored).write_bytes(b"not a dataset")
    assert read_dataset(open_dataset(tmp_path)).batches == ALL


def test_a_folder_and_its_pattern_have_one_order_folder_by_folder(tmp_path: Path) -> None:
    names = ("a/x.arrow", "a/y/x.arrow", "a-b/x.arrow")  # as whole names, "a-b/" comes before "a/"
    for number, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        write_file(path, file_batches(number))
    assert read_dataset(open_dataset(tmp_path)).batches == ALL
    assert read_dataset(open_dataset(f"{tmp_path}/**/*.arrow")).batches == ALL


@pytest.mark.parametrize(
    "log", ["metadata/v1.metadata.json", ".hoodie/hoodie.properties", "_splitarrow/versions/1.json"]
)
def test_the_files_of_a_table_are_refused(tmp_path: Path, log: str) -> None:
    files = write_files(tmp_path / "lake" / "trips" / "data")
    write_files(tmp_path / "lake" / "others")
    assert open_dataset(files).rows
    (tmp_path / "lake" / "trips" / log).parent.mkdir(parents=True)
    (tmp_path / "lake" / "trips" / log).touch()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    places = (files, files.parents[1], f"{tmp_path}/lake/*", f"{files}/*.arrow", tmp_path / "link")
    for place in places:
        with pytest.raises(DatasetError, match="and its files also have rows that were removed"):
            open_dataset(place)
    assert open_dataset(tmp_path / "lake" / "others").rows
    assert open_dataset(f"{tmp_path}/lake/o*").rows


def test_files_of_different_types_are_reencoded_if_their_schema_messages_differ(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "0.arrow", file_batches(0))
    write_stream(tmp_path / "1.arrows", file_batches(1))
    assert not read_dataset(open_dataset(tmp_path)).blocking
    assert open_dataset(tmp_path).kind == "mixed directory"
    write_parquet(tmp_path / "2.parquet", to_table(file_batches(2)))
    result = read_dataset(open_dataset(tmp_path))
    assert result.blocking
    assert result.table == to_table(ALL)
    assert read_dataset(open_dataset(tmp_path), columns=("t",)).table == to_table(ALL).select(["t"])


def test_equal_schemas_with_different_schema_messages_are_reencoded(tmp_path: Path) -> None:
    write_file(tmp_path / "0.arrow", file_batches(0))
    write_file(tmp_path / "1.arrow", file_batches(1), use_legacy_format=True)
    write_file(tmp_path / "2.arrow", file_batches(2), metadata_version=pa.ipc.MetadataVersion.V4)
    result = read_dataset(open_dataset(tmp_path))
    assert result.table == to_table(ALL)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (pa.table({"n": [1]}), "it lacks the column 't'"),
        (pa.table({"n": [1], "t": ["x"], "m": [1]}), "it has the additional column 'm'"),
        (pa.table({"t": ["x"], "n": [1]}), "its columns are in a different order"),
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
            "its column 'n' has different custom metadata",
        ),
    ],
)
@pytest.mark.parametrize("file_type", ["arrow", "parquet"])
def test_the_error_for_another_schema_names_both_files(
    tmp_path: Path, file_type: str, second: pa.Table, reason: str
) -> None:
    first = pa.table({"n": [1, 2], "t": ["x", None]})
    for name, table in (("a", first), ("b", first), ("c", second)):
        if file_type == "arrow":
            write_file(tmp_path / name, table.to_batches(), table.schema)
        else:
            write_parquet(tmp_path / name, table)
    with pytest.raises(DatasetError, match=rf"/c differs from .*/a: {reason}"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("file_type", ["arrow", "parquet"])
def test_the_first_file_provides_the_custom_metadata(tmp_path: Path, file_type: str) -> None:
    tables = [pa.table({"n": [number]}, metadata={"rows": str(number)}) for number in range(3)]
    for number, table in enumerate(tables):
        if file_type == "arrow":
            write_file(tmp_path / str(number), table.to_batches(), table.schema)
        else:
            write_parquet(tmp_path / str(number), table)
    result = read_dataset(open_dataset(tmp_path))
    assert result.table.to_pydict() == {"n": [0, 1, 2]}
    assert result.schema.metadata == {b"rows": b"0"}


def test_parquet_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in range(3):
        write_parquet(
            tmp_path / f"{number}.parquet", to_table(file_batches(number)), row_group_size=30
        )
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.rows) == ("parquet directory", 300)
    assert read_dataset(dataset).table == to_table(ALL)
    result = read_dataset(dataset, columns=("t", "n"), limit=120, batch_rows=40)
    assert result.table == to_table(ALL).select(["t", "n"]).slice(0, 120)


def write_partitions(root: Path) -> Path:
    for year in ("2020", "2021", "__HIVE_DEFAULT_PARTITION__"):
        for city in ("Bern", "S%C3%A3o Paulo"):
            table = pa.table({"n": [1, 2, 3], "t": [year, city, None]})
            write_parquet(root / f"year={year}" / f"city={city}" / "part.parquet", table)
    return root


def test_partition_keys_become_columns(tmp_path: Path) -> None:
    dataset = open_dataset(write_partitions(tmp_path))
    fields = [("n", pa.int64()), ("t", pa.string()), ("year", pa.int32()), ("city", pa.string())]
    assert dataset.schema.equals(pa.schema(fields))
    table = read_dataset(dataset).table
    assert table.schema.equals(dataset.schema)
    assert table["year"].to_pylist() == [2020] * 6 + [2021] * 6 + [None] * 6
    assert table["city"].to_pylist() == (["Bern"] * 3 + ["São Paulo"] * 3) * 3
    assert table["n"].to_pylist() == [1, 2, 3] * 6
    for columns in (("year",), ("city", "n", "year"), ("t", "n"), ("city", "year")):
        result = read_dataset(dataset, columns=columns, limit=10)
        assert result.table.equals(table.select(list(columns)).slice(0, 10))


@pytest.mark.parametrize(
    ("folders", "as_text", "values"),
    [
        (["month=01", "month=12"], False, [1, 12]),
        (["month=01", "month=12"], True, ["01", "12"]),
        (["zip=007", "zip=7"], False, ["007", "7"]),
        (["zip=007", "zip=__HIVE_DEFAULT_PARTITION__"], False, [7, None]),
    ],
)
def test_partition_values_that_differ_stay_different(
    tmp_path: Path, folders: list[str], as_text: bool, values: list[Any]
) -> None:
    for folder in folders:
        write_parquet(tmp_path / folder / "x.parquet", pa.table({"n": [1]}))
    table = read_dataset(open_dataset(tmp_path, partition_text=as_text)).table
    assert table.column(1).to_pylist() == values


def test_a_server_keeps_partition_values_as_text(tmp_path: Path) -> None:
    write_parquet(tmp_path / "zip=01067" / "x.parquet", pa.table({"n": [1]}))
    with (
        splitarrow.serve({"d": tmp_path}, partition_text=True) as server,
        splitarrow.open(server.uri("d"), filter="zip = '01067'") as stream,
    ):
        assert stream.read_all().to_pydict() == {"n": [1], "zip": ["01067"]}


def test_contradictory_partition_keys_are_refused(tmp_path: Path) -> None:
    write_partitions(tmp_path)
    stray = write_parquet(tmp_path / "month=1" / "x.parquet", pa.table({"n": [1], "t": ["x"]}))
    with pytest.raises(DatasetError, match=r"keys \('year', 'city'\), but .* has \('month',\)"):
        open_dataset(tmp_path)
    stray.unlink()
    (tmp_path / "month=1").rmdir()
    both = tmp_path / "both"
    write_parquet(both / "n=1" / "x.parquet", pa.table({"n": [1]}))
    with pytest.raises(DatasetError, match=r"'n' is both a partition key of .*both and a column"):
        open_dataset(both)


def test_the_error_for_an_unsupported_file_names_it(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "README.txt").write_text("hello there")
    with pytest.raises(
        DatasetError, match=r"README\.txt begins with b'hello th'; expected an Arrow IPC"
    ):
        open_dataset(tmp_path)
    (tmp_path / "README.txt").write_text("")
    with pytest.raises(DatasetError, match=r"README\.txt is empty"):
        open_dataset(tmp_path)


def test_empty_and_unreadable_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "_only").mkdir()
    with pytest.raises(DatasetError, match="is a directory without files; add an Arrow IPC file"):
        open_dataset(tmp_path)
    write_files(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(DatasetError, match=r"loop links to a folder that contains it"):
        open_dataset(tmp_path)
    (tmp_path / "loop").unlink()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"cannot read .*gone: No such file"):
        open_dataset(tmp_path)


def test_a_new_reader_gets_the_current_files(tmp_path: Path) -> None:
    dataset = open_dataset(write_files(tmp_path))
    write_file(tmp_path / "part-9.arrow", file_batches(9))
    (tmp_path / "part-1.arrow").unlink()
    assert read_dataset(dataset).batches == [*file_batches(0), *file_batches(2), *file_batches(9)]
    assert dataset.rows == 300
    os.replace(write_file(tmp_path / "_new", file_batches(7)), tmp_path / "part-0.arrow")
    assert read_dataset(dataset).batches == [*file_batches(7), *file_batches(2), *file_batches(9)]
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(DatasetError, match="without files"):
        read_dataset(dataset)


@pytest.mark.parametrize(("batches", "inspections"), [(20, 0), (300, 2)])
def test_files_with_few_batches_are_inspected_once_and_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, inspections: int
) -> None:
    for name in ("a", "b"):
        write_file(tmp_path / f"{name}.arrow", number_batches(batches, 1))
    dataset = open_dataset(tmp_path)
    calls: list[str] = []

    def count(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            calls.append(name)
            return function(*arguments)

        return counted

    monkeypatch.setattr(ArrowFileDataset, "inspect", count(ArrowFileDataset.inspect, "inspect"))
    monkeypatch.setattr(directory, "describe_difference", count(describe_difference, "compare"))
    assert read_dataset(dataset).rows == 2 * batches
    assert calls == ["inspect"] * inspections
    calls.clear()
    (tmp_path / "b.arrow").touch()
    assert read_dataset(dataset).rows == 2 * batches
    assert calls == ["inspect", "compare", "compare"] + ["inspect"] * inspections


@pytest.mark.parametrize("fields", [{}, {"columns": ("n",)}])
@pytest.mark.parametrize("change", ["replace", "remove", "cut"])
def test_a_file_that_changes_while_the_directory_is_read_fails_the_stream(
    tmp_path: Path, change: str, fields: dict[str, Any]
) -> None:
    dataset = open_dataset(write_files(tmp_path))
    source = dataset.open(Request("name", **fields), DEFAULTS)
    groups = iter(source)
    next(groups)
    last = tmp_path / "part-2.arrow"
    if change == "replace":
        os.replace(write_file(tmp_path / "_new", file_batches(7)), last)
    elif change == "remove":
        last.unlink()
    else:
        os.truncate(last, 1000)
    with pytest.raises(DatasetError, match=r"part-2\.arrow"):
        list(groups)
    source.close()


@pytest.mark.parametrize("fields", [{}, {"columns": ("n",)}])
def test_one_file_is_open_at_a_time(tmp_path: Path, fields: dict[str, Any]) -> None:
    for number in range(10):
        write_file(tmp_path / f"{number}.arrow", number_batches(2, 20_000))
    dataset = open_dataset(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    source = dataset.open(Request("name", **fields), DEFAULTS)
    max_open = 0
    for _ in source:
        max_open = max(max_open, len(os.listdir("/proc/self/fd")) - before)
    source.close()
    assert 1 <= max_open <= 2
    assert len(os.listdir("/proc/self/fd")) == before
    source = dataset.open(Request("name", **fields), DEFAULTS)
    groups = iter(source)
    next(groups)
    next(groups)
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


class CountingListing(FolderListing):
    """A folder that counts how often it is listed."""

    listed = 0

    def list_files(self) -> Sequence[FileOrigin]:
        self.listed += 1
        return super().list_files()


def test_a_description_lists_a_folder_once(tmp_path: Path) -> None:
    listing = CountingListing(write_files(tmp_path))
    dataset = DirectoryDataset(listing)
    before = dataset.version
    listing.listed = 0
    assert dataset.describe_version() == before
    write_file(tmp_path / "part-3.arrow", file_batches(3))
    assert dataset.describe_version() not in (before, "")
    assert dataset.rows == 400
    assert listing.listed == 2


def test_a_listing_keeps_the_files_that_it_knows(tmp_path: Path) -> None:
    listing = FolderListing(write_files(tmp_path))
    before = listing.list_files()
    (tmp_path / "part-1.arrow").unlink()
    write_file(tmp_path / "part-3.arrow", file_batches(3))
    after = listing.list_files()
    assert [each.name for each in after] == ["part-0.arrow", "part-2.arrow", "part-3.arrow"]
    assert [each in before for each in after] == [True, True, False]


@pytest.mark.parametrize("listing", [FolderListing("."), PatternListing("*.arrow")])
def test_files_of_the_current_folder_are_named_after_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: Listing
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = [f"part-{number}.arrow" for number in range(3)]
    files = listing.list_files()
    assert [each.name for each in files] == names
    assert [str(each.path) for each in files] == names
