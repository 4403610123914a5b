"""Objects in object stores, and patterns of files: several files as one dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import orc

from helpers.catalog import DEFAULTS, number_batches, read_dataset, to_table
from helpers.files import write_file, write_parquet, write_stream
from helpers.sources import encode_filter
from helpers.waiting import wait_until
from splitarrow.errors import DatasetError, RemoteError, UsageError
from splitarrow.protocol.request import Request
from splitarrow.publication.storage import ObjectStorage
from splitarrow.server.catalog.catalog import Catalog, open_dataset
from splitarrow.server.catalog.dataset import ServedDataset
from splitarrow.server.catalog.files import directory
from splitarrow.server.catalog.files.directory import DirectoryDataset, ObjectListing
from splitarrow.server.catalog.files.origins import ObjectFile

NUMBERS = to_table(number_batches(3, 40))
Put = Callable[[str, pa.Table], None]


@pytest.fixture(
    params=[
        "file",
        pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.xdist_group("s3_server")]),
    ]
)
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A prefix in a local store of obstore, or in an S3 server."""
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    (tmp_path / "store").mkdir()
    return f"file://{tmp_path}/store"


@pytest.fixture
def put(prefix: str, tmp_path: Path) -> Put:
    """Store a table as an object whose name says its type."""
    storage = ObjectStorage(prefix)

    def put_table(name: str, table: pa.Table) -> None:
        path = tmp_path / "local"
        match name.rpartition(".")[2]:
            case "parquet":
                write_parquet(path, table, row_group_size=40)
            case "arrow":
                write_file(path, table.to_batches(), table.schema)
            case "arrows":
                write_stream(path, table.to_batches(), table.schema)
            case "orc":
                orc.write_table(table, path)
            case "csv":
                path.write_text("n,t\n" + "".join(f"{n},{t}\n" for n, t in _rows(table)))
            case _:
                path.write_text(
                    "".join(f'{{"n": {n}, "t": "{t}"}}\n' for n, t in _rows(table)),
                )
        storage.put(name, path)

    return put_table


def _rows(table: pa.Table) -> list[tuple[Any, Any]]:
    return list(zip(table["n"].to_pylist(), table["t"].to_pylist(), strict=True))


def open_objects(location: str) -> ServedDataset:
    return DirectoryDataset(ObjectListing(location))


def texts(first: int, rows: int = 40) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table({"n": pa.array(numbers, pa.int64()), "t": [f"v{n}" for n in numbers]})


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "arrows", "orc", "csv", "jsonl"])
def test_objects_of_every_type_are_read_in_the_order_of_their_names(
    prefix: str, put: Put, suffix: str
) -> None:
    for number in (2, 0, 1):
        put(f"deep/{number}.{suffix}", texts(100 * number))
    put(f"_skipped.{suffix}", texts(0))
    dataset = open_objects(prefix)
    expected = pa.concat_tables([texts(0), texts(100), texts(200)])
    assert dataset.kind.endswith(" objects")
    assert len(dataset.shards) == 3
    assert dataset.writers is None
    assert read_dataset(dataset).table == expected
    assert read_dataset(dataset, shard=1).table == texts(100)
    wanted = read_dataset(
        dataset,
        columns=("t",),
        filter=encode_filter(pc.field("n") >= 150, texts(0).schema),
        limit=7,
    ).table
    assert wanted == expected.filter(pc.field("n") >= 150).slice(0, 7).select(["t"])
    assert read_dataset(dataset, offset=95).table == expected.slice(95)


@pytest.mark.parametrize("log", ["_delta_log/0.json", "metadata/v1.metadata.json"])
def test_the_objects_of_a_table_are_refused(prefix: str, put: Put, log: str) -> None:
    put("trips/data/p=1/a.parquet", texts(0))
    put("others/a.parquet", texts(0))
    put(f"trips/{log}", texts(0))
    for place in ("", "/*/*", "/trips", "/trips/data", "/trips/data/p=1", "/trips/*/*/*.parquet"):
        with pytest.raises(DatasetError, match=r"/trips is an? [\w ]+ table, and its files also"):
            open_objects(f"{prefix}{place}")
    for place in ("/others", "/o*/*.parquet", "/*/a.parquet", "/trips/data/p=1/a.parquet"):
        assert open_objects(f"{prefix}{place}").rows == 40


def test_a_pattern_selects_objects_and_a_url_may_name_one(prefix: str, put: Put) -> None:
    put("year=2025/a.parquet", texts(0))
    put("year=2026/a.parquet", texts(100))
    put("year=2026/notes.csv", texts(500))
    dataset = open_objects(f"{prefix}/year=*/*.parquet")
    assert read_dataset(dataset).table["year"].to_pylist() == [2025] * 40 + [2026] * 40
    assert read_dataset(open_objects(f"{prefix}/**/n*.csv")).table == texts(500)
    assert read_dataset(open_objects(f"{prefix}/year=2026/notes.csv")).table == texts(500)
    with pytest.raises(DatasetError, match=r"\*\.orc names no objects; add an Arrow IPC file"):
        open_objects(f"{prefix}/*.orc")


