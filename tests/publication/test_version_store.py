"""Versions: each has one writer, each job commits one, and incomplete work is invisible."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.publication import numbers, publish, read_version, stage
from splitarrow.errors import DatasetError, InvalidDataError, MissingExtraError, UsageError
from splitarrow.publication.layout import format_manifest_name
from splitarrow.publication.manifest import ColumnRange, Manifest, encode_manifest
from splitarrow.publication.version_store import VersionStore


def list_files(store: VersionStore, folder: str = "data") -> list[str]:
    return [entry.name for entry in store.storage.list_objects(folder)]


def test_a_version_has_the_shards_of_its_job(location: str) -> None:
    store = VersionStore(location)
    assert store.list_versions() == []
    assert store.load() is None
    shards = stage(store, "job-1", [numbers(0), numbers(10)])
    assert store.list_versions() == []
    assert list_files(store) == []
    committed = store.commit(
        "job-1", numbers(0).schema, shards, append=False, properties={"by": "me"}
    )
    assert store.list_versions() == [1]
    again = VersionStore(location).load()
    assert again == committed
    assert (committed.version, committed.shards_total) == (1, 2)
    assert committed.job == committed.snapshot == "job-1"
    assert (committed.rows, committed.properties) == (20, {"by": "me"})
    assert committed.shards[1].columns["n"] == ColumnRange(10, 19, 0)
    assert read_version(store, committed) == pa.concat_tables([numbers(0), numbers(10)])
    assert list_files(store, "_splitarrow/staging") == []
    assert committed.nbytes == sum(entry.nbytes for entry in store.storage.list_objects("data"))


def test_a_version_appends_to_the_current_one_or_replaces_it(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0), numbers(10), append=True)
    second = publish(store, "b", numbers(20), append=True, snapshot="s", shards_total=3)
    assert [shard.ordinal for shard in second.shards] == [0, 1, 2]
    assert (second.shards_total, second.snapshot) == (5, "s")
    third = publish(store, "c", numbers(30), append=True)
    assert [shard.ordinal for shard in third.shards] == [0, 1, 2, 5]
    fourth = publish(store, "d", numbers(40))
    assert store.list_versions() == [1, 2, 3, 4]
    assert read_version(store, store.load(2)) == numbers(0, 30)
    assert read_version(store, store.load(3)) == numbers(0, 40)
    assert read_version(store, store.load()) == read_version(store, fourth) == numbers(40)


def test_a_version_replaces_some_shards_of_the_current_one(location: str) -> None:
    store = VersionStore(location)
    first = publish(store, "one", numbers(0), numbers(10), numbers(20))
    replaced = first.shards[1].path
    schema, shards = numbers(30).schema, stage(store, "two", [numbers(30)])
    second = store.commit(
        "two", schema, shards, append=True, replaces=lambda shard: shard.path == replaced
    )
    assert read_version(store, second) == pa.concat_tables(map(numbers, (0, 20, 30)))
    assert [shard.ordinal for shard in second.shards] == [0, 1, 2]
    assert second.shards_total == 3


def test_a_version_that_is_not_based_on_the_current_one_is_refused(location: str) -> None:
    store = VersionStore(location)
    for job in ("one", "two"):
        publish(store, job, numbers(0))
    schema = numbers(0).schema
    with pytest.raises(DatasetError, match="version 2 was published after version 1 was read"):
        store.commit("three", schema, [], append=False, base=1)
    assert store.list_versions() == [1, 2]
    assert store.commit("four", schema, [], append=False, base=2).version == 3


def test_a_job_commits_at_most_one_version(location: str) -> None:
    store = VersionStore(location)
    first = publish(store, "job", numbers(0))
    publish(store, "other", numbers(5))
    assert publish(store, "job", numbers(7), append=True) == first
    assert store.list_versions() == [1, 2]
    assert list_files(store, "_splitarrow/staging") == []


def test_concurrent_jobs_commit_a_version_each(location: str) -> None:
    jobs = [f"job-{index}" for index in range(8)]
    stores = [VersionStore(location) for _ in jobs]
    shards = [
        stage(store, job, [numbers(10 * index)])
        for index, (store, job) in enumerate(zip(stores, jobs, strict=True))
    ]
    schema = numbers(0).schema
    barrier = threading.Barrier(len(jobs))

    def commit(index: int) -> Manifest:
        barrier.wait(30)
        return stores[index].commit(jobs[index], schema, shards[index], append=True)

    with ThreadPoolExecutor(len(jobs)) as threads:
        committed = list(threads.map(commit, range(len(jobs))))
    assert sorted(manifest.version for manifest in committed) == list(range(1, 9))
    last = VersionStore(location).load()
    assert read_version(stores[0], last).sort_by("n") == numbers(0, 80)
    assert sorted(manifest.rows for manifest in committed) == list(range(10, 90, 10))


def test_concurrent_commits_of_one_job_make_one_version(location: str) -> None:
    store = VersionStore(location)
    shards = stage(store, "job", [numbers(0)])
    barrier = threading.Barrier(4)

    def commit(_: int) -> Manifest:
        barrier.wait(30)
        return VersionStore(location).commit("job", numbers(0).schema, shards, append=True)

    with ThreadPoolExecutor(4) as threads:
        committed = list(threads.map(commit, range(4)))
    assert committed == [committed[0]] * 4
    assert store.list_versions() == [1]


WRITER = """if True:
    import sys
    import pyarrow as pa
    from splitarrow.publication.version_store import VersionStore
    location, job = sys.argv[1:]
    table = pa.table({"n": range(10)})
    store = VersionStore(location)
    shard = store.write_shard(job, "0.arrow", table.schema, table.to_batches())
    print("staged", flush=True)
    sys.stdin.readline()
    print(store.commit(job, table.schema, [shard], append=True).version, flush=True)
