"""The cache of shards that were downloaded: a bounded folder of files named by their SHA-256."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import DatasetError
from ...publication.atomic_files import TEMPORARY_PREFIX, AtomicFile, sync_folder
from ...publication.manifest import ShardEntry
from ...publication.shard_files import check_shard_length, hash_file
from ...publication.storage import Storage
from ..config import Settings
from ..logs import get_logger
from ..metrics import CacheUses
from .dataset import MessageGroups

OpenGroups = Callable[..., MessageGroups]
"""What yields the messages for an open file and a request."""
_MAX_INSPECTED_FILES = 8192


def open_object_cache(
    settings: Settings | None = None, *, checks_files: bool = False
) -> ObjectCache:
    """Return the cache that the settings describe; by default, one in the user's cache folder."""
    chosen = settings or Settings.model_construct()
    folder = chosen.object_cache
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(base, "splitarrow", "objects")
    return ObjectCache(folder, chosen.object_cache_bytes, checks_files=checks_files)


class ObjectCache:
    """Shards of object stores as local files, named by the SHA-256 of their contents.

    Safe to use from several threads. Several processes may share the folder, which has at most
    `nbytes` bytes, and is created for the first file. With `checks_files`, the SHA-256 of a file
    is checked at its first use. Files are evicted in the order of their last
    use, except those that this process reads.
    """

    def __init__(self, folder: Path, nbytes: int, *, checks_files: bool = False) -> None:
        self.folder = folder
        """The folder."""
        self.uses = CacheUses()
        """How often this process found a shard in the cache, or did not."""
        self._max_bytes = nbytes
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._downloads: dict[str, threading.Lock] = {}
        self._checks_files = checks_files
        self._intact: set[str] = set()

    @contextmanager
    def open_shard(self, storage: Storage, shard: ShardEntry) -> Generator[Path]:
        """Yield the file of a shard, which is not evicted inside the block.

        Concurrent callers for one shard wait for a single download.

        Raises `DatasetError` if the shard cannot be downloaded, does not match its manifest, or is
        larger than the cache.
        """
        key = shard.sha256
        path = self.folder / key
        with self._lock:
            self._users[key] += 1
            download = self._downloads.setdefault(key, threading.Lock())
        try:
            with download:
                is_hit = self._touch(path, shard) and self._is_intact(path, key)
                with self._lock:
                    self.uses.count(is_hit=is_hit)
                if not is_hit:
                    self._download(storage, shard, path)
                self._intact.add(key)
            yield path
        finally:
            self._release_user(key)

    def has(self, shard: ShardEntry) -> bool:
        """Return whether the file of a shard is in the cache."""
        try:
            return (self.folder / shard.sha256).stat().st_size == shard.nbytes
        except OSError:
            return False

    def _touch(self, path: Path, shard: ShardEntry) -> bool:
        """Record the use of a file; return False if it is missing or incomplete."""
        try:
            status = path.stat()
            if status.st_size != shard.nbytes:
                return False
            # Only the access time changes: the modification time identifies the file's state.
            os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        except OSError:
            return False
        return True

    def _is_intact(self, path: Path, sha256: str) -> bool:
        """Return whether a file has its SHA-256, which is checked once; delete it if not."""
        if not self._checks_files or sha256 in self._intact:
            return True
        try:
            if hash_file(path) == sha256:
                return True
            path.unlink(missing_ok=True)
        except OSError:
            return False
        get_logger("published").warning("damaged file removed from the cache", path=str(path))
        return False

    def _download(self, storage: Storage, shard: ShardEntry, path: Path) -> None:
        """Download and verify a shard, and then give it its final name."""
        url = f"{storage.location}/{shard.path}"
        if shard.nbytes > self._max_bytes:
            raise DatasetError(
                f"{url} has {shard.nbytes} bytes, but the object cache holds at most "
                f"{self._max_bytes}; enlarge it with --object-cache-bytes"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._evict(shard.nbytes)
            with AtomicFile(path) as file:
                storage.fetch(shard.path, file.temporary)
                check_shard_length(shard, file.temporary.stat().st_size, storage.location)
                if hash_file(file.temporary) != shard.sha256:
                    raise DatasetError(f"{url} does not have the SHA-256 in its manifest")
                file.sync()
            sync_folder(self.folder)
        except OSError as error:
            raise DatasetError(f"cannot store {url} in {self.folder}: {error.strerror}") from None

    def _evict(self, nbytes: int) -> None:
        """Delete the least recently used files until `nbytes` more bytes fit."""
        with self._lock:
            files: list[tuple[int, int, Path]] = []
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        files.append((status.st_atime_ns, status.st_size, Path(entry.path)))
            total = sum(size for _, size, _ in files)
            for _, size, path in sorted(files):
                if total + nbytes <= self._max_bytes:
                    return
                if not self._users[path.name] and not path.name.startswith(TEMPORARY_PREFIX):
                    path.unlink(missing_ok=True)
                    total -= size

    def _release_user(self, key: str) -> None:
        with self._lock:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._downloads.pop(key, None)
