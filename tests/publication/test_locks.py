"""Version locks: shared ones of readers, and the exclusive one of pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.publication import numbers, stage
from splitarrow.errors import DatasetError
from splitarrow.publication.locks import VersionLocks
from splitarrow.publication.storage import LocalStorage, StoredObject
from splitarrow.publication.version_store import VersionStore


class Objects(LocalStorage):
    """A folder that is locked as an object store is: within this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._where = LocalStorage(folder)
        self.folder = None  # pyright: ignore[reportAttributeAccessIssue]

    def find(self, name: str) -> StoredObject | None:
        return self._where.find(name)


@pytest.mark.parametrize("storage", [LocalStorage, Objects])
def test_a_shared_lock_excludes_the_exclusive_one(tmp_path: Path, storage: Any) -> None:
    (tmp_path / "a").touch()
    ours, theirs = (VersionLocks(storage(tmp_path)) for _ in range(2))
    locks = [ours.acquire("a"), theirs.acquire("a")]
    for lock in locks:
        with ours.try_lock_exclusively("a") as locked:
            assert not locked
        assert lock is not None
        lock.release()
        lock.release()
    with theirs.try_lock_exclusively("a") as locked:
        assert locked
    assert ours.acquire("missing") is None
    last = ours.acquire("a")
    assert last is not None
    last.release()
    assert not any(str(tmp_path) in key for key in VersionLocks._shared)


def test_a_file_that_is_locked_exclusively_or_missing_cannot_be_locked(tmp_path: Path) -> None:
    locks = VersionLocks(LocalStorage(tmp_path))
    with locks.try_lock_exclusively("a") as locked:
        assert not locked
    (tmp_path / "a").touch()
    with locks.try_lock_exclusively("a") as locked:
        assert locked
        assert locks.acquire("a") is None
    with pytest.raises(DatasetError, match=r"a/b: Not a directory"):
        locks.acquire("a/b")


def test_a_shard_that_cannot_be_promoted_has_a_reason(tmp_path: Path) -> None:
    store = VersionStore(str(tmp_path))
    shards = stage(store, "job", [numbers(0)])
    (tmp_path / shards[0].path).mkdir(parents=True)
    with pytest.raises(DatasetError, match="directory"):
        store.promote_shard("job", shards[0])
    (tmp_path / shards[0].path).rmdir()
    store.promote_shard("job", shards[0])
    store.promote_shard("job", shards[0])
    (tmp_path / shards[0].path).unlink()
    with pytest.raises(DatasetError, match=r"the shard .* was not staged"):
        store.promote_shard("job", shards[0])
