"""The cache of shards that were downloaded: a bounded folder of files named by their SHA-256."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from copy import copy
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
from ..metrics import CacheUses
from .dataset import MessageGroups

OpenGroups = Callable[..., MessageGroups]
"""What yields the messages for an open file and a request."""
_MAX_INSPECTED_FILES = 8192


_FULL_SECONDS = 10.0


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

    def advance(self, nbytes: int) -> None:
        """State that the file begins with so many bytes of the shard."""
        with self._changed:
            self._arrived = nbytes
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

    Safe to use from several threads. Several processes may share the folder, which has at most
    `nbytes` bytes, and is created for the first file. With `checks_files`, the SHA-256 of a file
    is checked at its first use. Files are evicted in the order of their last
    use, except those that this process reads.
    """

    def __init__(self, folder: Path, nbytes: int, *, checks_files: bool = False) -> None:
        self.folder = folder
        """The folder."""
        self.report_waiting: Callable[[int], object] = lambda change: None
        """Called with 1 before, and with -1 after a thread waits for a download, so that other
        readers get another thread."""
        self.uses = CacheUses()
        """How often this process found a shard in the cache, or did not."""
        self._max_bytes = nbytes
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._full_until = 0.0
        """When to try again to store shards, after the disk was full (`time.monotonic`)."""
        self._gates: dict[str, threading.Lock] = {}
        self._downloads: dict[str, ShardDownload] = {}
        self._checks_files = checks_files
        self._intact: set[str] = set()

    @contextmanager
    def open_shard(self, storage: Storage, shard: ShardEntry) -> Generator[Path]:
        """Yield the file of a shard, which is not evicted inside the block.

        Concurrent callers for one shard wait for a single download.

        Raises `DatasetError` if the shard cannot be downloaded, does not match its manifest, or is
        larger than the cache.
        """
        with self._lock:
            self._users[shard.sha256] += 1
        try:
            download = self.find_download(storage, shard)
            if download is not None:
                download.wait()
            yield self.folder / shard.sha256
        finally:
            self._release_user(shard.sha256)

    def find_download(self, storage: Storage, shard: ShardEntry) -> ShardDownload | None:
        """Return the download of a shard that is not complete yet, which may begin now.

        Return None if the shard is in the cache. Raises `DatasetError` if it cannot be stored.
        """
        key = shard.sha256
        with self._lock:
            gate = self._gates.setdefault(key, threading.Lock())
        with gate:  # for one shard: its checksum may take a moment
            with self._lock:
                download = self._downloads.get(key)
            is_hit = download is not None or self._is_stored(shard)
            with self._lock:
                self.uses.count(is_hit=is_hit)
            if not is_hit:
                download = self._start_download(storage, shard)
        return download

    def _is_stored(self, shard: ShardEntry) -> bool:
        path = self.folder / shard.sha256
        return self._touch(path, shard) and self._is_intact(path, shard.sha256)

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
                self._intact.add(sha256)
                return True
            path.unlink(missing_ok=True)
        except OSError:
            return False
        get_logger("published").warning("damaged file removed from the cache", path=str(path))
        return False

    def _start_download(self, storage: Storage, shard: ShardEntry) -> ShardDownload:
        url = f"{storage.location}/{shard.path}"
        if shard.nbytes > self._max_bytes:
            raise CacheFullError(
                f"{url} has {shard.nbytes} bytes, but the object cache holds at most "
                f"{self._max_bytes}; enlarge it with --object-cache-bytes"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._evict(shard.nbytes)
            if time.monotonic() < self._full_until or (
                shutil.disk_usage(self.folder).free < shard.nbytes
            ):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._storing_error(url, error) from None
        download = ShardDownload(
            self.folder / new_temporary_name(), shard.nbytes, lambda n: self.report_waiting(n)
        )
        with self._lock:
            self._downloads[shard.sha256] = download
            self._users[shard.sha256] += 1
        thread = threading.Thread(
            target=self._run_download, args=(storage, shard, download), daemon=True
        )
        thread.name = "splitarrow-download"
        thread.start()
        return download

    def _run_download(self, storage: Storage, shard: ShardEntry, download: ShardDownload) -> None:
        error: Exception | None = None
        try:
            self._download(storage, shard, download)
        except Exception as failure:
            error = failure
        with self._lock:
            del self._downloads[shard.sha256]
        self._release_user(shard.sha256)
        download.end(error)

    def _download(self, storage: Storage, shard: ShardEntry, download: ShardDownload) -> None:
        """Download and verify a shard, and then give it its final name."""
        url = f"{storage.location}/{shard.path}"
        try:
            file = AtomicFile(self.folder / shard.sha256, temporary=download.path)
            with file:
                storage.fetch(shard.path, download.path, download.advance)
                check_shard_length(shard, download.path.stat().st_size, storage.location)
                if hash_file(download.path) != shard.sha256:
                    raise DatasetError(f"{url} does not have the SHA-256 in its manifest")
                file.sync()
            sync_folder(self.folder)
            self._intact.add(shard.sha256)
        except OSError as error:
            raise self._storing_error(url, error) from None

    def _storing_error(self, url: str, error: OSError) -> DatasetError:
        message = f"cannot store {url} in {self.folder}: {error.strerror}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return DatasetError(message)
        if time.monotonic() >= self._full_until:
            self._full_until = time.monotonic() + _FULL_SECONDS
            get_logger("published").warning("cache is full", reason=message)
        return CacheFullError(message)

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
                self._gates.pop(key, None)
