"""The cache of downloaded shards: which files it evicts, and what it fetches ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.publication import numbers, publish
from helpers.waiting import wait_until
from splitarrow.errors import DatasetError, InvalidRequestError
from splitarrow.protocol.request import Request
from splitarrow.publication.manifest import Manifest
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog import object_cache
from splitarrow.server.catalog.eviction import ReaderId
from splitarrow.server.catalog.object_cache import CacheFullError, ObjectCache
from splitarrow.server.catalog.published import PublishedDataset

SHARDS = 20
ONE: ReaderId = ("anna", "1")
TWO: ReaderId = ("anna", "2")


class Shards:
    """Shards in a folder that stands for an object store, and caches of them."""

    def __init__(self, folder: Path) -> None:
        self.store = VersionStore(str(folder / "published"))
        tables = (numbers(100 + 10 * index) for index in range(SHARDS))
        self.manifest: Manifest = publish(self.store, "job", *tables)
        self.nbytes = max(shard.nbytes for shard in self.manifest.shards)
        self.folder = folder / "cache"
        self.by_key = {shard.sha256: shard.ordinal for shard in self.manifest.shards}

    def open_cache(self, shards: int, *, is_shared: bool = False) -> ObjectCache:
        nbytes = shards * self.nbytes + self.nbytes // 2
        return ObjectCache(self.folder, nbytes, is_shared=is_shared)

    def read(self, cache: ObjectCache, *ordinals: int) -> None:
        for ordinal in ordinals:
            with self.hold(cache, ordinal) as path:
                assert path.stat().st_size == self.manifest.shards[ordinal].nbytes

    @contextmanager
    def hold(self, cache: ObjectCache, ordinal: int) -> Generator[Path]:
        with cache.open_shard(self.store.storage, self.manifest.shards[ordinal]) as path:
            yield path

    def announce(
        self, cache: ObjectCache, *ordinals: int, reader: ReaderId = ONE, position: int = 0
    ) -> None:
        shards = [self.manifest.shards[ordinal] for ordinal in ordinals]
        cache.announce(reader, self.store.storage, shards, position)

    def pin(self, cache: ObjectCache, *ordinals: int) -> int:
        return cache.pin((self.store.storage, self.manifest.shards[each]) for each in ordinals)

    def measure(self, *ordinals: int) -> int:
        return sum(self.manifest.shards[ordinal].nbytes for ordinal in ordinals)

    def cached(self) -> set[int]:
        return {self.by_key[path.name] for path in self.folder.iterdir()}


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return Shards(tmp_path)


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_shard_needed_last_is_evicted(shards: Shards, is_shared: bool) -> None:
    cache = shards.open_cache(3, is_shared=is_shared)
    shards.announce(cache, 0, 1, 2, 3, 2, 0, 1)
    shards.read(cache, 0, 1, 2, 3)
    assert shards.cached() == {0, 2, 3}
    shards.read(cache, 2, 0)
    shards.announce(cache)
    shards.read(cache, 5, 6)
    assert shards.cached() == {0, 5, 6}


def test_a_new_cache_knows_the_order_of_the_last_uses(shards: Shards) -> None:
    shards.read(shards.open_cache(3), 0, 1, 2, 0)
    shards.read(shards.open_cache(3), 3)
    assert shards.cached() == {0, 2, 3}


def test_a_shared_cache_notices_the_uses_of_others(shards: Shards) -> None:
    mine, other = (shards.open_cache(3, is_shared=True) for _ in range(2))
    shards.read(mine, 0, 1)
    shards.read(other, 2, 0)
    shards.read(mine, 3)
    assert shards.cached() == {0, 2, 3}


def test_shards_in_use_stay_whatever_is_announced(shards: Shards) -> None:
    cache = shards.open_cache(2)
    shards.announce(cache, 0, 1, 2, 3, 2, 1)
    with shards.hold(cache, 0):
        shards.read(cache, 1, 2, 3)
        assert 0 in shards.cached()
        assert len(shards.cached()) == 2


def test_the_next_shards_are_fetched_until_enough_are_ahead(shards: Shards) -> None:
    cache = shards.open_cache(16)
    assert cache.fetch_next(1 << 30) is None
    shards.announce(cache, *range(8))
    assert cache.progress.is_set()
    assert cache.fetch_next(shards.nbytes) == shards.manifest.shards[0].nbytes
    assert cache.fetch_next(shards.nbytes) is None
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[1].nbytes
    assert cache.fetch_next(1 << 30) is None  # an eighth of the cache
    cache.progress.clear()
    misses = cache.uses.misses
    shards.read(cache, 0, 1)
    assert cache.uses.misses == misses
    assert cache.progress.is_set()
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[2].nbytes
    shards.announce(cache, *range(8), position=5)
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[5].nbytes


def test_nothing_is_fetched_in_place_of_what_is_needed_sooner(shards: Shards) -> None:
    cache = shards.open_cache(8)
    shards.read(cache, *range(8))
    shards.announce(cache, 0, 1, 2, 3, 4, 5, 6, 7, 8)
    assert cache.fetch_next(1 << 30) is None
    shards.announce(cache, 8, 0, 1, 2, 3, 4, 5, 6, 7)
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[8].nbytes
    assert shards.cached() == {0, 1, 2, 3, 4, 5, 6, 8}


def test_a_shard_is_downloaded_once_by_readers_and_ahead(shards: Shards) -> None:
    cache = shards.open_cache(16)
    shards.announce(cache, 0, 1)
    results: list[int | None] = []
    threads = [
        threading.Thread(target=lambda: results.append(cache.fetch_next(shards.nbytes))),
        threading.Thread(target=lambda: shards.read(cache, 0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shards.cached() <= {0, 1}
    assert 0 in shards.cached()


def test_a_short_shard_that_readers_have_mapped_is_refused(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, shard = shards.open_cache(1), shards.manifest.shards[0]

    def fetch(name: str, target: Path, progress: Any = None) -> None:
        data = (shards.store.storage.folder or Path()) / name
        target.write_bytes(data.read_bytes()[:-8])
        progress(shard.nbytes - 8)
        os.truncate(target, shard.nbytes)  # as a reader does before it maps the file

    monkeypatch.setattr(shards.store.storage, "fetch", fetch)
    with pytest.raises(DatasetError, match=f"has {shard.nbytes - 8} bytes, but its manifest"):
        shards.read(cache, 0)
    assert shards.cached() == set()


def test_a_shard_is_on_the_disk_before_it_has_its_name(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, shard = shards.open_cache(1), shards.manifest.shards[0]
    synced: list[tuple[Path, bool]] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path, (shards.folder / shard.sha256).exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    shards.read(cache, 0)
    (file, had_name), (folder, has_name) = synced
    assert (file.parent, had_name) == (shards.folder, False)
    assert (folder, has_name) == (shards.folder, True)


def test_announcements_are_bounded_and_end(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = shards.open_cache(32)
    monkeypatch.setattr(object_cache, "_MAX_ANNOUNCEMENTS", 2)
    for number in range(3):
        shards.announce(cache, number, reader=("anna", f"{number}"))
    shards.announce(cache, 3, reader=("berta", "0"))
    while cache.fetch_next(1 << 30) is not None:
        pass
    assert shards.cached() == {1, 2, 3}
    shards.announce(cache, 4, 5, 6)
    monkeypatch.setattr(object_cache, "_ANNOUNCEMENT_SECONDS", 0.0)
    assert cache.fetch_next(1 << 30) is None
    monkeypatch.undo()
    monkeypatch.setattr(object_cache, "_MAX_ALL_ANNOUNCED", 3)
    shards.announce(cache, 7, 8)
    shards.announce(cache, 9, 10, reader=TWO)
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[9].nbytes
    monkeypatch.setattr(object_cache, "MAX_ANNOUNCED", 1)
    shards.announce(cache, 11, 12)
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[11].nbytes
    shards.announce(cache, reader=TWO)
    assert cache.fetch_next(1 << 30) is None


def test_uses_count_waiting_readers_and_rejections(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, storage, begin = shards.open_cache(3), shards.store.storage, threading.Event()
    fetch = storage.fetch

    def fetch_late(*arguments: Any) -> None:
        assert begin.wait(60)
        fetch(*arguments)

    monkeypatch.setattr(storage, "fetch", fetch_late)
    reader = threading.Thread(target=lambda: shards.read(cache, 0))
    reader.start()
    wait_until(lambda: cache.uses.waiting == 1)
    begin.set()
    reader.join()
    assert cache.uses.waiting == 0
    again = shards.open_cache(3)
    assert again.measure() == cache.measure() == shards.manifest.shards[0].nbytes
    small = shards.open_cache(0)
    with pytest.raises(CacheFullError):
        shards.read(small, 1)
    assert (small.uses.rejections, cache.uses.rejections) == (1, 0)


def test_pinned_shards_are_fetched_and_stay(shards: Shards) -> None:
    cache = shards.open_cache(4)
    shards.read(cache, 0, 1, 2, 3)
    cache.progress.clear()
    assert shards.pin(cache, 4, 1) == shards.measure(1, 4)
    assert cache.progress.is_set()
    assert cache.fetch_next(shards.manifest.shards[4].nbytes - 1) is None
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[4].nbytes
    assert cache.fetch_next(1 << 30) is None
    shards.announce(cache, *range(5, 20))
    shards.read(cache, *range(5, 20))
    assert {1, 4} < shards.cached()
    shards.pin(cache, 1)
    shards.read(cache, *range(5, 20))
    assert 1 in shards.cached()
    assert 4 not in shards.cached()


def test_pins_leave_room_for_others(shards: Shards) -> None:
    cache = shards.open_cache(8)
    assert shards.pin(cache, *range(SHARDS)) > cache.max_bytes
    while cache.fetch_next(1 << 30) is not None:
        pass
    pinned = shards.cached()
    assert pinned == set(range(len(pinned)))
    assert shards.measure(*pinned) <= cache.max_pinned_bytes < shards.measure(*pinned, len(pinned))
    shards.read(cache, 18, 19)
    assert pinned | {19} == shards.cached()
    full = shards.open_cache(1)
    shards.pin(full, 0)
    with pytest.raises(CacheFullError, match="are pinned"):
        shards.read(full, 18)


def test_a_pinned_shard_that_cannot_be_fetched_lets_the_others_pass(shards: Shards) -> None:
    cache = shards.open_cache(8)
    (Path(shards.store.location) / shards.manifest.shards[0].path).unlink()
    shards.pin(cache, 0, 1)
    with pytest.raises(DatasetError):
        cache.fetch_next(1 << 30)
    assert cache.fetch_next(1 << 30) == shards.manifest.shards[1].nbytes


def test_a_folder_needs_no_announcement(shards: Shards) -> None:
    dataset = PublishedDataset(shards.store.location, shards.open_cache(3))
    assert dataset.announce(Request("n"), ONE, [0, 1], 0) is False
    with pytest.raises(InvalidRequestError, match="has no shard 20"):
        dataset.announce(Request("n"), ONE, [0, SHARDS], 0)
