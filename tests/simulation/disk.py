"""The disks of a simulation: what a power failure leaves of them, and what they refuse.

The files are real, in memory. This module keeps what was made durable: the contents of a file by
``fsync``, the names of a folder by ``fsync`` of the folder. After a power failure, later changes of
a folder's names are there up to a random one, and later contents wholly, in part, or not at all.

`install` replaces the functions of `os` that the product writes with. Numbers of inodes and times
of files are those of the simulation.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .clock import EPOCH_SECONDS, World
from .processes import Process

_real: dict[str, Callable[..., Any]] = {
    name: getattr(os, name)
    for name in (
        *("open", "close", "fsync", "fdatasync", "rename", "replace", "link", "unlink", "remove"),
        *("mkdir", "rmdir", "stat", "fstat", "lstat", "scandir", "listdir", "pread"),
    )
}
_real_flock = fcntl.flock


class _Change(NamedTuple):
    """A change of names: in which folders, and what the names refer to afterwards."""

    names: tuple[tuple[str, str, int | None], ...]


class Disk:
    """The disk of a host, in a folder."""

    by_folder: ClassVar[dict[str, Disk]] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.is_full = False
        self.has_kept_files = False
        """Whether a file could not be removed."""
        self.failing_share = 0.0
        """How often a call that writes fails with an input/output error."""
        self._synced: dict[int, bytes] = {}
        """The durable contents of files by inode."""
        self._names: dict[str, dict[str, int]] = {}
        """The names of the folders, as far as they have been noticed."""
        self._changes: list[_Change] = []
        self._durable: dict[str, int] = {}
        """How many changes are durable in each folder."""
        Disk.by_folder[self.folder] = self
        folder.mkdir(parents=True)
        self._names[self.folder] = {}

    @staticmethod
    def of(path: Any) -> Disk | None:
        """Return the disk of a path; None if it is not simulated."""
        if not isinstance(path, (str, os.PathLike)):
            return None
        text = os.fspath(path)
        for folder, disk in Disk.by_folder.items():
            if text.startswith(folder):
                return disk
        return None

    def refuse(self, *, grows: bool) -> None:
        """Raise what the disk answers to a call that writes."""
        if World.current.thread is None:
            return  # the simulation itself
        if grows and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.failing_share and World.current.random.random() < self.failing_share:
            World.current.record("the disk fails")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # What is durable

    def _notice(self, folder: str) -> None:
        """Record names that have appeared in a folder since the last look."""
        known = self._names.setdefault(folder, {})
        try:
            found = {entry.name: entry.inode() for entry in _real["scandir"](folder)}
        except OSError:
            found = {}
        for name in sorted(found.keys() | known.keys()):
            if found.get(name) != known.get(name):
                self._changes.append(_Change(((folder, name, found.get(name)),)))
        self._names[folder] = found

    def change(self, function: Callable[[], Any], *paths: str) -> Any:
        """Call a function that changes the names of some paths, all at once."""
        folders = dict.fromkeys(os.path.dirname(path) for path in paths)
        for folder in folders:
            self._notice(folder)
        before = len(self._changes)
        result = function()
        for folder in folders:
            self._notice(folder)
        changed = self._changes[before:]
        del self._changes[before:]
        if changed:
            self._changes.append(_Change(tuple(name for each in changed for name in each.names)))
        return result

    def sync(self, descriptor: int, path: str) -> None:
        """Make a file or the names of a folder durable."""
        status = _real["fstat"](descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._notice(path)
            self._durable[path] = len(self._changes)
            return
        copy = _real["open"](f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            self._synced[status.st_ino] = _real["pread"](copy, status.st_size, 0)
        finally:
            _real["close"](copy)

    def lose_power(self) -> None:
        """Keep what is durable, and a random part of the rest."""
        random = World.current.random
        for folder in sorted(self._names):
            self._notice(folder)
        count = len(self._changes)
        cuts = {folder: random.randrange(count + 1) for folder in sorted(self._names)}
        names: dict[str, dict[str, int]] = {self.folder: {}}
        for index, change in enumerate(self._changes):
            is_durable = any(self._durable.get(folder, 0) > index for folder, _, _ in change.names)
            is_kept = all(index < cuts.get(folder, count) for folder, _, _ in change.names)
            if not (is_durable or is_kept):
                continue
            for folder, name, inode in change.names:
                entries = names.setdefault(folder, {})
                if inode is None:
                    entries.pop(name, None)
                else:
                    entries[name] = inode
        contents = dict(self._read_all(self.folder))
        kept: dict[str, bytes | None] = {}
        self._collect(self.folder, names, contents, kept)
        shutil.rmtree(self.folder)
        self._names, self._changes, self._durable, self._synced = {}, [], {}, {}
        for path, data in kept.items():
            if data is None:
                _real["mkdir"](path)
                self._names[path] = {}
            else:
                with open(path, "wb") as file:
                    file.write(data)
                self._synced[_real["stat"](path).st_ino] = data
        for path in kept:
            folder, name = os.path.split(path)
            if folder in self._names:
                self._names[folder][name] = _real["stat"](path).st_ino
        for folder, entries in self._names.items():
            for name, inode in entries.items():
                self._changes.append(_Change(((folder, name, inode),)))
        self._durable = dict.fromkeys(self._names, len(self._changes))

    def _read_all(self, folder: str) -> Iterator[tuple[int, bytes | None]]:
        """Yield the inodes below a folder, with the contents of the files."""
        for entry in _real["scandir"](folder):
            if entry.is_dir(follow_symlinks=False):
                yield entry.inode(), None
                yield from self._read_all(entry.path)
            else:
                with open(entry.path, "rb") as file:
                    yield entry.inode(), file.read()

    def _collect(
        self,
        folder: str,
        names: dict[str, dict[str, int]],
        contents: dict[int, bytes | None],
        kept: dict[str, bytes | None],
    ) -> None:
        kept[folder] = None
        for name, inode in sorted(names.get(folder, {}).items()):
            path = f"{folder}/{name}"
            if path in self._names or contents.get(inode, b"") is None:
                self._collect(path, names, contents, kept)
            else:
                # A file that was removed has what was synced.
                now = contents.get(inode, self._synced.get(inode))
                kept[path] = self._tear(inode, now or b"")

    def _tear(self, inode: int, now: bytes) -> bytes:
        """Return what is left of a file's contents."""
        random, synced = World.current.random, self._synced.get(inode)
        if synced == now:
            return now
        choice = random.random()
        if choice < 0.3:
            return now
        if synced is not None and choice < 0.6:
            return synced
        size = random.randrange(len(now) + 1)
        torn = now[:size]
        if choice > 0.8 and now:  # the length is there, but not all of the data
            torn += bytes(len(now) - size)
        return torn


