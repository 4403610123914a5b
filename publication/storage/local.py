"""Storage in a local folder.

New contents are written to an `AtomicFile` and made durable with fsync before the file gets its
name. A crash leaves at most a temporary file, which listings ignore.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ...atomic_files import TEMPORARY_PREFIX, AtomicFile, sync_folder
from ...errors import DatasetError
from .base import StoredObject


class LocalStorage:
    """A folder of this machine, or of a mounted file system. See `Storage`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        """The folder."""
        self.location = str(self.folder)
        """The folder as text."""

    def list_objects(self, folder: str) -> list[StoredObject]:
        """Return the files in a folder and its subfolders; see `Storage.list_objects`."""
        with self._map_errors(folder):
            return sorted(self._walk(self.folder / folder, folder))

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if it does not exist."""
        with self._map_errors(name):
            try:
                return (self.folder / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def get_size(self, name: str) -> int | None:
        """Return the length of a file in bytes; None if it does not exist."""
        with self._map_errors(name):
            try:
                return (self.folder / name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def create(self, name: str, data: bytes) -> bool:
        """Create a file unless its name is taken; see `Storage.create`.

        ``link`` fails if the name exists, so of several writers exactly one succeeds.
        """
        target = self.folder / name
        with self._map_errors(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with AtomicFile(target, overwrite=False) as file:
                    file.temporary.write_bytes(data)
                    file.sync()
            except FileExistsError:
                return False
            sync_folder(target.parent)
        return True

    def put(self, name: str, source: Path) -> None:
        """Move a local file to a name; see `Storage.put`."""
        target = self.folder / name
        with self._map_errors(name):
            source.stat()  # create no folder for a file that does not exist
            target.parent.mkdir(parents=True, exist_ok=True)
            with AtomicFile(target) as file:
                shutil.move(source, file.temporary)
                file.sync()

    def move(self, name: str, target: str) -> None:
        """Rename a file; see `Storage.move`."""
        with self._map_errors(name):
            path = self.folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).replace(path)

    def flush(self, folders: Iterable[str]) -> None:
        """Make the names in folders durable, and those of the folders themselves."""
        for folder in dict.fromkeys(folders):
            with self._map_errors(folder):
                path = self.folder / folder
                for ancestor in (path, *path.parents):
                    sync_folder(ancestor)
                    if ancestor == self.folder:
                        break

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file; see `Storage.fetch`."""
        with self._map_errors(name):
            shutil.copyfile(self.folder / name, target)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and then their folders if these are empty."""
        folders: set[Path] = set()
        for name in names:
            with self._map_errors(name):
                path = self.folder / name
                path.unlink(missing_ok=True)
                folders.add(path.parent)
        for folder in folders:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()

    def _walk(self, path: Path, folder: str) -> Iterator[StoredObject]:
        try:
            entries = os.scandir(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        with closing(entries):
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(path / entry.name, name)
                elif not entry.name.startswith(TEMPORARY_PREFIX):
                    try:
                        yield StoredObject(name, entry.stat().st_size)
                    except FileNotFoundError:
                        continue  # deleted since the folder was listed

    @contextmanager
    def _map_errors(self, name: str) -> Generator[None]:
        """Turn an `OSError` into a `DatasetError` that names the file."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise DatasetError(f"{self.folder / name}: {reason}") from None
