"""Delta tables: versions, schema evolution, partitions, and what is refused."""

from __future__ import annotations

import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, convert_to_deltalake, write_deltalake

import splitarrow
from helpers.catalog import read_dataset
from helpers.daemons import StartDaemon
from helpers.files import write_parquet
from helpers.sources import encode_filter
from splitarrow.errors import (
    DatasetError,
    InvalidRequestError,
    MissingExtraError,
    RemoteError,
)
from splitarrow.server.catalog import delta as delta
from splitarrow.server.catalog.catalog import open_dataset

Row = dict[str, Any]


def rows(table: pa.Table) -> list[Row]:
    return sorted(table.to_pylist(), key=lambda row: row["n"])


def write(location: Path | str, numbers: range, **options: Any) -> None:
    table = pa.table({"n": pa.array(numbers, pa.int64()), "t": [f"v{n}" for n in numbers]})
    write_deltalake(location, table, mode="append", **options)


def test_the_newest_version_is_served_and_older_ones_on_request(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    dataset = open_dataset(tmp_path)
    first = dataset.version
    assert (dataset.kind, first.partition("-")[0], dataset.rows) == ("delta table", "0", 3)
    write(tmp_path, range(3, 5))
    DeltaTable(tmp_path).delete("n = 0")
    assert dataset.version.partition("-")[0] == "2"
    assert [row["n"] for row in rows(read_dataset(dataset).table)] == [1, 2, 3, 4]
    for version, count in ((first, 3), ("0", 3), ("1", 5), (dataset.version, 4)):
        assert read_dataset(dataset, version=version).rows == count
        assert read_dataset(open_dataset(f"delta:{tmp_path}"), version=version).rows == count
    for version in ("3", "1-00000000", "x"):
        reason = f"does not have the version {version}; the newest is 2-"
        with pytest.raises(RemoteError, match=reason):
            read_dataset(dataset, version=version)


def test_a_table_without_files_has_one_shard(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    DeltaTable(tmp_path).delete()
    dataset = open_dataset(tmp_path)
    assert read_dataset(dataset, shard=0).rows == 0
    with pytest.raises(InvalidRequestError, match="shard"):
        read_dataset(dataset, shard=1)


def test_versions_of_different_tables_differ(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, range(3))
    assert open_dataset(tmp_path / "a").version != open_dataset(tmp_path / "b").version


def test_partition_columns_keep_their_place_type_and_special_characters(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": [0, 1, 2, 3],
            "place": ["a b", "x/y%z", None, "é=1"],
            "year": pa.array([2025, 2026, None, 2027], pa.int16()),
            "t": ["p", "q", None, "s"],
        }
    )
    write_deltalake(tmp_path, table, partition_by=["place", "year"])
    dataset = open_dataset(tmp_path)
    assert dataset.schema.names == table.schema.names
    assert dataset.schema.types == table.schema.types
    assert rows(read_dataset(dataset).table) == table.to_pylist()
    only = read_dataset(dataset, columns=("year",)).table
    assert only.schema.names == ["year"]
    assert sorted(map(str, only["year"].to_pylist())) == ["2025", "2026", "2027", "None"]
    row_filter = encode_filter((pc.field("year") > 2025) & (pc.field("n") > 1), dataset.schema)
    found = read_dataset(dataset, filter=row_filter, columns=("t", "place")).table
    assert found.to_pylist() == [{"t": "s", "place": "é=1"}]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"\x00\xff", b"ab", b"\\u0041", None], pa.binary()),
        pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()),
        pa.array([True, False, None, True]),
        pa.array([date(1, 1, 1), date(9999, 12, 31), None, date(1970, 1, 1)]),
        pa.array([Decimal("99.99"), Decimal("0.10"), None, Decimal(7)], pa.decimal128(4, 2)),
        pa.array([datetime(1970, 1, 1), datetime(2026, 3, 1, 12, 0, 0, 5), None, None]),
        pa.array([1.5, float("inf"), None, -0.1]),
    ],
    ids=lambda values: str(values.type),
)
def test_partition_values_of_each_type_arrive(tmp_path: Path, values: pa.Array) -> None:
    table = pa.table({"n": [0, 1, 2, 3], "p": values})
    write_deltalake(tmp_path, table, partition_by=["p"])
    found = read_dataset(open_dataset(tmp_path)).table.sort_by("n")
    assert found["p"].to_pylist() == values.to_pylist()


def test_the_files_have_the_order_of_their_folders(tmp_path: Path) -> None:
    # As whole names, "p=a-b/" comes before "p=a/".
    table = pa.table({"n": [0, 1, 2], "p": ["a-b", "a", "b"]})
    write_deltalake(tmp_path, table, partition_by=["p"])
    assert read_dataset(open_dataset(tmp_path)).table["p"].to_pylist() == ["a", "a-b", "b"]


