"""Versions: one writer makes each, a job makes one, nothing half done is seen."""

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

from splitarrow.errors import DatasetError, InvalidDataError, MissingExtraError, UsageError
from splitarrow.formats.manifest import ColumnRange, Manifest
from splitarrow.server.catalog.places import manifest_name
from splitarrow.server.catalog.versions import VersionStore

from .published import content, numbers, publish, staged


def files(store: VersionStore, folder: str = "data") -> list[str]:
    return [stored.name for stored in store.storage.names(folder)]


def test_a_version_is_what_was_published(location: str) -> None:
    store = VersionStore(location)
    assert store.versions() == []
    assert store.load() is None
    shards = staged(store, "job-1", [numbers(0), numbers(10)])
    assert store.versions() == []
    assert files(store) == []
    made = store.commit("job-1", numbers(0).schema, shards, append=False, properties={"by": "me"})
    assert store.versions() == [1]
    again = VersionStore(location).load()
    assert again == made
    assert (made.version, made.job, made.snapshot, made.shards_total) == (1, "job-1", "job-1", 2)
    assert (made.rows, made.properties) == (20, {"by": "me"})
    assert made.shards[1].columns["n"] == ColumnRange(10, 19, 0)
    assert content(store, made) == pa.concat_tables([numbers(0), numbers(10)])
    assert files(store, "_splitarrow/staging") == []
    assert made.nbytes == sum(stored.nbytes for stored in store.storage.names("data"))


def test_append_and_overwrite(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0), numbers(10), append=True)
    second = publish(store, "b", numbers(20), append=True, snapshot="s", shards_total=3)
    assert [shard.ordinal for shard in second.shards] == [0, 1, 2]
    assert (second.shards_total, second.snapshot) == (5, "s")
    third = publish(store, "c", numbers(30), append=True)
    assert [shard.ordinal for shard in third.shards] == [0, 1, 2, 5]
    fourth = publish(store, "d", numbers(40))
    assert store.versions() == [1, 2, 3, 4]
    assert content(store, store.load(2)) == numbers(0, 30)
    assert content(store, store.load(3)) == numbers(0, 40)
    assert content(store, store.load()) == content(store, fourth) == numbers(40)


def test_a_job_makes_one_version(location: str) -> None:
    store = VersionStore(location)
    first = publish(store, "job", numbers(0))
    publish(store, "other", numbers(5))
    assert publish(store, "job", numbers(7), append=True) == first
    assert store.versions() == [1, 2]
    assert files(store, "_splitarrow/staging") == []


def test_writers_that_race_make_a_version_each(location: str) -> None:
    jobs = [f"job-{index}" for index in range(8)]
    stores = [VersionStore(location) for _ in jobs]
    shards = [
        staged(store, job, [numbers(10 * index)])
        for index, (store, job) in enumerate(zip(stores, jobs, strict=True))
    ]
    schema = numbers(0).schema
    barrier = threading.Barrier(len(jobs))

    def commit(index: int) -> Manifest:
        barrier.wait(30)
        return stores[index].commit(jobs[index], schema, shards[index], append=True)

    with ThreadPoolExecutor(len(jobs)) as threads:
        made = list(threads.map(commit, range(len(jobs))))
    assert sorted(manifest.version for manifest in made) == list(range(1, 9))
    last = VersionStore(location).load()
    assert content(stores[0], last).sort_by("n") == numbers(0, 80)
    assert sorted(manifest.rows for manifest in made) == list(range(10, 90, 10))


def test_a_job_that_is_committed_by_several_at_a_time_makes_one_version(location: str) -> None:
    store = VersionStore(location)
    shards = staged(store, "job", [numbers(0)])
    barrier = threading.Barrier(4)

    def commit(_: int) -> Manifest:
        barrier.wait(30)
        return VersionStore(location).commit("job", numbers(0).schema, shards, append=True)

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(commit, range(4)))
    assert made == [made[0]] * 4
    assert store.versions() == [1]


WRITER = """if True:
    import sys
    import pyarrow as pa
    from splitarrow.server.catalog.versions import VersionStore
    location, job = sys.argv[1:]
    table = pa.table({"n": range(10)})
    store = VersionStore(location)
    shard = store.write_shard(job, "0.arrow", table.schema, table.to_batches())
    print("staged", flush=True)
    sys.stdin.readline()
    print(store.commit(job, table.schema, [shard], append=True).version, flush=True)
"""


