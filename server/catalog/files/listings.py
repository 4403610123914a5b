"""Finding the files of a dataset: in a folder, by a pattern, or in an object store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Protocol

from ....errors import DatasetError, exhausted_error
from ....publication.patterns import compile_pattern, split_pattern
from ....publication.storage import ObjectStorage
from .origins import FileOrigin, LocalOrigin, ObjectOrigin

_LISTING_SECONDS = 1.0
"""The shortest time between two listings of an object store, in seconds."""


class Listing(Protocol):
    """The files of a dataset, as they are now."""

    @property
    def location(self) -> str:
        """The path, URL or pattern, as it was given."""
        ...

    @property
    def noun(self) -> str:
        """The noun for all files together, for the type of the dataset: ``directory``."""
        ...

    @property
    def absence(self) -> str:
        """The predicate that states that there are no files, for errors."""
        ...

    def list_files(self) -> Sequence[FileOrigin]:
        """Return the files, sorted by name, folder by folder.

        Files and folders whose names begin with ``.`` or ``_`` are ignored, except for folders
        that define a partition, such as ``_day=1``.

        Raises
        ------
        DatasetError
            If a folder or the object store cannot be read.
        """
        ...

    def expire(self) -> None:
        """Let the next call of `list_files` return the current files, not those of a moment ago."""
        ...


class FolderListing:
    """The files in a local folder and its subfolders. See `Listing`."""

    noun = "directory"
    absence = "is a directory without files"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self.location = str(self._path)

    def list_files(self) -> Sequence[FileOrigin]:
        """Return the files; see `Listing.list_files`."""
        return [_relate(path, self._path) for path in _walk(self._path, ())]

    def expire(self) -> None:
        """Do nothing: each listing is new."""


class PatternListing:
    """The local files that match a pattern, and those in folders that match it. See `Listing`."""

    noun = "files"
    absence = "matches no file"

    def __init__(self, pattern: str) -> None:
        self.location = pattern
        root, self._pattern = split_pattern(pattern)
        self._root = Path(root)

    def list_files(self) -> Sequence[FileOrigin]:
        """Return the files; see `Listing.list_files`."""
        found: dict[Path, FileOrigin] = {}
        for name in sorted(glob(self._pattern, root_dir=self._root, recursive=True), key=_key):
            path = self._root / name
            if not is_hidden(name):
                for file in _walk(path, ()) if path.is_dir() else [path]:
                    found.setdefault(file, _relate(file, self._root))
        return list(found.values())

    def expire(self) -> None:
        """Do nothing: each listing is new."""


class ObjectListing:
    """The objects below a prefix of an object store, or those that match a pattern. See `Listing`.

    The store is listed at most once a second, except after `expire`.

    Parameters
    ----------
    location : str
        A URL: a prefix, a single object, or a pattern such as ``s3://bucket/trips/*.parquet``.

    Raises
    ------
    UsageError
        If the URL has no bucket, or there are no credentials for the store.
    MissingExtraError
        If the extra ``object-store`` is not installed.
    """

    noun = "objects"
    absence = "names no objects"

    def __init__(self, location: str) -> None:
        self.location = location
        root, pattern = split_pattern(location)
        self._storage = ObjectStorage(root)
        self._matches = compile_pattern(pattern).fullmatch if pattern else None
        self._lock = threading.Lock()
        self._listed_at = float("-inf")
        self._files: Sequence[FileOrigin] = ()

    def list_files(self) -> Sequence[FileOrigin]:
        """Return the objects; see `Listing.list_files`."""
        with self._lock:
            now = time.monotonic()
            if now - self._listed_at >= _LISTING_SECONDS:
                self._files = self._list_objects() or self._find_single()
                self._listed_at = now
            return self._files

    def expire(self) -> None:
        """Let the next call of `list_files` list the store again."""
        with self._lock:
            self._listed_at = float("-inf")

    def _list_objects(self) -> Sequence[FileOrigin]:
        entries = [
            entry
            for entry in self._storage.list_objects("")
            if not is_hidden(entry.name) and (self._matches is None or self._matches(entry.name))
        ]
        # A listing has the markers that some tools create for folders.
        entries = [entry for entry in entries if entry.nbytes or not entry.name.endswith("/")]
        entries.sort(key=lambda entry: _key(entry.name))
        return [ObjectOrigin(self._storage, entry) for entry in entries]

    def _find_single(self) -> Sequence[FileOrigin]:
        """Return the object that the URL names."""
        parent, _, name = self._storage.location.rpartition("/")
        if self._matches is not None or not name or parent.endswith("/"):
            return ()
        folder = ObjectStorage(parent)
        entry = folder.find(name)
        return () if entry is None else [ObjectOrigin(folder, entry)]


def is_hidden(name: str) -> bool:
    """Return whether a file or one of its folders is ignored; see `Listing.list_files`."""
    *folders, file = name.split("/")
    return file.startswith((".", "_")) or any(
        folder.startswith(".") or (folder.startswith("_") and "=" not in folder)
        for folder in folders
    )


def _key(name: str) -> list[str]:
    """Return a key that sorts names folder by folder."""
    return name.split("/")


def _relate(path: Path, root: Path) -> FileOrigin:
    return LocalOrigin(path, path.relative_to(root).as_posix())


def _walk(folder: Path, ancestors: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, sorted by name.

    Parameters
    ----------
    folder : Path
        The folder.
    ancestors : tuple of (int, int)
        The device and inode of each folder above it, to detect links that form a cycle.
    """
    try:
        status = folder.stat()
        inode = (status.st_dev, status.st_ino)
        if inode in ancestors:
            raise DatasetError(f"{folder} links to a folder that contains it; remove the link")
        with os.scandir(folder) as entries:
            names = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as error:
        problem = f"cannot read {folder}: {error.strerror}"
        raise exhausted_error(error) or DatasetError(problem) from None
    for name, is_folder in names:
        if is_hidden(f"{name}/x" if is_folder else name):
            continue
        if is_folder:
            yield from _walk(folder / name, (*ancestors, inode))
        else:
            yield folder / name