"""


@pytest.mark.slow
def test_concurrent_processes_commit_a_version_each(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), f"job-{index}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "staged\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        committed = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert sorted(committed) == ["1\n", "2\n", "3\n"]
    store = VersionStore(tmp_path)
    last = store.load()
    assert last is not None
    assert (last.version, last.rows) == (3, 30)


def test_a_job_that_died_is_invisible_and_can_be_repeated(location: str, monkeypatch: Any) -> None:
    store = VersionStore(location)
    before = publish(store, "before", numbers(0))
    shards = stage(store, "job", [numbers(10), numbers(20)])

    def die(name: str, data: bytes) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.storage, "create", die)
    with pytest.raises(KeyboardInterrupt):
        store.commit("job", numbers(0).schema, shards, append=True)
    assert VersionStore(location).load() == before
    assert len(list_files(store)) == 3
    again = VersionStore(location)
    committed = publish(again, "job", numbers(10), numbers(20), append=True)
    expected = tuple(replace(shard, ordinal=1 + at) for at, shard in enumerate(shards))
    assert (committed.version, committed.shards[1:]) == (2, expected)
    assert len(list_files(store)) == 3


def test_the_files_of_a_job_that_died_can_be_discarded(location: str, monkeypatch: Any) -> None:
    store = VersionStore(location)
    publish(store, "before", numbers(0))
    shards = stage(store, "job", [numbers(10), numbers(20)])
    store.promote_shard("job", shards[0])
    store.discard("job")
    store.discard("before")
    assert list_files(store, "_splitarrow/staging") == []
    assert len(list_files(store)) == 1
    with pytest.raises(DatasetError, match=r"data/job/00000-.*\.arrow of the job job was not stag"):
        store.commit("job", numbers(0).schema, shards, append=False)
    assert store.list_versions() == [1]


def test_shards_of_a_pruned_version_that_a_later_one_has_are_not_discarded(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    publish(store, "b", numbers(10), append=True)
    assert store.prune(1) == [1]
    store.discard("a")
    assert read_version(store, store.load()) == numbers(0, 20)


def test_an_existing_file_is_staged_unchanged(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    path = tmp_path / "upload"
    with pa.ipc.new_file(str(path), numbers(0).schema) as writer:
        writer.write_table(numbers(0))
    nbytes = path.stat().st_size
    schema, shard = store.stage_file("job", "up", path, ordinal=4)
    assert (shard.rows, shard.nbytes, shard.ordinal) == (10, nbytes, 4)
    committed = store.commit("job", schema, [shard], append=True, shards_total=7)
    assert read_version(store, committed) == numbers(0)
    (tmp_path / "bad").write_bytes(b"ARROW1 not really")
    with pytest.raises(DatasetError, match="bad is not a valid Arrow IPC file"):
        store.stage_file("job", "up", tmp_path / "bad")


def test_appending_another_schema_is_refused(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    with pytest.raises(DatasetError, match=r"that of version 1: it lacks the column 'text'"):
        publish(store, "b", numbers(0).select(["n"]), append=True)
    assert store.list_versions() == [1]
    assert publish(store, "b", numbers(0).select(["n"])).version == 2


@pytest.mark.parametrize("job", ["", "..", "a/b", ".x", "a b", "x" * 129, "ä", "a\n"])
def test_invalid_names_are_refused(tmp_path: Path, job: str) -> None:
    store = VersionStore(tmp_path)
    for call in (
        lambda: store.staging_location(job),
        lambda: store.commit(job, numbers(0).schema, [], append=False),
        lambda: store.discard(job),
        lambda: stage(store, job, [numbers(0)]),
    ):
        with pytest.raises(UsageError, match="is not a valid job name"):
            call()
    with pytest.raises(UsageError, match="is not a valid shard name"):
        store.write_shard("job", job, numbers(0).schema, [])


def test_the_staging_folder_is_inside_the_dataset(location: str) -> None:
    assert VersionStore(location).staging_location("j") == f"{location}/_splitarrow/staging/j"


def test_other_files_beside_manifests_are_ignored(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    for name in ("1.json", "00000007.json.bak", "x/00000009.json", "latest"):
        store.storage.create(f"_splitarrow/versions/{name}", b"{}")
    assert store.list_versions() == [1]


def test_the_error_for_a_malformed_manifest_names_it(location: str) -> None:
    store = VersionStore(location)
    committed = publish(store, "a", numbers(0))
    store.storage.create(format_manifest_name(2), b"{}")
    with pytest.raises(DatasetError, match=r"/versions/00000002\.json is not a valid manifest"):
        store.load()
    assert store.load(1) == committed
    store.storage.create(format_manifest_name(3), encode_manifest(committed))
    with pytest.raises(DatasetError, match=r"00000003\.json .* manifest: version is 1; expected 3"):
        store.load()


def test_a_shard_of_another_length_is_refused(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    committed = publish(store, "a", numbers(0))
    (tmp_path / "other").write_bytes(b"short")
    store.storage.put(committed.shards[0].path, tmp_path / "other")
    with pytest.raises(DatasetError, match="has 5 bytes, but its manifest lists"):
        read_version(store, committed)
    store.storage.delete([committed.shards[0].path])
    with pytest.raises(DatasetError, match=committed.shards[0].path):
        read_version(store, committed)


def test_pruning_keeps_the_shards_of_newer_versions(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    publish(store, "b", numbers(10), append=True)
    publish(store, "c", numbers(20))
    publish(store, "d", numbers(30), append=True)
    assert store.prune(4) == []
    assert store.prune(3) == [1]
    assert len(list_files(store)) == 4
    assert read_version(store, store.load(2)) == numbers(0, 20)
    assert store.prune(2) == [2]
    assert len(list_files(store)) == 2
    assert store.list_versions() == [3, 4]
    assert store.prune(1) == [3]
    assert read_version(store, store.load()) == numbers(20, 20)
    assert publish(store, "e", numbers(0)).version == 5
    with pytest.raises(UsageError, match="keep is 0; at least one version"):
        store.prune(0)


def test_a_locked_version_is_not_pruned(location: str) -> None:
    store = VersionStore(location)
    for index in range(3):
        publish(store, f"job-{index}", numbers(index))
    locks = [store.lock(1), store.lock(1)]
    assert None not in locks
    assert store.lock(4) is None
    assert store.prune(1) == [2]
    for lock in locks:
        assert store.list_versions() == [1, 3]
        assert read_version(store, store.load(1)) == numbers(0)
        assert lock is not None
        lock.release()
        lock.release()
        assert store.prune(1) == ([1] if lock is locks[1] else [])
    assert len(list_files(store)) == 1
    assert store.lock(1) is None


def test_a_lock_through_another_store_counts(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "a", numbers(0))
    publish(store, "b", numbers(1))
    other = VersionStore(tmp_path)
    lock = other.lock(1)
    assert lock is not None
    assert store.prune(1) == []
    lock.release()
    assert store.prune(1) == [1]


def test_interrupted_pruning_is_completed_by_the_next_run(location: str, monkeypatch: Any) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    publish(store, "b", numbers(1))

    def die(names: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.storage, "delete", die)
    with pytest.raises(KeyboardInterrupt):
        store.prune(1)
    assert store.list_versions() == [2]
    assert len(list_files(store)) == 2
    assert VersionStore(location).prune(1) == []
    assert len(list_files(store)) == 1
    assert list_files(store, "_splitarrow/pruned") == []


def test_only_paths_and_known_schemes_are_locations(tmp_path: Path, monkeypatch: Any) -> None:
    store = VersionStore(f"file://{tmp_path}/a%20b")
    assert store.location == f"{tmp_path}/a b"
    for location in ("http://host/x", "file://host/x", "s3:///"):
        with pytest.raises(UsageError, match=r"^(http|file|s3)://"):
            VersionStore(location)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"splitarrow\[object-store\]"):
        VersionStore("s3://bucket/x")


def test_the_error_for_an_unwritable_location_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = VersionStore(tmp_path / "file")
    assert store.list_versions() == []
    with pytest.raises(DatasetError, match="file/_splitarrow/staging/job"):
        publish(store, "job", numbers(0))
    with pytest.raises(DatasetError, match=r"file/_splitarrow/versions/00000001\.json"):
        store.commit("job", numbers(0).schema, [], append=False)


def test_the_error_for_an_unreachable_store_names_it(bucket: str, monkeypatch: Any) -> None:
    store = VersionStore("s3://nowhere/flights")
    with pytest.raises(DatasetError, match=r"^s3://nowhere/flights/_splitarrow/versions"):
        store.list_versions()


def test_shard_paths_are_unique_and_below_the_job(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    shards = stage(store, "job", [numbers(0)])
    with pytest.raises(InvalidDataError, match="two shards have the path"):
        store.commit("job", numbers(0).schema, shards * 2, append=False)
    manifest = json.loads(encode_manifest(publish(store, "job", numbers(0))))
    assert manifest["shards"][0]["path"].startswith("data/job/00000-")
