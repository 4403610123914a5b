"""Published datasets: every part of every version can be read until the version is pruned."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import substrait

from helpers.catalog import DEFAULTS, read_dataset, read_source
from helpers.publication import numbers, publish
from helpers.storage import running_s3_server, set_up_bucket
from splitarrow.errors import DatasetError, NotFoundError, RemoteError
from splitarrow.protocol.request import Request
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.catalog.object_cache import ObjectCache
from splitarrow.server.catalog.published import PublishedDataset


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
    dataset = open_dataset(store.location, cache)
    assert isinstance(dataset, PublishedDataset)
    return dataset


def encode_filter(expression: Any, schema: pa.Schema) -> str:
    data = substrait.serialize_expressions([expression], ["filter"], schema)
    return base64.urlsafe_b64encode(bytes(data)).decode().rstrip("=")


def test_a_published_dataset_describes_its_current_version(dataset: PublishedDataset) -> None:
    assert (dataset.kind, dataset.rows) == ("published dataset", 25)
    assert [shard.rows for shard in dataset.shards] == [10, 10, 5]
    assert dataset.nbytes == sum(shard.nbytes or 0 for shard in dataset.shards)
    assert dataset.schema == numbers(0).schema
    assert dataset.version.startswith("1-")


@pytest.mark.parametrize(
    ("fields", "expected"),
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
def test_every_part_of_a_version_can_be_read(
    dataset: PublishedDataset, fields: Any, expected: pa.Table
) -> None:
    for encoding in (DEFAULTS, Encoding(regions=True)):
        assert read_dataset(dataset, encoding, **fields).table == expected


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
def test_shards_that_cannot_match_a_filter_are_not_opened(
    dataset: PublishedDataset, cache: Any, expression: Any, expected: list[int], shards: int
) -> None:
    text = encode_filter(expression, dataset.schema)
    table = read_dataset(dataset, filter=text).table
    assert table["n"].to_pylist() == expected
    by_shard = [read_dataset(dataset, filter=text, shard=index).table for index in range(3)]
    assert pa.concat_tables(by_shard) == table
    if dataset.store.storage.folder is None:
        downloaded = len(list(cache.folder.iterdir())) if cache.folder.exists() else 0
        assert downloaded <= shards
    assert read_dataset(dataset, filter=text, offset=1).table["n"].to_pylist() == expected[1:]


def test_shards_with_nulls_are_not_pruned_wrongly(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None, 3])})
    publish(VersionStore(tmp_path), "job", table, pa.table({"n": pa.array([5, 6])}))
    dataset = PublishedDataset(tmp_path)
    for expression, expected in (
        (pc.field("n").is_null(), [None]),
        (~(pc.field("n") > 2), [1]),
        (pc.field("n") > 4, [5, 6]),
    ):
        text = encode_filter(expression, table.schema)
        assert read_dataset(dataset, filter=text).table["n"].to_pylist() == expected


def test_shards_pass_through_unchanged(tmp_path: Path) -> None:
    publish(VersionStore(tmp_path), "job", numbers(0, 100_000), numbers(100_000, 100_000))
    dataset = PublishedDataset(tmp_path)
    requests: list[dict[str, Any]] = [{}, {"shard": 1}]
    for fields in requests:
        result = read_dataset(dataset, **fields)
        assert not result.blocking
        assert result.regions
    source = dataset.open(Request("name"), Encoding(regions=True))
    assert len(source.region_files) == 2
    read_source(source)


def test_shards_may_differ_in_dictionaries_and_compression(
    store: VersionStore, cache: ObjectCache
) -> None:
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
    requests: list[dict[str, Any]] = [{}, {"compression": "none"}, {"limit": 5}]
    for fields in requests:
        table = read_dataset(dataset, **fields).table
        assert table["d"].to_pylist() == ["a", "b", "c", "a", "b", "b"][: fields.get("limit")]


def test_a_new_version_is_for_new_readers_only(
    store: VersionStore, dataset: PublishedDataset
) -> None:
    old = dataset.version
    running = dataset.open(Request("name"), DEFAULTS)
    groups = [next(iter(running))]
    publish(store, "second", numbers(50))
    dataset.refresh()
    assert dataset.version.startswith("2-")
    assert dataset.rows == 10
    assert read_dataset(dataset).table == numbers(50)
    assert read_dataset(dataset, version=old).table == numbers(0, 25)
    assert read_dataset(dataset, version=old, shard=2).table == numbers(20, 5)
    number = old.partition("-")[0]  # names the version as well
    assert read_dataset(dataset, version=number).table == numbers(0, 25)
    groups += list(running)
    running.close()
    assert sum(message.rows for group in groups for message in group) == 25


def test_a_new_version_in_a_folder_is_served_at_once(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "job", numbers(0))
    dataset = PublishedDataset(tmp_path)
    for index in range(5):
        publish(store, f"job-{index}", numbers(index))
        assert read_dataset(dataset).table == numbers(index)


@pytest.mark.parametrize("version", ["1-0000000000000000", "7-00", "x", "-", "9" * 50, "²-1"])
def test_a_version_that_does_not_exist_is_refused(dataset: PublishedDataset, version: str) -> None:
    with pytest.raises(RemoteError, match=r"never had the version .*: its version is 1-") as caught:
        dataset.open(Request("name", version=version), DEFAULTS)
    assert caught.value.code == "FAILED_PRECONDITION"


def test_a_version_is_not_pruned_while_it_is_read(
    store: VersionStore, dataset: PublishedDataset
) -> None:
    old = dataset.version
    running = dataset.open(Request("name"), DEFAULTS)
    publish(store, "second", numbers(50))
    dataset.refresh()
    assert dataset.prune(1) == []
    assert sum(m.rows for group in running for m in group) == 25
    running.close()
    assert dataset.prune(1) == [1]
    assert len(store.storage.list_objects("data")) == 1
    with pytest.raises(RemoteError) as caught:
        dataset.open(Request("name", version=old), DEFAULTS)
    assert caught.value.code == "FAILED_PRECONDITION"
    assert read_dataset(dataset).table == numbers(50)


def test_a_version_pruned_by_another_process_is_noticed(
    store: VersionStore, dataset: PublishedDataset
) -> None:
    version = dataset.resolve_version(Request("name")).version
    publish(store, "second", numbers(50))
    assert VersionStore(store.location).prune(1) == [1]
    assert read_dataset(dataset).table == numbers(50)
    with pytest.raises(RemoteError) as caught:
        dataset.open(Request("name", version=version), DEFAULTS)
    assert caught.value.code == "FAILED_PRECONDITION"


def test_a_malformed_manifest_leaves_the_current_version_in_place(
    store: VersionStore, dataset: PublishedDataset
) -> None:
    store.storage.create("_splitarrow/versions/00000002.json", b"{")
    assert not dataset.refresh()
    assert read_dataset(dataset).table == numbers(0, 25)
    with pytest.raises(DatasetError, match=r"00000002\.json is not a valid manifest"):
        PublishedDataset(store.location)


def test_a_version_whose_manifest_could_not_be_read_is_served_later(
    store: VersionStore, dataset: PublishedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, "second", numbers(50))
    with monkeypatch.context() as patch:
        patch.setattr(dataset.store.storage, "read", Mock(side_effect=DatasetError("broken")))
        with pytest.raises(DatasetError, match="broken"):
            dataset.refresh()
    assert dataset.refresh()
    assert read_dataset(dataset).table == numbers(50)


def test_a_version_may_have_no_shard(location: str, cache: ObjectCache) -> None:
    store = VersionStore(location)
    store.commit("job", numbers(0).schema, [], append=False, shards_total=4)
    dataset = PublishedDataset(location, cache)
    assert read_dataset(dataset).table == numbers(0, 0)
    assert read_dataset(dataset, shard=0, columns=("n",)).table == numbers(0, 0).select(["n"])
    assert list(dataset.shards) == [(0, 0)]
    with pytest.raises(RemoteError, match="there is no shard 1"):
        read_dataset(dataset, shard=1)


def test_requests_that_do_not_fit_are_refused(dataset: PublishedDataset) -> None:
    with pytest.raises(RemoteError, match="there is no shard 3; the dataset has 3"):
        read_dataset(dataset, shard=3)
    with pytest.raises(NotFoundError, match="no column 'm'"):
        read_dataset(dataset, columns=("m",))
    assert dataset.prune(1) == []


def test_an_advertised_version_is_kept_for_a_grace_period(
    store: VersionStore, dataset: PublishedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    advertised = dataset.resolve_version(Request("name")).version
    publish(store, "second", numbers(50))
    dataset.refresh()
    assert dataset.prune(1) == []
    assert read_dataset(dataset, version=advertised).rows == 25
    monkeypatch.setattr("splitarrow.server.catalog.published.GRACE_SECONDS", 0.0)
    assert dataset.prune(1) == [1]


def test_a_location_without_versions_is_refused(location: str) -> None:
    with pytest.raises(DatasetError, match="no version of a dataset has been published here"):
        PublishedDataset(location)


def test_a_folder_with_versions_is_a_published_dataset(tmp_path: Path) -> None:
    publish(VersionStore(tmp_path), "job", numbers(0))
    for source in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        assert open_dataset(source).kind == "published dataset"


def test_shards_that_contradict_their_manifest_are_refused(store: VersionStore, cache: Any) -> None:
    dataset = PublishedDataset(store.location, cache)
    manifest = store.load()
    assert manifest is not None
    first, second, third = manifest.shards
    other = Path(cache.folder.parent, "other")
    with pa.ipc.new_file(str(other), numbers(0).schema) as writer:
        writer.write_table(numbers(0))
        writer.write_table(numbers(0))
    store.storage.put(first.path, other)
    with pytest.raises(DatasetError, match=rf"{first.path} has \d+ bytes, but its manifest lists"):
        read_dataset(dataset, shard=0)
    store.storage.delete([second.path])
    with pytest.raises(DatasetError, match=second.path):
        read_dataset(dataset, shard=1)
    other.write_bytes(b"x" * third.nbytes)
    store.storage.put(third.path, other)
    with pytest.raises(DatasetError, match=r"does not have the SHA-256|as an Arrow IPC file"):
        read_dataset(dataset, shard=2)


def test_a_downloaded_shard_has_the_sha256_of_its_manifest(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "d")
    (shard,) = publish(store, "job", numbers(0)).shards
    path, cache = tmp_path / "d" / shard.path, ObjectCache(tmp_path / "cache", 1 << 20)
    path.write_bytes(path.read_bytes().replace(b"row 7", b"row 8"))
    with (
        pytest.raises(DatasetError, match="does not have the SHA-256 in its manifest"),
        cache.open_shard(store.storage, shard),
    ):
        pytest.fail("the cache returned a shard with other contents")
    assert list(cache.folder.iterdir()) == []


def test_opening_a_published_dataset_reads_no_shard(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "job", numbers(0))
    shutil.rmtree(tmp_path / "data")
    dataset = PublishedDataset(tmp_path)
    assert (dataset.rows, len(dataset.shards)) == (10, 1)
    with pytest.raises(DatasetError, match="data/job"):
        read_dataset(dataset)


class TestCache:
    def test_a_shard_is_downloaded_once(self, bucket: str, cache: ObjectCache) -> None:
        store = VersionStore(bucket)
        publish(store, "job", numbers(0), numbers(10))
        dataset = PublishedDataset(bucket, cache)
        assert read_dataset(dataset, shard=0).table == numbers(0)
        assert len(list(cache.folder.iterdir())) == 1
        assert read_dataset(dataset).table == numbers(0, 20)
        assert len(list(cache.folder.iterdir())) == 2
        for entry in store.storage.list_objects("data"):
            store.storage.delete([entry.name])
        assert read_dataset(dataset).table == numbers(0, 20)
        assert read_dataset(PublishedDataset(bucket, cache), shard=1).table == numbers(10)

    @pytest.mark.slow
    def test_a_cached_shard_is_read_while_the_store_is_down(
        self, cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running_s3_server() as endpoint:
            bucket = set_up_bucket(endpoint, monkeypatch)
            publish(VersionStore(bucket), "job", numbers(0), numbers(10))
            dataset = PublishedDataset(bucket, cache)
            assert read_dataset(dataset, shard=0).table == numbers(0)
        assert read_dataset(dataset, shard=0).table == numbers(0)
        with pytest.raises(DatasetError, match=bucket):
            read_dataset(dataset, shard=1)

    def test_the_least_recently_used_file_is_evicted(self, bucket: str, tmp_path: Path) -> None:
        store = VersionStore(bucket)
        manifest = publish(store, "job", *(numbers(10 * index) for index in range(4)))
        size = manifest.shards[0].nbytes
        cache = ObjectCache(tmp_path / "cache", 2 * size + size // 2)
        dataset = PublishedDataset(bucket, cache)

        def cached() -> set[int]:
            names = {path.name for path in cache.folder.iterdir()}
            return {shard.ordinal for shard in manifest.shards if shard.sha256 in names}

        for index in (0, 1, 0, 2):
            read_dataset(dataset, shard=index)
        assert cached() == {0, 2}
        reading = [dataset.open(Request("name", shard=index), DEFAULTS) for index in (0, 2)]
        read_dataset(dataset, shard=3)
        assert cached() == {0, 2, 3}
        for source in reading:
            assert read_source(source).rows == 10
        assert read_dataset(dataset).table == numbers(0, 40)
        assert len(cached()) == 2

    def test_a_shard_larger_than_the_cache_is_refused(self, bucket: str, tmp_path: Path) -> None:
        publish(VersionStore(bucket), "job", numbers(0))
        dataset = PublishedDataset(bucket, ObjectCache(tmp_path / "cache", 100))
        with pytest.raises(DatasetError, match="the object cache holds at most 100"):
            read_dataset(dataset)

    def test_a_damaged_file_is_downloaded_again(self, bucket: str, cache: ObjectCache) -> None:
        publish(VersionStore(bucket), "job", numbers(0))
        dataset = PublishedDataset(bucket, cache)
        read_dataset(dataset)
        (path,) = cache.folder.iterdir()
        path.write_bytes(b"cut")
        assert read_dataset(PublishedDataset(bucket, cache)).table == numbers(0)
        assert read_dataset(dataset).table == numbers(0)
