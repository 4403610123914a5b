"""The cache of shards that were downloaded: a bounded folder of files named by their SHA-256."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import DatasetError
from ...publication.atomic_files import TEMPORARY_PREFIX, AtomicFile, sync_folder
from ...publication.manifest import ShardEntry
from ...publication.shard_files import check_shard_length, hash_file
from ...publication.storage import Storage
from ..config import Settings
from ..logs import get_logger
from ..metrics import CacheUses
from .eviction import EvictionPolicy, ReaderId

_ANNOUNCEMENT_SECONDS = 900.0
"""The time after which an announcement ends if its reader has opened no shard."""
_MAX_ANNOUNCEMENTS = 256
"""The announcements of one principal. The one used least recently ends for a new one."""
MAX_ANNOUNCED = 65536
"""The shards of one announcement."""
_MAX_ALL_ANNOUNCED = 8 * MAX_ANNOUNCED
_AHEAD = 8
"""What is fetched ahead is at most this part of the cache."""


def open_object_cache(
    settings: Settings | None = None, *, checks_files: bool = False, is_shared: bool = True
) -> ObjectCache:
    """Return the cache that the settings describe; by default, one in the user's cache folder."""
    chosen = settings or Settings.model_construct()
    folder = chosen.object_cache
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(base, "splitarrow", "objects")
    nbytes = chosen.object_cache_bytes
    return ObjectCache(folder, nbytes, checks_files=checks_files, is_shared=is_shared)


@dataclass(slots=True)
class _Announcement:
    """What a reader will open."""

    storage: Storage
    shards: Mapping[str, ShardEntry]
    length: int
    last_used: float