_inodes: dict[int, int] = {}
_times: dict[tuple[int, int], int] = {}


def reset() -> None:
    """Forget everything of an earlier run."""
    Disk.by_folder.clear()
    for known in (_inodes, _times):
        known.clear()


def _describe(status: os.stat_result) -> os.stat_result:
    """Return a status with the numbers and times of the simulation."""
    inode = _inodes.setdefault(status.st_ino, len(_inodes) + 1000)
    # The time of the real file depends on the machine. The product writes no file in place.
    key = status.st_ino, status.st_size
    now = int((World.current.now + EPOCH_SECONDS) * 1e6) * 1000
    mtime = _times.setdefault(key, now + len(_times))
    values = list(status)
    values[1], values[7], values[8], values[9] = (
        inode,
        mtime // 10**9,
        mtime // 10**9,
        mtime // 10**9,
    )
    names = {
        "st_atime": mtime / 1e9,
        "st_mtime": mtime / 1e9,
        "st_ctime": mtime / 1e9,
        "st_atime_ns": mtime,
        "st_mtime_ns": mtime,
        "st_ctime_ns": mtime,
        "st_blksize": 4096,
        "st_blocks": status.st_size // 512,
        "st_rdev": 0,
    }
    return os.stat_result(values, names)


class _Entry:
    """An entry of a folder, like `os.DirEntry`."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry
        self.name, self.path = entry.name, entry.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _describe(self._entry.stat(follow_symlinks=follow_symlinks))

    def inode(self) -> int:
        return _inodes.setdefault(self._entry.inode(), len(_inodes) + 1000)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._entry.is_dir(follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._entry.is_file(follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        return self._entry.is_symlink()

    def __fspath__(self) -> str:
        return self.path


class _Entries:
    """The entries of a folder in the order of their names, like the result of `os.scandir`."""

    def __init__(self, entries: Iterator[Any]) -> None:
        with entries:  # pyright: ignore[reportGeneralTypeIssues]
            found = sorted(entries, key=lambda entry: entry.name)
        self._entries = iter([_Entry(entry) for entry in found])

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing: all entries were read."""


