"""A folder of objects that were downloaded: bounded, and what was used longest ago goes first."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import DatasetError
from ...formats.manifest import ShardEntry
from .holds import Hold
from .places import check_length
from .shard_files import file_sha256
from .storage import TEMPORARY, Storage

DEFAULT_BYTES = 10 << 30
"""How much a cache keeps that is told nothing, in bytes."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Where objects are kept, and how many."""

    folder: Path | None = None
    """The folder; None: ``splitarrow/objects`` in the user's cache folder."""
    nbytes: int = DEFAULT_BYTES
    """The most bytes that are kept. What is being read stays, even if it is more."""

    def open(self) -> ObjectCache:
        """Return the cache."""
        folder = self.folder
        if folder is None:
            base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            folder = Path(base, "splitarrow", "objects")
        return ObjectCache(folder, self.nbytes)


class ObjectCache:
    """Shards of object stores as files of this machine, by the SHA-256 of what they hold.

    Safe to use from several threads; several processes may share the folder.

    Parameters
    ----------
    folder : Path
        The folder. It is made when it is first needed.
    nbytes : int
        The most bytes that it keeps.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        """The folder."""
        self._most = nbytes
        self._lock = threading.Lock()
        self._pins: Counter[str] = Counter()
        self._fetching: dict[str, threading.Lock] = {}

    def get(self, storage: Storage, shard: ShardEntry) -> tuple[Path, Hold]:
        """Return the file of a shard, and what keeps it there until it is closed.

        Raises
        ------
        DatasetError
            If it cannot be downloaded, has not the bytes that the manifest says, or is larger
            than the cache.
        """
        key = shard.sha256
        path = self.folder / key
        with self._lock:
            self._pins[key] += 1
            turn = self._fetching.setdefault(key, threading.Lock())
        pin = Hold(lambda: self._unpin(key))
        try:
            with turn:
                if not self._is_there(path, shard):
                    self._fetch(storage, shard, path)
        except BaseException:
            pin.close()
            raise
        return path, pin

    def _is_there(self, path: Path, shard: ShardEntry) -> bool:
        try:
            status = path.stat()
            if status.st_size != shard.nbytes:
                return False
            # The time of its last use. That of its last change is what tells readers of one.
            os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        except OSError:
            return False
        return True

    def _fetch(self, storage: Storage, shard: ShardEntry, path: Path) -> None:
        place = f"{storage.location}/{shard.path}"
        if shard.nbytes > self._most:
            raise DatasetError(
                f"{place} has {shard.nbytes} bytes; the cache of objects keeps {self._most}"
            )
        temporary = self.folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(shard.nbytes)
            storage.fetch(shard.path, temporary)
            check_length(shard, temporary.stat().st_size, storage.location)
            if file_sha256(temporary) != shard.sha256:
                raise DatasetError(f"{place} has another SHA-256 than its manifest says")
            temporary.replace(path)
        except OSError as error:
            raise DatasetError(f"cannot keep {place} in {self.folder}: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)

    def _make_room(self, nbytes: int) -> None:
        """Remove what was used longest ago until `nbytes` more fit, but nothing that is read."""
        with self._lock:
            kept: list[tuple[int, int, Path]] = []
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        kept.append((status.st_atime_ns, status.st_size, Path(entry.path)))
            total = sum(size for _, size, _ in kept)
            for _, size, path in sorted(kept):
                if total + nbytes <= self._most:
                    return
                if not self._pins[path.name] and not path.name.startswith(TEMPORARY):
                    path.unlink(missing_ok=True)
                    total -= size

    def _unpin(self, key: str) -> None:
        with self._lock:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
                self._fetching.pop(key, None)