class ObjectCache:
    """Shards of object stores as local files, named by the SHA-256 of their contents.

    Safe to use from several threads. Several processes may share the folder if `is_shared`. It has
    at most `nbytes` bytes, and is created for the first file. With `checks_files`, the SHA-256 of a
    file is checked at its first use. Files are evicted as `EvictionPolicy` decides, except those
    that this process reads. The access times of files carry their order over to the next process.
    """

    def __init__(
        self, folder: Path, nbytes: int, *, checks_files: bool = False, is_shared: bool = True
    ) -> None:
        self.folder = folder
        """The folder."""
        self.uses = CacheUses()
        """How often this process found a shard in the cache, or did not."""
        self.progress = threading.Event()
        """Set when a reader announces its order, or opens a shard that it has announced."""
        self._max_bytes = nbytes
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._downloads: dict[str, threading.Lock] = {}
        self._checks_files = checks_files
        self._intact: set[str] = set()
        self._is_shared = is_shared
        self._is_listed = False
        self._policy = EvictionPolicy(nbytes)
        self._accessed: dict[str, int] = {}
        """The access times of files that this process knows of, in nanoseconds."""
        self._reserved = 0
        self._announcements: OrderedDict[ReaderId, _Announcement] = OrderedDict()
        """The announcements, least recently used first."""

    @contextmanager
    def open_shard(self, storage: Storage, shard: ShardEntry) -> Generator[Path]:
        """Yield the file of a shard, which is not evicted inside the block.

        Concurrent callers for one shard wait for a single download.

        Raises `DatasetError` if the shard cannot be downloaded, does not match its manifest, or is
        larger than the cache.
        """
        key = shard.sha256
        path = self.folder / key
        with self._hold(key) as download:
            with download:
                is_hit = self._is_complete(path, shard) and self._is_intact(path, key)
                with self._lock:
                    self.uses.count(is_hit=is_hit)
                if not is_hit:
                    self._download(storage, shard, path)
                self._note_use(path, shard)
            yield path

    def has(self, shard: ShardEntry) -> bool:
        """Return whether the file of a shard is in the cache."""
        return self._is_complete(self.folder / shard.sha256, shard)

    def announce(
        self, reader: ReaderId, storage: Storage, shards: Sequence[ShardEntry], position: int
    ) -> None:
        """Note the order in which a reader opens shards, and how many of them are done.

        It replaces the previous order of the reader; an empty one ends its announcement. At most
        `MAX_ANNOUNCED` shards count.
        """
        shards = shards[:MAX_ANNOUNCED]
        by_key = {shard.sha256: shard for shard in shards}
        now = time.monotonic()
        with self._lock:
            self._end_announcement(reader)
            self._end_idle_announcements(now)
            if not shards:
                return
            self._list_files()
            sizes = {key: shard.nbytes for key, shard in by_key.items()}
            self._policy.announce(reader, [shard.sha256 for shard in shards], sizes, position)
            self._announcements[reader] = _Announcement(storage, by_key, len(shards), now)
            own = [each for each in self._announcements if each[0] == reader[0]]
            for each in own[:-_MAX_ANNOUNCEMENTS]:
                self._end_announcement(each)
            while sum(each.length for each in self._announcements.values()) > _MAX_ALL_ANNOUNCED:
                self._end_announcement(next(iter(self._announcements)))
        self.progress.set()

    def fetch_next(self, nbytes: int) -> int | None:
        """Fetch the next shard that a reader has announced and the cache does not have.

        Only the next `nbytes` bytes of what is announced are fetched, and at most an eighth of the
        cache. Nothing is evicted that is needed sooner. Returns the size of the shard, or None if
        there is nothing to fetch now. Raises `DatasetError` as `open_shard` does.
        """
        with self._lock:
            self._end_idle_announcements(time.monotonic())
            missing = self._policy.list_missing(min(nbytes, self._max_bytes // _AHEAD))
            key = next((key for key in missing if key not in self._users), None)
            found = None if key is None else self._find_announced(key)
        if found is None:
            return None
        storage, shard = found
        path = self.folder / shard.sha256
        with self._hold(shard.sha256) as download, download:
            if self._is_complete(path, shard):
                return 0
            if not self._download(storage, shard, path, ahead=True):
                return None
        return shard.nbytes

    @contextmanager
    def _hold(self, key: str) -> Generator[threading.Lock]:
        """Keep a shard from being evicted; yield the lock of its download."""
        with self._lock:
            self._users[key] += 1
            download = self._downloads.setdefault(key, threading.Lock())
        try:
            yield download
        finally:
            with self._lock:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._downloads.pop(key, None)

    def _is_complete(self, path: Path, shard: ShardEntry) -> bool:
        try:
            return path.stat().st_size == shard.nbytes
        except OSError:
            return False

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

    def _note_use(self, path: Path, shard: ShardEntry) -> None:
        """Record the use of a file, here and in its access time."""
        now = time.time_ns()
        with suppress(OSError):
            # Only the access time changes: the modification time identifies the file's state.
            os.utime(path, ns=(now, path.stat().st_mtime_ns))
        with self._lock:
            self._intact.add(shard.sha256)
            self._accessed[shard.sha256] = now
            self._policy.add(shard.sha256, shard.nbytes)
            reader = self._policy.use(shard.sha256, shard.nbytes)
            if reader is not None:
                self._announcements[reader].last_used = time.monotonic()
                self._announcements.move_to_end(reader)
        if reader is not None:
            self.progress.set()

    def _download(
        self, storage: Storage, shard: ShardEntry, path: Path, *, ahead: bool = False
    ) -> bool:
        """Download and verify a shard, and then give it its final name.

        If it is downloaded ahead of its use, returns False if other files are needed sooner.
        """
        url = f"{storage.location}/{shard.path}"
        if shard.nbytes > self._max_bytes:
            raise DatasetError(
                f"{url} has {shard.nbytes} bytes, but the object cache holds at most "
                f"{self._max_bytes}; enlarge it with --object-cache-bytes"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._reserve(shard, ahead=ahead) as is_free:
                if not is_free:
                    return False
                with AtomicFile(path) as file:
                    storage.fetch(shard.path, file.temporary)
                    check_shard_length(shard, file.temporary.stat().st_size, storage.location)
                    if hash_file(file.temporary) != shard.sha256:
                        raise DatasetError(f"{url} does not have the SHA-256 in its manifest")
                    file.sync()
                sync_folder(self.folder)
                with self._lock:
                    self._intact.add(shard.sha256)
                    self._accessed[shard.sha256] = path.stat().st_atime_ns
                    self._policy.add(shard.sha256, shard.nbytes)
        except OSError as error:
            raise DatasetError(f"cannot store {url} in {self.folder}: {error.strerror}") from None
        return True

    @contextmanager
    def _reserve(self, shard: ShardEntry, *, ahead: bool) -> Generator[bool]:
        """Evict files until a shard fits, and reserve its bytes; yield whether that was possible.

        Of a shard that is fetched ahead, it evicts no file that is needed sooner.
        """
        with self._lock:
            self._policy.remove(shard.sha256)
            others = self._list_files()
            used = sum(self._policy.sizes.values()) + max(others, self._reserved)
            victims = self._policy.make_room(
                used + shard.nbytes - self._max_bytes,
                self._users,
                before=shard.sha256 if ahead else None,
            )
            for key in victims or ():
                (self.folder / key).unlink(missing_ok=True)
                self._forget_file(key)
            reserved = 0 if victims is None else shard.nbytes
            self._reserved += reserved
        try:
            yield victims is not None
        finally:
            with self._lock:
                self._reserved -= reserved

    def _list_files(self) -> int:
        """Note what other processes did in the folder; return the bytes of incomplete files.

        A folder of this process alone is listed once.
        """
        if self._is_listed and not self._is_shared:
            return 0
        self._is_listed = True
        files: list[tuple[int, int, str]] = []
        others = 0
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.startswith(TEMPORARY_PREFIX):
                        others += status.st_size
                    else:
                        files.append((status.st_atime_ns, status.st_size, entry.name))
        for key in self._policy.sizes.keys() - {key for *_, key in files}:
            self._forget_file(key)
        for accessed, size, key in sorted(files):
            self._policy.add(key, size)
            if self._accessed.get(key) != accessed:
                self._accessed[key] = accessed
                self._policy.use(key, size)
        return others

    def _forget_file(self, key: str) -> None:
        self._policy.remove(key)
        self._accessed.pop(key, None)
        self._intact.discard(key)

    def _find_announced(self, key: str) -> tuple[Storage, ShardEntry] | None:
        for announcement in self._announcements.values():
            if key in announcement.shards:
                return announcement.storage, announcement.shards[key]
        return None

    def _end_idle_announcements(self, now: float) -> None:
        for reader, announcement in list(self._announcements.items()):
            if now - announcement.last_used < _ANNOUNCEMENT_SECONDS:
                return
            self._end_announcement(reader)

    def _end_announcement(self, reader: ReaderId) -> None:
        self._announcements.pop(reader, None)
        self._policy.withdraw(reader)