def test_columns_that_were_added_later_are_null_in_older_files(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    later = pa.table({"added": [0.5], "n": [2]})
    write_deltalake(tmp_path, later, mode="append", schema_mode="merge")
    dataset = open_dataset(tmp_path)
    assert rows(read_dataset(dataset).table) == [
        {"n": 0, "t": "v0", "added": None},
        {"n": 1, "t": "v1", "added": None},
        {"n": 2, "t": None, "added": 0.5},
    ]
    row_filter = encode_filter(pc.field("added") == 0.5, dataset.schema)
    assert [row["n"] for row in read_dataset(dataset, filter=row_filter).table.to_pylist()] == [2]
    assert read_dataset(dataset, columns=("added",), version="1").rows == 3
    assert read_dataset(dataset, version="0").schema.names == ["n", "t"]


def test_filters_and_offsets_apply_to_a_table_without_partitions(tmp_path: Path) -> None:
    write(tmp_path, range(1000))
    dataset = open_dataset(tmp_path)
    row_filter = encode_filter(pc.field("n") >= 990, dataset.schema)
    assert read_dataset(dataset, filter=row_filter).rows == 10
    assert read_dataset(dataset, offset=995, limit=3).table["n"].to_pylist() == [995, 996, 997]


def test_a_table_without_files_has_no_rows(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    DeltaTable(tmp_path).delete()
    dataset = open_dataset(tmp_path)
    assert (dataset.rows, len(dataset.shards)) == (0, 1)
    assert read_dataset(dataset, shard=0).table.to_pylist() == []


def test_a_listing_refuses_the_files_of_a_table(tmp_path: Path) -> None:
    table = pa.table({"n": [0, 1, 2, 3], "p": ["a", "a", "b", "b"]})
    cases: dict[str, Any] = {"plain": {}, "parts": {"partition_by": ["p"]}}
    for name, options in cases.items():
        write_deltalake(tmp_path / "lake" / name, table, **options)
        DeltaTable(tmp_path / "lake" / name).delete("n > 0")
        (tmp_path / name).symlink_to(tmp_path / "lake" / name)
        assert open_dataset(tmp_path / name).rows == 1
    for place in ("lake", "lake/pl*", "*/plain/*.parquet", "lake/**/*.parquet", "lake/parts/p=b"):
        location = str(tmp_path / place)
        with pytest.raises(DatasetError, match=r"^\S+/lake/(plain|parts) is a Delta table, and"):
            open_dataset(location, follow_symlinks=True)
    for pattern in ("plain/*.parquet", "parts/*/*.parquet"):
        with pytest.raises(DatasetError, match=r"convert \S+/(plain|parts) itself, or give Spark"):
            open_dataset(str(tmp_path / pattern), follow_symlinks=True)
    file = next((tmp_path / "plain").glob("*.parquet"))
    assert open_dataset(file).rows in (1, 4)  # a file that is named is read as it is
    write_deltalake(tmp_path / "all", table)
    dataset = open_dataset(tmp_path / "all" / "_delta_log" / "..")
    assert dataset.rows == 4


def test_a_folder_that_becomes_a_table_is_not_read_on(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", pa.table({"n": [0, 1]}))
    dataset = open_dataset(tmp_path)
    assert read_dataset(dataset).rows == 2
    convert_to_deltalake(tmp_path)
    DeltaTable(tmp_path).delete("n = 0")
    with pytest.raises(DatasetError, match="is a Delta table, and its files also have rows that"):
        read_dataset(dataset)


def test_a_missing_data_file_is_an_error_and_not_a_shorter_result(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    write(tmp_path, range(3, 6))
    dataset = open_dataset(tmp_path)
    next(tmp_path.glob("*.parquet")).unlink()
    with pytest.raises(DatasetError, match=r"cannot read .*parquet"):
        read_dataset(dataset)


def test_a_broken_log_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(DatasetError, match=r"^cannot read the Delta table ") as caught:
        open_dataset(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_error_names_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, range(3))
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[delta\]'"):
        open_dataset(tmp_path)


def test_a_client_reads_versions_of_a_table(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    write(tmp_path, range(3, 6))
    with (
        splitarrow.serve({"trips": tmp_path}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        info = client.info("trips")
        assert (info.kind, info.rows, len(info.endpoints)) == ("delta table", 6, 2)
        assert info.version.startswith("1-")
        with client.read("trips", version="0") as stream:
            assert stream.read_all()["n"].to_pylist() == [0, 1, 2]
        assert client.count_rows("trips", version="0") == {0: [3]}
        DeltaTable(tmp_path).delete("n < 5")
        with client.read("trips", version=info.version) as stream:
            assert stream.read_all().num_rows == 6
        with client.read("trips") as stream:
            assert stream.read_all()["n"].to_pylist() == [5]


def test_a_version_that_another_process_has_found_is_read_at_once(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_POLL_SECONDS", 3600.0)
    options = {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    write(bucket, range(3), storage_options=options)
    earlier = open_dataset(bucket)
    write(bucket, range(3, 5), storage_options=options)
    version = open_dataset(bucket).version
    assert read_dataset(earlier).rows == 3
    assert read_dataset(earlier, version=version).rows == 5
    with pytest.raises(RemoteError, match="does not have the version 7"):
        read_dataset(earlier, version="7")


def test_a_daemon_serves_a_table_in_an_object_store(daemon: StartDaemon, bucket: str) -> None:
    write(bucket, range(3), storage_options={"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    server = daemon({"trips": bucket}, control="grpc://127.0.0.1:0")
    with splitarrow.connect(server.control_uri) as client:
        assert client.info("trips").kind == "delta table"
        with client.read("trips", filter="n > 0") as stream:
            assert stream.read_all()["t"].to_pylist() == ["v1", "v2"]
    assert server.stop() == 0
