"""Where published datasets lie: a folder of this machine, or a prefix of an object store.

Names are relative to that place, with ``/`` between their parts.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from ...errors import DatasetError, UsageError

OBJECT_SCHEMES = ("s3", "gs", "az")
"""The schemes of URLs of object stores."""
TEMPORARY = ".tmp-"
"""How the names of files begin that are being written."""


class Stored(NamedTuple):
    """A file, or an object."""

    name: str
    """Its name."""
    nbytes: int
    """How long it is, in bytes."""


class Storage(Protocol):
    """Files under one place. Safe to use from several threads and processes.

    Every method raises `DatasetError` where the place cannot be read or written, and names it.
    """

    @property
    def location(self) -> str:
        """The place: an absolute path, or a URL without a slash at its end."""
        ...

    @property
    def folder(self) -> Path | None:
        """The place as a folder of this machine; None if it is none."""
        ...

    def names(self, folder: str) -> list[Stored]:
        """Return what lies in a folder and below it, by name; nothing if there is none."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return what a file holds; None if there is none."""
        ...

    def nbytes(self, name: str) -> int | None:
        """Return how long a file is, in bytes; None if there is none."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Make a file that appears with all it holds, or not at all.

        Returns
        -------
        bool
            Whether it was made. False: there is one of that name, and it is as it was.
        """
        ...

    def put(self, name: str, source: Path) -> None:
        """Bring a file of this machine here; `source` may be moved. It replaces another."""
        ...

    def move(self, name: str, target: str) -> None:
        """Give a file another name; it replaces one of that name."""
        ...

    def flush(self, folders: Iterable[str]) -> None:
        """Return when what was put or moved into folders would survive a power failure."""
        ...

    def fetch(self, name: str, target: Path) -> None:
        """Write what a file holds to a new file of this machine."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; those that do not exist are removed already."""
        ...


def is_url(location: str) -> bool:
    """Tell whether a location is a URL of a place that may hold a published dataset."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in (*OBJECT_SCHEMES, "file")


def storage_for(location: str | os.PathLike[str]) -> Storage:
    """Return the storage at a location.

    Parameters
    ----------
    location : str or path-like
        A path, or a URL: ``file:///…``, ``s3://bucket/…``, ``gs://bucket/…``,
        ``az://container/…``.

    Raises
    ------
    UsageError
        If the URL is of another scheme, or incomplete.
    MissingExtraError
        If it is that of an object store, and the extra ``object-store`` is not installed.
    """
    text = os.fspath(location)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalStorage(Path(text))
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{text}: a file URL has no host, and an absolute path")
        return LocalStorage(Path(unquote(parts.path)))
    if scheme in OBJECT_SCHEMES:
        from .object_store import ObjectStorage

        return ObjectStorage(text)
    raise UsageError(f"{text}: datasets are published to file, s3, gs and az URLs, or to a path")


class LocalStorage:
    """A folder of this machine, or one that it mounts. See `Storage`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        """The folder."""
        self.location = str(self.folder)
        """The same as text."""

    def names(self, folder: str) -> list[Stored]:
        """Return the files in a folder and below it; those being written are left out."""
        with self._mapped(folder):
            return sorted(self._walk(self.folder / folder, folder))

    def read(self, name: str) -> bytes | None:
        """Return what a file holds."""
        with self._mapped(name):
            try:
                return (self.folder / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def nbytes(self, name: str) -> int | None:
        """Return how long a file is."""
        with self._mapped(name):
            try:
                return (self.folder / name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def create(self, name: str, data: bytes) -> bool:
        """Make a file: written beside, made durable, then linked to its name."""
        target = self.folder / name
        with self._mapped(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(target.parent)
        return True

    def put(self, name: str, source: Path) -> None:
        """Move or copy a file to its name; its bytes are durable then."""
        target = self.folder / name
        with self._mapped(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
            try:
                shutil.move(source, temporary)
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)

    def move(self, name: str, target: str) -> None:
        """Rename a file."""
        with self._mapped(name):
            place = self.folder / target
            place.parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).replace(place)

    def flush(self, folders: Iterable[str]) -> None:
        """Make the entries of folders durable, and those of the folders above them."""
        for folder in dict.fromkeys(folders):
            with self._mapped(folder):
                place = self.folder / folder
                for above in (place, *place.parents):
                    _sync_folder(above)
                    if above == self.folder:
                        break

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file."""
        with self._mapped(name):
            shutil.copyfile(self.folder / name, target)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, and the folders of theirs that are empty then."""
        folders: set[Path] = set()
        for name in names:
            with self._mapped(name):
                path = self.folder / name
                path.unlink(missing_ok=True)
                folders.add(path.parent)
        for folder in folders:
            with suppress(OSError):  # something else lies in it
                folder.rmdir()

    def _walk(self, place: Path, folder: str) -> Iterator[Stored]:
        try:
            entries = os.scandir(place)
        except (FileNotFoundError, NotADirectoryError):
            return
        with closing(entries):
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(place / entry.name, name)
                elif not entry.name.startswith(TEMPORARY):
                    try:
                        yield Stored(name, entry.stat().st_size)
                    except FileNotFoundError:
                        continue  # removed meanwhile

    @contextmanager
    def _mapped(self, name: str) -> Generator[None]:
        """Turn what the system raises into a `DatasetError`."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise DatasetError(f"{self.folder / name}: {reason}") from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
