"""The cache of shards that were downloaded: a bounded folder of files named by their SHA-256."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from ...errors import DatasetError
from ...publication.atomic_files import (
    TEMPORARY_PREFIX,
    AtomicFile,
    new_temporary_name,
    sync_folder,
)
from ...publication.manifest import ShardEntry
from ...publication.shard_files import check_shard_length, hash_file
from ...publication.storage import Storage
from ..config import Settings
from ..logs import get_logger
from ..metrics import ObjectCacheUses
from .eviction import EvictionPolicy, ReaderId

_ANNOUNCEMENT_SECONDS = 900.0
"""The time after which an announcement ends if its reader has opened no shard."""
_MAX_ANNOUNCEMENTS = 256
"""The announcements of one principal. The one used least recently ends for a new one."""
MAX_ANNOUNCED = 65536
"""The shards of one announcement."""
_MAX_ALL_ANNOUNCED = 8 * MAX_ANNOUNCED
_FULL_SECONDS = 10.0
_ACCESS_LEAD = 1_000_000_000
"""How far ahead of now the access times of files are set, in nanoseconds."""
_AHEAD = 8
"""What is fetched ahead is at most this part of the cache, which pinned shards leave to others."""


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


class CacheFullError(DatasetError):
    """The cache cannot store a shard: it is too large, or the disk is full."""


class ShardDownload:
    """A shard that is being downloaded. Any thread may read what has arrived."""

    def __init__(
        self, path: Path, nbytes: int, report_waiting: Callable[[int], object] = lambda change: None
    ) -> None:
        self.path = path
        """The incomplete file, which gets another name at the end."""
        self.nbytes = nbytes
        """The size of the complete file in bytes."""
        self._arrived = 0
        self._has_ended = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._report_waiting = report_waiting

    @property
    def arrived(self) -> int:
        """The bytes of the shard that have arrived. The file may have its final size before."""
        return self._arrived

    def advance(self, nbytes: int) -> None:
        """State that the file begins with so many bytes of the shard."""
        with self._changed:
            self._arrived = min(nbytes, self.nbytes)  # a longer file is not complete either
            self._changed.notify_all()

    def end(self, error: Exception | None) -> None:
        """State that the shard is complete and verified, or why it is not."""
        with self._changed:
            self._has_ended, self._error = True, error
            self._changed.notify_all()

    def wait_for(self, nbytes: int) -> None:
        """Wait for the first bytes of the shard. Raises the error of the download."""
        with self._changed:
            if not self._has_ended and self._arrived < nbytes:
                self._report_waiting(1)
                try:
                    self._changed.wait_for(lambda: self._has_ended or self._arrived >= nbytes)
                finally:
                    self._report_waiting(-1)
            if self._error is not None:
                raise copy(self._error)

    def wait(self) -> None:
        """Wait until the shard is complete and verified. Raises the error of the download."""
        self.wait_for(self.nbytes + 1)


class ObjectCache:
    """Shards of object stores as local files, named by the SHA-256 of their contents.

    Safe to use from several threads. Several processes may share the folder if `is_shared`. It has
    at most `nbytes` bytes, and is created for the first file. With `checks_files`, the SHA-256 of a
    file is checked at its first use. Files are evicted as `EvictionPolicy` decides, except those
    that this process reads or has pinned. The access times of files carry their order over to the
    next process.
    """

    def __init__(
        self, folder: Path, nbytes: int, *, checks_files: bool = False, is_shared: bool = True
    ) -> None:
        self.folder = folder
        """The folder."""
        self.report_waiting: Callable[[int], object] = lambda change: None
        """Called with 1 before, and with -1 after a thread waits for a download, so that other
        readers get another thread."""
        self.uses = ObjectCacheUses()
        """How often this process found a shard in the cache, or did not."""
        self.max_bytes = nbytes
        """The largest size of the cache in bytes."""
        self.progress = threading.Event()
        """Set when a reader announces its order, or opens a shard that it has announced."""
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._full_until = 0.0
        """When to try again to store shards, after the disk was full (`time.monotonic`)."""
        self._gates: dict[str, threading.Lock] = {}
        self._downloads: dict[str, ShardDownload] = {}
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
        self._pinned: dict[str, tuple[Storage, ShardEntry]] = {}
        self._pinned_bytes = 0

    @property
    def max_pinned_bytes(self) -> int:
        """The largest size of the pinned shards in bytes."""
        return self.max_bytes - self.max_bytes // _AHEAD

    @contextmanager
    def open_shard(
        self, storage: Storage, shard: ShardEntry, *, is_new_use: bool = True
    ) -> Generator[Path]:
        """Yield the file of a shard, which is not evicted inside the block.

        Concurrent callers for one shard wait for a single download. It is not a new use if the
        caller has called `find_download` for it.

        Raises `DatasetError` if the shard cannot be downloaded, does not match its manifest, or is
        larger than the cache.
        """
        with self._hold(shard.sha256):
            download = self.find_download(storage, shard, is_new_use=is_new_use)
            if download is not None:
                download.wait()
            yield self.folder / shard.sha256

    def find_download(
        self, storage: Storage, shard: ShardEntry, *, is_new_use: bool = True
    ) -> ShardDownload | None:
        """Return the download of a shard that is not complete yet, which may begin now.

        Return None if the shard is in the cache. Raises `DatasetError` if it cannot be stored.
        """
        path = self.folder / shard.sha256
        with self._hold(shard.sha256) as gate, gate:  # its checksum may take a moment
            with self._lock:
                download = self._downloads.get(shard.sha256)
            is_stored = download is None and self._is_complete(path, shard)
            is_stored = is_stored and self._is_intact(path, shard.sha256)
            if is_new_use:
                with self._lock:
                    self.uses.count(is_hit=is_stored or download is not None)
            if download is None and not is_stored:
                download = self._start_download(storage, shard)
            if is_new_use:
                self._note_use(path, shard, is_stored=is_stored)
        return download

    def measure(self) -> int:
        """Return the bytes of the shards in the cache, as far as this process knows them."""
        with self._lock:
            if not self._is_shared:
                self._list_files()
            return sum(self._policy.sizes.values())

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

    def pin(self, shards: Iterable[tuple[Storage, ShardEntry]]) -> int:
        """Pin shards instead of those before: they are not evicted, and fetched ahead.

        Only the first `max_pinned_bytes` bytes are pinned. Returns the bytes of all.
        """
        by_key = {shard.sha256: (storage, shard) for storage, shard in shards}
        pinned: dict[str, tuple[Storage, ShardEntry]] = {}
        total = pinned_bytes = 0
        for key, (storage, shard) in by_key.items():
            total += shard.nbytes
            if total <= self.max_pinned_bytes:
                pinned[key], pinned_bytes = (storage, shard), total
        with self._lock:
            self._list_files()
            self._pinned, self._pinned_bytes = pinned, pinned_bytes
        self.progress.set()
        return total

    def fetch_next(self, nbytes: int) -> int | None:
        """Fetch the next shard that a reader has announced, or else a pinned one.

        Only the next `nbytes` bytes of what is announced are fetched, and at most an eighth of the
        cache. Nothing is evicted for them that is needed sooner. Pinned shards of at most `nbytes`
        are fetched one by one. Returns the size of the shard, or None if there is nothing to fetch
        now. Raises `DatasetError` as `open_shard` does.
        """
        with self._lock:
            self._end_idle_announcements(time.monotonic())
            missing = self._policy.list_missing(min(nbytes, self.max_bytes // _AHEAD))
            key = next((key for key in missing if key not in self._users), None)
            announced = None if key is None else self._find_announced(key)
            pinned = self._find_missing_pinned(nbytes)
        fetched = None if announced is None else self._fetch(*announced, ahead=True)
        if fetched is not None or pinned is None:
            return fetched
        try:
            return self._fetch(*pinned, ahead=False)
        except DatasetError:
            with self._lock:  # the others may be intact
                key = pinned[1].sha256
                if key in self._pinned:
                    self._pinned[key] = self._pinned.pop(key)
            raise

    def _fetch(self, storage: Storage, shard: ShardEntry, *, ahead: bool) -> int | None:
        """Fetch a shard unless the cache has it; return None if there is no room ahead."""
        with self._hold(shard.sha256) as gate:
            with gate:
                with self._lock:
                    download = self._downloads.get(shard.sha256)
                if download is None and self._is_complete(self.folder / shard.sha256, shard):
                    return 0
                if download is None:
                    download = self._start_download(storage, shard, ahead=ahead)
            if download is None:
                return None
            download.wait()
        return shard.nbytes

    @contextmanager
    def _hold(self, key: str) -> Generator[threading.Lock]:
        """Keep a shard from being evicted; yield the lock of what decides on its download."""
        with self._lock:
            self._users[key] += 1
            gate = self._gates.setdefault(key, threading.Lock())
        try:
            yield gate
        finally:
            with self._lock:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._gates.pop(key, None)

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

    def _note_use(self, path: Path, shard: ShardEntry, *, is_stored: bool) -> None:
        """Record the use of a shard, also in the access time of its file."""
        accessed = _touch(path) if is_stored else 0  # otherwise the download does it
        with self._lock:
            if is_stored:
                self._intact.add(shard.sha256)
                self._accessed[shard.sha256] = accessed
                self._policy.add(shard.sha256, shard.nbytes)
            reader = self._policy.use(shard.sha256, shard.nbytes)
            if reader is not None:
                self._announcements[reader].last_used = time.monotonic()
                self._announcements.move_to_end(reader)
        if reader is not None:
            self.progress.set()

    def _start_download(
        self, storage: Storage, shard: ShardEntry, *, ahead: bool = False
    ) -> ShardDownload | None:
        """Start to download a shard; return None if it is ahead, and others are needed sooner."""
        url = f"{storage.location}/{shard.path}"
        with self._lock:
            pinned_bytes = 0 if shard.sha256 in self._pinned else self._pinned_bytes
        if shard.nbytes > self.max_bytes - pinned_bytes:
            self._count_rejection()
            pins = f", of which {pinned_bytes} are pinned" if pinned_bytes else ""
            raise CacheFullError(
                f"{url} has {shard.nbytes} bytes, but the object cache holds at most "
                f"{self.max_bytes}{pins}; enlarge it with --object-cache-bytes"
            )
        with ExitStack() as reserved:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not reserved.enter_context(self._reserve(shard, ahead=ahead)):
                    return None
                if time.monotonic() < self._full_until or (
                    shutil.disk_usage(self.folder).free < shard.nbytes
                ):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise self._storing_error(url, error) from None
            reserved.enter_context(self._hold(shard.sha256))
            download = ShardDownload(
                self.folder / new_temporary_name(), shard.nbytes, self._change_waiting
            )
            with self._lock:
                self._downloads[shard.sha256] = download
            thread = threading.Thread(
                target=self._run_download,
                args=(storage, shard, download, reserved.pop_all()),
                name="splitarrow-download",
                daemon=True,
            )
            thread.start()
        return download

    def _change_waiting(self, change: int) -> None:
        with self._lock:
            self.uses.waiting += change
        self.report_waiting(change)

    def _count_rejection(self) -> None:
        with self._lock:
            self.uses.rejections += 1

    def _run_download(
        self, storage: Storage, shard: ShardEntry, download: ShardDownload, reserved: ExitStack
    ) -> None:
        error: Exception | None = None
        with reserved:
            try:
                self._download(storage, shard, download)
            except Exception as failure:
                error = failure
            with self._lock:
                del self._downloads[shard.sha256]
        download.end(error)

    def _download(self, storage: Storage, shard: ShardEntry, download: ShardDownload) -> None:
        """Download and verify a shard, and then give it its final name."""
        url = f"{storage.location}/{shard.path}"
        path = self.folder / shard.sha256
        try:
            with AtomicFile(path, temporary=download.path) as file:
                storage.fetch(shard.path, download.path, download.advance)
                size = download.path.stat().st_size
                if 0 < download.arrived < shard.nbytes:
                    size = download.arrived
                check_shard_length(shard, size, storage.location)
                if hash_file(download.path) != shard.sha256:
                    raise DatasetError(f"{url} does not have the SHA-256 in its manifest")
                file.sync()
            sync_folder(self.folder)
            with self._lock:
                self._intact.add(shard.sha256)
                self._accessed[shard.sha256] = _touch(path)
                self._policy.add(shard.sha256, shard.nbytes)
        except OSError as error:
            raise self._storing_error(url, error) from None

    def _storing_error(self, url: str, error: OSError) -> DatasetError:
        message = f"cannot store {url} in {self.folder}: {error.strerror}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return DatasetError(message)
        self._count_rejection()
        if time.monotonic() >= self._full_until:
            self._full_until = time.monotonic() + _FULL_SECONDS
            get_logger("published").warning("cache is full", reason=message)
        return CacheFullError(message)

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
                used + shard.nbytes - self.max_bytes,
                self._users.keys() | self._pinned.keys(),
                before=shard.sha256 if ahead else None,
            )
            for key in victims or ():
                (self.folder / key).unlink(missing_ok=True)
                self._forget_file(key)
                self.uses.evictions += 1
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

    def _find_missing_pinned(self, nbytes: int) -> tuple[Storage, ShardEntry] | None:
        for key, (storage, shard) in self._pinned.items():
            is_missing = key not in self._policy.sizes and key not in self._users
            if is_missing and shard.nbytes <= nbytes:
                return storage, shard
        return None

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


def _touch(path: Path) -> int:
    """Set the access time of a file, if it exists, and return it in nanoseconds.

    It is a moment ahead. The kernel then leaves it alone while the file is read: it changes access
    times that are before the last change of the file or of these times.
    """
    accessed = time.time_ns() + _ACCESS_LEAD
    with suppress(OSError):
        # Only the access time changes: the modification time identifies the file's state.
        os.utime(path, ns=(accessed, path.stat().st_mtime_ns))
    return accessed