def test_the_version_follows_the_objects_and_their_entity_tags(prefix: str, put: Put) -> None:
    put("a.parquet", texts(0))
    dataset = open_objects(prefix)
    first = dataset.version
    put("b.parquet", texts(100))
    wait_until(lambda: dataset.version != first, "the added object")
    second = dataset.version
    put("a.parquet", texts(200))
    wait_until(lambda: dataset.version not in (first, second), "the replaced object")
    assert read_dataset(dataset).table == pa.concat_tables([texts(200), texts(100)])
    ObjectStorage(prefix).delete(["b.parquet"])
    wait_until(lambda: len(dataset.shards) == 1 or not dataset.version, "the removed object")
    assert read_dataset(dataset).table == texts(200)
    with pytest.raises(RemoteError, match="has changed"):
        read_dataset(dataset, version=first)


def test_a_version_that_another_process_has_found_is_read_at_once(
    prefix: str, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_LISTING_SECONDS", 3600.0)
    put("a.parquet", texts(0))
    earlier = open_objects(prefix)
    assert read_dataset(earlier).table == texts(0)
    put("b.parquet", texts(100))
    version = open_objects(prefix).version
    assert read_dataset(earlier).table == texts(0)
    expected = pa.concat_tables([texts(0), texts(100)])
    assert read_dataset(earlier, version=version).table == expected
    put("c.parquet", texts(200))
    request = Request("name", version=open_objects(prefix).version)
    assert sum(earlier.count_rows(request, DEFAULTS)) == 120


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_read_fails_if_its_object_is_replaced_meanwhile(
    prefix: str, put: Put, suffix: str
) -> None:
    large = pa.table({"n": range(40 * 8), "t": [os.urandom(40_000).hex() for _ in range(40 * 8)]})
    batches = [large.slice(40 * k, 40).combine_chunks() for k in range(8)]
    put(f"a.{suffix}", pa.concat_tables(batches))
    dataset = open_objects(prefix)
    source = dataset.open(Request("large"), DEFAULTS)
    assert next(iter(source))
    assert next(iter(source))
    put(f"a.{suffix}", pa.concat_tables(batches[::-1]))
    with pytest.raises(DatasetError, match=rf"a\.{suffix} was replaced or deleted"):
        list(source)
    source.close()


def test_reads_of_an_object_are_exact(prefix: str, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "content").write_bytes(content)
    storage = ObjectStorage(prefix)
    storage.put("x", tmp_path / "content")
    (entry,) = storage.list_objects("")
    file = ObjectFile(storage, entry)
    for offset, nbytes in (
        (0, 8),
        (8, 90_000),
        (70_000, 100_000),
        (299_990, 10),
        (5, 0),
        (0, 300_000),
    ):
        assert file.read(offset, nbytes) == content[offset : offset + nbytes]
    with pytest.raises(DatasetError, match="ends at byte 300000"):
        file.read(299_999, 2)
    storage.delete(["x"])
    with pytest.raises(DatasetError, match="was replaced or deleted"):
        ObjectFile(storage, entry).read(0, 8)


def test_a_url_of_a_store_may_name_objects_or_a_published_dataset(
    bucket: str, tmp_path: Path
) -> None:
    write_parquet(tmp_path / "a", NUMBERS)
    ObjectStorage(bucket).put("a.parquet", tmp_path / "a")
    with Catalog({"all": bucket, "some": f"{bucket}/*.parquet"}) as catalog:
        assert {dataset.kind for dataset in catalog.datasets()} == {"parquet objects"}
        assert read_dataset(catalog.lookup("some")).table == NUMBERS


def test_a_store_without_credentials_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with pytest.raises(UsageError, match="no credentials in the environment; set AWS_ACCESS") as e:
        open_dataset("s3://lake/trips/*.parquet")
    assert "\n" not in str(e.value)


def test_a_pattern_selects_local_files_and_folders(tmp_path: Path) -> None:
    for year in (2025, 2026):
        write_parquet(tmp_path / f"year={year}" / "a.parquet", texts(year))
        write_parquet(tmp_path / f"year={year}" / "_b.parquet", texts(0))
    (tmp_path / "year=2026" / "notes.txt").write_text("not a dataset")
    dataset = open_dataset(f"{tmp_path}/year=*/*.parquet")
    assert (dataset.kind, len(dataset.shards)) == ("parquet files", 2)
    assert read_dataset(dataset).table["year"].to_pylist() == [2025] * 40 + [2026] * 40
    assert read_dataset(open_dataset(f"{tmp_path}/*5")).table.drop(["year"]) == texts(2025)
    before = dataset.version
    write_parquet(tmp_path / "year=2027" / "a.parquet", texts(2027))
    assert dataset.version != before
    assert len(dataset.shards) == 3
    with pytest.raises(DatasetError, match=r"\*\.orc matches no file"):
        open_dataset(f"{tmp_path}/*.orc")


def test_a_name_with_wildcards_that_exists_is_no_pattern(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a[1].parquet", texts(1))
    write_parquet(tmp_path / "a1.parquet", texts(2))
    assert read_dataset(open_dataset(tmp_path / "a[1].parquet")).table == texts(1)


def test_a_file_url_names_a_local_file_or_folder(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", texts(1))
    for url in (f"file://{tmp_path}", f"file://{tmp_path}/a.parquet"):
        assert read_dataset(open_dataset(url)).table == texts(1)
