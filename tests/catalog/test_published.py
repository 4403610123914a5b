"""Published datasets as datasets: any way of reading gives what was published."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import substrait

from splitarrow.errors import DatasetError, NotFoundError, RemoteError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.base import Encoding
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.object_cache import ObjectCache
from splitarrow.server.catalog.published import PublishedDataset
from splitarrow.server.catalog.versions import VersionStore

from .published import numbers, publish
from .reading import PLAIN, drain, serve


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "cache", 1 << 30)


@pytest.fixture
def store(location: str) -> VersionStore:
    store = VersionStore(location)
    publish(store, "first", numbers(0), numbers(10), numbers(20, 5))
    return store


@pytest.fixture
def dataset(store: VersionStore, cache: ObjectCache) -> PublishedDataset:
    found = open_dataset(store.location, cache)
    assert isinstance(found, PublishedDataset)
    return found


def substrait_filter(expression: Any, schema: pa.Schema) -> str:
    data = substrait.serialize_expressions([expression], ["filter"], schema)
    return base64.urlsafe_b64encode(bytes(data)).decode().rstrip("=")


def test_what_it_tells_of_itself(dataset: PublishedDataset) -> None:
    assert (dataset.kind, dataset.rows) == ("published dataset", 25)
    assert [shard.rows for shard in dataset.shards] == [10, 10, 5]
    assert dataset.nbytes == sum(shard.nbytes or 0 for shard in dataset.shards)
    assert dataset.schema == numbers(0).schema
    assert dataset.version.startswith("1-")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, numbers(0, 25)),
        ({"shard": 1}, numbers(10, 10)),
        ({"columns": ("text",)}, numbers(0, 25).select(["text"])),
        ({"columns": ("text",), "shard": 2}, numbers(20, 5).select(["text"])),
        ({"limit": 12}, numbers(0, 12)),
        ({"offset": 12}, numbers(12, 13)),
        ({"offset": 10, "limit": 11}, numbers(10, 11)),
        ({"offset": 100}, numbers(0, 0)),
        ({"offset": 3, "shard": 1, "limit": 2}, numbers(13, 2)),
        ({"batch_rows": 3}, numbers(0, 25)),
        ({"compression": "zstd"}, numbers(0, 25)),
        ({"compression": "lz4", "shard": 0}, numbers(0, 10)),
    ],
)
def test_any_part_is_served(dataset: PublishedDataset, asked: Any, expected: pa.Table) -> None:
    for encoding in (PLAIN, Encoding(regions=True)):
        assert serve(dataset, encoding, **asked).table == expected


@pytest.mark.parametrize(
    ("expression", "expected", "shards"),
    [
        (pc.field("n") > 60, [], 0),
        (pc.field("n") >= 20, [20, 21, 22, 23, 24], 1),
        ((pc.field("n") == 3) | (pc.field("n") == 24), [3, 24], 2),
        (pc.field("text") == "row 7", [7], 2),
        (pc.field("n").is_null(), [], 0),
    ],
)
def test_shards_without_a_row_that_is_wanted_are_not_opened(
    dataset: PublishedDataset, cache: Any, expression: Any, expected: list[int], shards: int
) -> None:
    text = substrait_filter(expression, dataset.schema)
    found = serve(dataset, filter=text).table
    assert found["n"].to_pylist() == expected
    apart = [serve(dataset, filter=text, shard=index).table for index in range(3)]
    assert pa.concat_tables(apart) == found
    if dataset.store.storage.folder is None:
        downloaded = len(list(cache.folder.iterdir())) if cache.folder.exists() else 0
        assert downloaded <= max(shards, 0)
    assert serve(dataset, filter=text, offset=1).table["n"].to_pylist() == expected[1:]


def test_nulls_do_not_hide_a_shard(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None, 3])})
    publish(VersionStore(tmp_path), "job", table, pa.table({"n": pa.array([5, 6])}))
    dataset = PublishedDataset(tmp_path)
    for expression, expected in (
        (pc.field("n").is_null(), [None]),
        (~(pc.field("n") > 2), [1]),
        (pc.field("n") > 4, [5, 6]),
    ):
        text = substrait_filter(expression, table.schema)
        assert serve(dataset, filter=text).table["n"].to_pylist() == expected


def test_files_are_sent_as_they_lie(tmp_path: Path) -> None:
    publish(VersionStore(tmp_path), "job", numbers(0, 100_000), numbers(100_000, 100_000))
    dataset = PublishedDataset(tmp_path)
    asks: list[dict[str, Any]] = [{}, {"shard": 1}]
    for asked in asks:
        served = serve(dataset, **asked)
        assert not served.blocking
        assert served.regions
    source = dataset.open(Request("name"), Encoding(regions=True))
    assert len(source.placed) == 2
    drain(source)


def test_dictionaries_and_compressed_shards(store: VersionStore, cache: ObjectCache) -> None:
    schema = pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))])
    tables = [pa.table([pa.array(texts).dictionary_encode()], schema=None, names=["d"]).cast(schema)
              for texts in (["a", "b"], ["c", "a"], ["b", "b"])]  # fmt: skip
    codecs: list[Any] = [None, "lz4", "zstd"]
    shards = [
        store.write_shard(
            "job",
            f"{index}.arrow",
            schema,
            table.to_batches(),
            options=pa.ipc.IpcWriteOptions(compression=codecs[index]),
        )
        for index, table in enumerate(tables)
    ]
    store.commit("job", schema, shards, append=False)
    dataset = PublishedDataset(store.location, cache)
    asks: list[dict[str, Any]] = [{}, {"compression": "none"}, {"limit": 5}]
    for asked in asks:
        found = serve(dataset, **asked).table
        assert found["d"].to_pylist() == ["a", "b", "c", "a", "b", "b"][: asked.get("limit")]


def test_a_new_version_is_for_new_readers(store: VersionStore, dataset: PublishedDataset) -> None:
    old = dataset.version
    running = dataset.open(Request("name"), PLAIN)
    begun = [next(iter(running))]
    publish(store, "second", numbers(50))
    dataset.refresh()
    assert dataset.version.startswith("2-")
    assert dataset.rows == 10
    assert serve(dataset).table == numbers(50)
    assert serve(dataset, version=old).table == numbers(0, 25)
    assert serve(dataset, version=old, shard=2).table == numbers(20, 5)
    begun += list(running)
    running.close()
    assert sum(message.rows for group in begun for message in group) == 25


def test_a_new_version_in_a_folder_is_seen_at_once(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "job", numbers(0))
    dataset = PublishedDataset(tmp_path)
    for index in range(5):
        publish(store, f"job-{index}", numbers(index))
        assert serve(dataset).table == numbers(index)


@pytest.mark.parametrize("version", ["1-0000000000000000", "7-00", "x", "-", "9" * 50, "²-1"])
def test_another_version_is_refused(dataset: PublishedDataset, version: str) -> None:
    with pytest.raises(RemoteError, match="has changed: its version is 1-") as caught:
        dataset.open(Request("name", version=version), PLAIN)
    assert caught.value.code == "FAILED_PRECONDITION"


def test_what_is_read_is_not_removed(store: VersionStore, dataset: PublishedDataset) -> None:
    old = dataset.version
    running = dataset.open(Request("name"), PLAIN)
    publish(store, "second", numbers(50))
    dataset.refresh()
    assert dataset.prune(1) == []
    assert sum(m.rows for group in running for m in group) == 25
    running.close()
    assert dataset.prune(1) == [1]
    assert len(store.storage.names("data")) == 1
    with pytest.raises(RemoteError) as caught:
        dataset.open(Request("name", version=old), PLAIN)
    assert caught.value.code == "FAILED_PRECONDITION"
    assert serve(dataset).table == numbers(50)


def test_a_version_that_another_removes_is_followed(
    store: VersionStore, dataset: PublishedDataset
) -> None:
    pinned = dataset.at(Request("name"))
    publish(store, "second", numbers(50))
    assert VersionStore(store.location).prune(1) == [1]
    assert serve(dataset).table == numbers(50)
    with pytest.raises(RemoteError) as caught:
        dataset.open(Request("name", version=pinned.version), PLAIN)
    assert caught.value.code == "FAILED_PRECONDITION"


def test_a_manifest_that_cannot_be_read_is_passed_over(
    store: VersionStore, dataset: PublishedDataset
) -> None:
    store.storage.create("_splitarrow/versions/00000002.json", b"{")
    assert not dataset.refresh()
    assert serve(dataset).table == numbers(0, 25)
    with pytest.raises(DatasetError, match=r"00000002\.json is no manifest"):
        PublishedDataset(store.location)


def test_an_empty_version(location: str, cache: ObjectCache) -> None:
    store = VersionStore(location)
    store.commit("job", numbers(0).schema, [], append=False, shards_total=4)
    dataset = PublishedDataset(location, cache)
    assert serve(dataset).table == numbers(0, 0)
    assert serve(dataset, shard=0, columns=("n",)).table == numbers(0, 0).select(["n"])
    assert list(dataset.shards) == [(0, 0)]
    with pytest.raises(RemoteError, match="there is no shard 1"):
        serve(dataset, shard=1)


def test_wrong_requests_are_told(dataset: PublishedDataset) -> None:
    with pytest.raises(RemoteError, match="there is no shard 3; there are 3"):
        serve(dataset, shard=3)
    with pytest.raises(NotFoundError, match="no column 'm'"):
        serve(dataset, columns=("m",))
    assert dataset.prune(1) == []


def test_what_somebody_was_told_of_is_kept_for_a_while(
    store: VersionStore, dataset: PublishedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = dataset.at(Request("name")).version
    publish(store, "second", numbers(50))
    dataset.refresh()
    assert dataset.prune(1) == []
    assert serve(dataset, version=told).rows == 25
    monkeypatch.setattr("splitarrow.server.catalog.published.TOLD_SECONDS", 0.0)
    assert dataset.prune(1) == [1]


def test_where_nothing_is_published(location: str) -> None:
    with pytest.raises(DatasetError, match="no version of a dataset has been published here"):
        PublishedDataset(location)


def test_a_folder_with_versions_is_a_published_dataset(tmp_path: Path) -> None:
    publish(VersionStore(tmp_path), "job", numbers(0))
    for source in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        assert open_dataset(source).kind == "published dataset"


def test_shards_that_are_not_what_the_manifest_says(store: VersionStore, cache: Any) -> None:
    dataset = PublishedDataset(store.location, cache)
    manifest = store.load()
    assert manifest is not None
    first, second, third = manifest.shards
    other = Path(cache.folder.parent, "other")
    with pa.ipc.new_file(str(other), numbers(0).schema) as writer:
        writer.write_table(numbers(0))
        writer.write_table(numbers(0))
    store.storage.put(first.path, other)
    with pytest.raises(DatasetError, match=rf"{first.path} has \d+ bytes; its manifest says"):
        serve(dataset, shard=0)
    store.storage.delete([second.path])
    with pytest.raises(DatasetError, match=second.path):
        serve(dataset, shard=1)
    other.write_bytes(b"x" * third.nbytes)
    store.storage.put(third.path, other)
    with pytest.raises(DatasetError, match=r"another SHA-256|no Arrow|as an Arrow IPC file"):
        serve(dataset, shard=2)


def test_opening_looks_at_no_shard(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "job", numbers(0))
    shutil.rmtree(tmp_path / "data")
    dataset = PublishedDataset(tmp_path)
    assert (dataset.rows, len(dataset.shards)) == (10, 1)
    with pytest.raises(DatasetError, match="data/job"):
        serve(dataset)


class TestCache:
    def test_a_shard_is_downloaded_once(self, bucket: str, cache: ObjectCache) -> None:
        store = VersionStore(bucket)
        publish(store, "job", numbers(0), numbers(10))
        dataset = PublishedDataset(bucket, cache)
        assert serve(dataset, shard=0).table == numbers(0)
        assert len(list(cache.folder.iterdir())) == 1
        assert serve(dataset).table == numbers(0, 20)
        assert len(list(cache.folder.iterdir())) == 2
        for stored in store.storage.names("data"):
            store.storage.delete([stored.name])
        assert serve(dataset).table == numbers(0, 20)
        assert serve(PublishedDataset(bucket, cache), shard=1).table == numbers(10)

    def test_what_was_used_longest_ago_goes(self, bucket: str, tmp_path: Path) -> None:
        store = VersionStore(bucket)
        made = publish(store, "job", *(numbers(10 * index) for index in range(4)))
        size = made.shards[0].nbytes
        cache = ObjectCache(tmp_path / "cache", 2 * size + size // 2)
        dataset = PublishedDataset(bucket, cache)

        def kept() -> set[int]:
            names = {path.name for path in cache.folder.iterdir()}
            return {shard.ordinal for shard in made.shards if shard.sha256 in names}

        for index in (0, 1, 0, 2):
            serve(dataset, shard=index)
        assert kept() == {0, 2}
        reading = [dataset.open(Request("name", shard=index), PLAIN) for index in (0, 2)]
        serve(dataset, shard=3)
        assert kept() == {0, 2, 3}
        for source in reading:
            assert drain(source).rows == 10
        assert serve(dataset).table == numbers(0, 40)
        assert len(kept()) == 2

    def test_a_shard_larger_than_the_cache(self, bucket: str, tmp_path: Path) -> None:
        publish(VersionStore(bucket), "job", numbers(0))
        dataset = PublishedDataset(bucket, ObjectCache(tmp_path / "cache", 100))
        with pytest.raises(DatasetError, match="the cache of objects keeps 100"):
            serve(dataset)

    def test_a_damaged_file_is_downloaded_again(self, bucket: str, cache: ObjectCache) -> None:
        publish(VersionStore(bucket), "job", numbers(0))
        dataset = PublishedDataset(bucket, cache)
        serve(dataset)
        (path,) = cache.folder.iterdir()
        path.write_bytes(b"cut")
        assert serve(PublishedDataset(bucket, cache)).table == numbers(0)
        assert serve(dataset).table == numbers(0)