def _is_simulated() -> bool:
    world = World.find()
    return world is not None and world.thread is not None


def _open(path: Any, flags: int, *args: Any, **options: Any) -> int:
    disk = Disk.of(path)
    if disk is not None and flags & os.O_CREAT:
        disk.refuse(grows=True)
    return _real["open"](path, flags, *args, **options)


def _sync(descriptor: Any) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    path = os.readlink(f"/proc/self/fd/{number}")
    disk = Disk.of(path)
    if disk is None:
        return
    World.current.maybe_switch()
    disk.refuse(grows=True)
    disk.sync(number, path.removesuffix(" (deleted)"))


def _two_paths(name: str) -> Callable[..., None]:
    def change(source: Any, target: Any, **options: Any) -> None:
        disk = Disk.of(target)
        if disk is None:
            return _real[name](source, target, **options)
        World.current.maybe_switch()
        disk.refuse(grows=name == "link")
        paths = os.fspath(source), os.fspath(target)
        return disk.change(lambda: _real[name](source, target, **options), *paths)

    return change


def _one_path(name: str) -> Callable[..., None]:
    def change(path: Any, *args: Any, **options: Any) -> None:
        disk = Disk.of(path)
        if disk is None or options.get("dir_fd") is not None:
            return _real[name](path, *args, **options)
        try:
            disk.refuse(grows=name == "mkdir")
        except OSError:
            disk.has_kept_files = disk.has_kept_files or name in ("unlink", "rmdir")
            raise
        return disk.change(lambda: _real[name](path, *args, **options), os.fspath(path))

    return change


def _stat(name: str) -> Callable[..., os.stat_result]:
    def find(path: Any, **options: Any) -> os.stat_result:
        status = _real[name](path, **options)
        return _describe(status) if _is_simulated() else status

    return find


def _scan(path: Any = ".") -> Any:
    return _Entries(_real["scandir"](path)) if _is_simulated() else _real["scandir"](path)


class _File(io.FileIO):
    """A file whose writes the disk may refuse."""

    def write(self, data: Any) -> int:
        disk = Disk.of(os.readlink(f"/proc/self/fd/{self.fileno()}"))
        if disk is not None:
            World.current.maybe_switch()
            disk.refuse(grows=True)
        return super().write(data)


_locked: dict[int, Process] = {}


def _lock(descriptor: Any, operation: int) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    _real_flock(number, operation | fcntl.LOCK_NB)
    if _is_simulated():
        _locked[number] = Process.current()


def release_locks(process: Process) -> None:
    """End the locks of a process that has died."""
    for descriptor, owner in list(_locked.items()):
        if owner is process:
            del _locked[descriptor]
            try:
                _real_flock(descriptor, fcntl.LOCK_UN)
            except OSError:
                continue


def _close(descriptor: int) -> None:
    _locked.pop(descriptor, None)
    _real["close"](descriptor)


def install() -> None:
    """Replace the functions of `os` that touch the disk. Call this before other imports."""
    replaced: dict[str, Any] = {
        "open": _open,
        "close": _close,
        "fsync": _sync,
        "fdatasync": _sync,
        "scandir": _scan,
        "listdir": lambda path=".": sorted(_real["listdir"](path)),
        **{name: _two_paths(name) for name in ("rename", "replace", "link")},
        **{name: _one_path(name) for name in ("unlink", "remove", "mkdir", "rmdir")},
        **{name: _stat(name) for name in ("stat", "fstat", "lstat")},
    }
    for name, function in replaced.items():
        setattr(os, name, function)
    fcntl.flock = _lock
    io.FileIO = _File  # pyright: ignore[reportAttributeAccessIssue]