def test_processes_that_race_make_a_version_each(tmp_path: Path) -> None:
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
        made = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert sorted(made) == ["1\n", "2\n", "3\n"]
    store = VersionStore(tmp_path)
    last = store.load()
    assert last is not None
    assert (last.version, last.rows) == (3, 30)


def test_nothing_is_seen_of_a_job_that_died(location: str, monkeypatch: Any) -> None:
    store = VersionStore(location)
    before = publish(store, "before", numbers(0))
    shards = staged(store, "job", [numbers(10), numbers(20)])

    def die(name: str, data: bytes) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.storage, "create", die)
    with pytest.raises(KeyboardInterrupt):
        store.commit("job", numbers(0).schema, shards, append=True)
    assert VersionStore(location).load() == before
    assert len(files(store)) == 3
    again = VersionStore(location)
    made = publish(again, "job", numbers(10), numbers(20), append=True)
    expected = tuple(replace(shard, ordinal=1 + at) for at, shard in enumerate(shards))
    assert (made.version, made.shards[1:]) == (2, expected)
    assert len(files(store)) == 3


def test_what_a_dead_job_left_can_be_discarded(location: str, monkeypatch: Any) -> None:
    store = VersionStore(location)
    publish(store, "before", numbers(0))
    shards = staged(store, "job", [numbers(10), numbers(20)])
    store.publish_shard("job", shards[0])
    store.discard("job")
    store.discard("before")
    assert files(store, "_splitarrow/staging") == []
    assert len(files(store)) == 1
    with pytest.raises(DatasetError, match=r"data/job/00000-.*\.arrow of the job job was not stag"):
        store.commit("job", numbers(0).schema, shards, append=False)
    assert store.versions() == [1]


def test_a_file_is_staged_as_it_is(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    path = tmp_path / "upload"
    with pa.ipc.new_file(str(path), numbers(0).schema) as writer:
        writer.write_table(numbers(0))
    nbytes = path.stat().st_size
    schema, shard = store.stage_file("job", "up", path, ordinal=4)
    assert (shard.rows, shard.nbytes, shard.ordinal) == (10, nbytes, 4)
    made = store.commit("job", schema, [shard], append=True, shards_total=7)
    assert content(store, made) == numbers(0)
    (tmp_path / "bad").write_bytes(b"ARROW1 not really")
    with pytest.raises(DatasetError, match="bad is no shard: "):
        store.stage_file("job", "up", tmp_path / "bad")


def test_what_cannot_be_appended_is_refused(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    with pytest.raises(DatasetError, match=r"differs from version 1: it lacks the column 'text'"):
        publish(store, "b", numbers(0).select(["n"]), append=True)
    assert store.versions() == [1]
    assert publish(store, "b", numbers(0).select(["n"])).version == 2


@pytest.mark.parametrize("job", ["", "..", "a/b", ".x", "a b", "x" * 129, "ä", "a\n"])
def test_a_job_has_a_plain_name(tmp_path: Path, job: str) -> None:
    store = VersionStore(tmp_path)
    for call in (
        lambda: store.staging(job),
        lambda: store.commit(job, numbers(0).schema, [], append=False),
        lambda: store.discard(job),
        lambda: staged(store, job, [numbers(0)]),
    ):
        with pytest.raises(UsageError, match="is no name for a job"):
            call()
    with pytest.raises(UsageError, match="is no name for a shard"):
        store.write_shard("job", job, numbers(0).schema, [])


def test_staging_is_in_the_dataset(location: str) -> None:
    assert VersionStore(location).staging("j") == f"{location}/_splitarrow/staging/j"


def test_what_lies_beside_manifests_is_left_out(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    for name in ("1.json", "00000007.json.bak", "x/00000009.json", "latest"):
        store.storage.create(f"_splitarrow/versions/{name}", b"{}")
    assert store.versions() == [1]


def test_a_bad_manifest_is_named(location: str) -> None:
    store = VersionStore(location)
    made = publish(store, "a", numbers(0))
    store.storage.create(manifest_name(2), b"{}")
    with pytest.raises(DatasetError, match=r"/_splitarrow/versions/00000002\.json is no manifest"):
        store.load()
    assert store.load(1) == made
    store.storage.create(manifest_name(3), made.to_json())
    with pytest.raises(DatasetError, match=r"00000003\.json is no manifest: version is 1"):
        store.load()


def test_a_shard_of_another_length_is_refused(location: str, tmp_path: Path) -> None:
    store = VersionStore(location)
    made = publish(store, "a", numbers(0))
    (tmp_path / "other").write_bytes(b"short")
    store.storage.put(made.shards[0].path, tmp_path / "other")
    with pytest.raises(DatasetError, match="has 5 bytes; its manifest says"):
        content(store, made)
    store.storage.delete([made.shards[0].path])
    with pytest.raises(DatasetError, match=made.shards[0].path):
        content(store, made)


def test_pruning_keeps_what_newer_versions_name(location: str) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    publish(store, "b", numbers(10), append=True)
    publish(store, "c", numbers(20))
    publish(store, "d", numbers(30), append=True)
    assert store.prune(4) == []
    assert store.prune(3) == [1]
    assert len(files(store)) == 4
    assert content(store, store.load(2)) == numbers(0, 20)
    assert store.prune(2) == [2]
    assert len(files(store)) == 2
    assert store.versions() == [3, 4]
    assert store.prune(1) == [3]
    assert content(store, store.load()) == numbers(20, 20)
    assert publish(store, "e", numbers(0)).version == 5
    with pytest.raises(UsageError, match="at least one version"):
        store.prune(0)


def test_what_is_held_is_not_pruned(location: str) -> None:
    store = VersionStore(location)
    for index in range(3):
        publish(store, f"job-{index}", numbers(index))
    holds = [store.hold(1), store.hold(1)]
    assert None not in holds
    assert store.hold(4) is None
    assert store.prune(1) == [2]
    for hold in holds:
        assert store.versions() == [1, 3]
        assert content(store, store.load(1)) == numbers(0)
        assert hold is not None
        hold.close()
        hold.close()
        assert store.prune(1) == ([1] if hold is holds[1] else [])
    assert len(files(store)) == 1
    assert store.hold(1) is None


def test_a_hold_of_another_process_counts(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "a", numbers(0))
    publish(store, "b", numbers(1))
    other = VersionStore(tmp_path)
    hold = other.hold(1)
    assert hold is not None
    assert store.prune(1) == []
    hold.close()
    assert store.prune(1) == [1]


def test_pruning_that_was_broken_off_is_finished(location: str, monkeypatch: Any) -> None:
    store = VersionStore(location)
    publish(store, "a", numbers(0))
    publish(store, "b", numbers(1))

    def die(names: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.storage, "delete", die)
    with pytest.raises(KeyboardInterrupt):
        store.prune(1)
    assert store.versions() == [2]
    assert len(files(store)) == 2
    assert VersionStore(location).prune(1) == []
    assert len(files(store)) == 1
    assert files(store, "_splitarrow/pruned") == []


def test_locations(tmp_path: Path, monkeypatch: Any) -> None:
    store = VersionStore(f"file://{tmp_path}/a%20b")
    assert store.location == f"{tmp_path}/a b"
    for location in ("http://host/x", "file://host/x", "s3:///"):
        with pytest.raises(UsageError, match=r"^(http|file|s3)://"):
            VersionStore(location)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"splitarrow\[object-store\]"):
        VersionStore("s3://bucket/x")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = VersionStore(tmp_path / "file")
    assert store.versions() == []
    with pytest.raises(DatasetError, match="file/_splitarrow/staging/job"):
        publish(store, "job", numbers(0))
    with pytest.raises(DatasetError, match=r"file/_splitarrow/versions/00000001\.json"):
        store.commit("job", numbers(0).schema, [], append=False)


def test_a_store_that_does_not_answer_is_named(bucket: str, monkeypatch: Any) -> None:
    store = VersionStore("s3://nowhere/flights")
    with pytest.raises(DatasetError, match=r"^s3://nowhere/flights/_splitarrow/versions"):
        store.versions()


def test_shards_are_checked(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    shards = staged(store, "job", [numbers(0)])
    with pytest.raises(InvalidDataError, match="two shards have the path"):
        store.commit("job", numbers(0).schema, shards * 2, append=False)
    manifest = json.loads(publish(store, "job", numbers(0)).to_json())
    assert manifest["shards"][0]["path"].startswith("data/job/00000-")
