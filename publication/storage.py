"""Storage of published datasets: local folders and object stores.

`Storage` defines the operations. `LocalStorage` implements them for a folder, and `ObjectStorage`
for a prefix in S3, Google Cloud Storage or Azure, through obstore. `open_storage` returns the right
one for a path or a URL.

Crash safety rests on one operation: `Storage.create` makes a complete file under a name that does
not exist yet, or fails. Of several concurrent callers, exactly one succeeds.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from ..errors import DatasetError, MissingExtraError, UsageError, install_hint
from ..transport.memory.files import check_beneath, open_beneath
from .atomic_files import TEMPORARY_PREFIX, AtomicFile, create_folder, sync_folder

Progress = Callable[[int], object]
"""Receives the size of a file that grows, in bytes."""


def write_all(file: io.FileIO, data: Any) -> None:
    """Write all bytes of a buffer to a file without a buffer of its own."""
    rest = memoryview(data).cast("B")
    while rest.nbytes:
        rest = rest[file.write(rest) :]


class StoredObject(NamedTuple):
    """A file in a folder, or an object in an object store."""

    name: str
    """The name."""
    nbytes: int
    """The length in bytes."""
    etag: str | None = None
    """What identifies this state of the file: in an object store, its entity tag."""


class Storage(Protocol):
    """The files of one dataset. Safe to use from several threads and processes.

    Every method raises `DatasetError` if the storage cannot be read or written. The error names
    the file.
    """

    @property
    def location(self) -> str:
        """An absolute path, or a URL without a trailing slash."""
        ...

    @property
    def folder(self) -> Path | None:
        """The local folder of the dataset; None for an object store."""
        ...

    def list_objects(self, folder: str) -> list[StoredObject]:
        """Return the files in a folder and its subfolders, sorted by name.

        The list is empty if the folder does not exist.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if it does not exist."""
        ...

    def find(self, name: str) -> StoredObject | None:
        """Return the current state of a file; None if it does not exist."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a file, unless its name is taken.

        The file appears complete and durable, or not at all.
        """
        ...

    def put(self, name: str, source: Path) -> None:
        """Store a local file under a name, and replace the file that had it.

        The contents are durable on return. The name is durable after `flush`. `source` may be
        moved away.
        """
        ...

    def move(self, name: str, target: str) -> None:
        """Rename a file, and replace the file that had the new name."""
        ...

    def flush(self, folders: Iterable[str]) -> None:
        """Make the names of files that were put or moved into these folders durable."""
        ...

    def fetch(self, name: str, target: Path, progress: Progress | None = None) -> None:
        """Copy a file to a new local file, and report the bytes that it has so far."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. Names that do not exist are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class _Store:
    """The variables of one kind of store."""

    credentials: Sequence[str]
    """The variables of which any one supplies credentials."""
    metadata: Sequence[str]
    """The variables of which any one allows asking the metadata service."""
    anonymous: str
    """The variable that reads public data without credentials."""
    advice: str
    """What to set."""
    file: str = ""
    """A file below the home folder that holds credentials."""


_STORES: Mapping[str, _Store] = {
    "s3": _Store(
        (
            *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SESSION_TOKEN"),
            *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ),
        ("AWS_METADATA_ENDPOINT", "AWS_IMDSV1_FALLBACK"),
        "AWS_SKIP_SIGNATURE",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "gs": _Store(
        (
            *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
            *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        ),
        ("GCE_METADATA_HOST", "GCE_METADATA_ROOT"),
        "GOOGLE_SKIP_SIGNATURE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        ".config/gcloud/application_default_credentials.json",
    ),
    "az": _Store(
        (
            *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
            *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
            *("AZURE_STORAGE_TOKEN", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_USE_AZURE_CLI"),
            *("AZURE_STORAGE_USE_EMULATOR", "AZURE_USE_AZURE_EMULATOR"),
        ),
        ("AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "IDENTITY_ENDPOINT"),
        "AZURE_SKIP_SIGNATURE",
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    ),
}


def check_credentials(location: str, environ: Mapping[str, str]) -> None:
    """Raise `UsageError` if the environment has no credentials for an object store.

    The error names the variables.

    Examples
    --------
    >>> check_credentials("s3://lake/trips", {"AWS_ACCESS_KEY_ID": "me"})
    """
    store = _STORES.get(location.partition("://")[0])
    if store is None:
        return
    known = (*store.credentials, *store.metadata, store.anonymous)
    if any(environ.get(name) for name in known):
        return
    if store.file and Path(environ.get("HOME", "/"), store.file).is_file():
        return
    raise UsageError(
        f"{location}: no credentials in the environment; set {store.advice}, "
        f"{store.anonymous}=true for public data, or {store.metadata[0]} to ask the metadata "
        "service of the cloud"
    )


class LocalStorage:
    """A folder of this machine, or of a mounted file system. See `Storage`.

    Unless `follow_symlinks`, a symbolic link that leads out of the folder is an error.
    """

    def __init__(self, folder: Path, *, follow_symlinks: bool = True) -> None:
        self._follow_symlinks = follow_symlinks
        self.folder = folder.absolute()
        """The folder."""
        self.location = str(self.folder)
        """The folder as text."""

    def list_objects(self, folder: str) -> list[StoredObject]:
        """Return the files in a folder and its subfolders; see `Storage.list_objects`."""
        with self._map_errors(folder):
            path = self._locate(f"{folder}/") if folder else self.folder
            return sorted(self._walk(path, folder))

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if it does not exist."""
        with self._map_errors(name):
            try:
                if self._follow_symlinks:
                    return (self.folder / name).read_bytes()
                with open(open_beneath(self.folder / name, self.folder), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def find(self, name: str) -> StoredObject | None:
        """Return the current state of a file; None if it does not exist."""
        with self._map_errors(name):
            try:
                return _describe_file(name, self._locate(name).stat())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def create(self, name: str, data: bytes) -> bool:
        """Create a file unless its name is taken; see `Storage.create`.

        ``link`` fails if the name exists, so of several writers exactly one succeeds.
        """
        target = self._locate(name)
        with self._map_errors(name):
            create_folder(target.parent)
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
        target = self._locate(name)
        with self._map_errors(name):
            source.stat()  # create no folder for a file that does not exist
            create_folder(target.parent)
            with AtomicFile(target) as file:
                shutil.move(source, file.temporary)
                file.sync()

    def move(self, name: str, target: str) -> None:
        """Rename a file; see `Storage.move`."""
        with self._map_errors(name):
            path = self._locate(target)
            create_folder(path.parent)
            self._locate(name).replace(path)

    def flush(self, folders: Iterable[str]) -> None:
        """Make the names in folders durable, and those of the folders themselves."""
        for folder in dict.fromkeys(folders):
            with self._map_errors(folder):
                path = self.folder / folder
                for ancestor in (path, *path.parents):
                    sync_folder(ancestor)
                    if ancestor == self.folder:
                        break

    def fetch(self, name: str, target: Path, progress: Progress | None = None) -> None:
        """Copy a file; see `Storage.fetch`."""
        with self._map_errors(name):
            shutil.copyfile(self.folder / name, target)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and then their folders if these are empty."""
        folders: set[Path] = set()
        for name in names:
            with self._map_errors(name):
                path = self._locate(name)
                path.unlink(missing_ok=True)
                folders.add(path.parent)
        for folder in folders:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()

    def _locate(self, name: str) -> Path:
        """Return the path of a name; raise `DatasetError` if its folder is elsewhere."""
        path = self.folder / name
        if not self._follow_symlinks:
            parent = path if name.endswith("/") else path.parent
            check_beneath(parent.resolve(), self.folder.resolve(), parent)
        return path

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
                        yield _describe_file(name, entry.stat())
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


def _describe_file(name: str, status: os.stat_result) -> StoredObject:
    return StoredObject(name, status.st_size, f"{status.st_ino:x}-{status.st_mtime_ns:x}")


_CHUNK = 8 << 20
_T = TypeVar("_T")


class ObjectStorage:
    """A prefix in an object store. See `Storage`.

    Raises `MissingExtraError` if the extra ``object-store`` is not installed, and `UsageError` if
    the URL has no bucket, or there are no credentials for the store.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        """The URL."""
        self._api = _import_obstore()
        check_credentials(self.location, os.environ)
        try:
            self._store: Any = self._api.store.from_url(self.location)
        except (self._api.exceptions.BaseError, ValueError) as error:
            raise UsageError(f"{location}: {_take_first_line(error)}") from None

    @property
    def folder(self) -> None:
        """Always None, because an object store is not a local folder."""

    def list_objects(self, folder: str) -> list[StoredObject]:
        """Return the objects below a prefix; see `Storage.list_objects`."""
        with self._map_errors(folder):
            prefix = f"{folder}/" if folder else None
            return sorted(
                _describe(entry) for chunk in self._api.list(self._store, prefix) for entry in chunk
            )

    def read(self, name: str) -> bytes | None:
        """Return the contents of an object; None if it does not exist."""
        return self._get(name, lambda: bytes(self._api.get(self._store, name).bytes()))

    def find(self, name: str) -> StoredObject | None:
        """Return the current state of an object; None if it does not exist."""
        return self._get(name, lambda: _describe(self._api.head(self._store, name)))

    def read_range(self, entry: StoredObject, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to before `end`, in exactly the state of `entry`.

        Raises `DatasetError` if the object was replaced or deleted, or cannot be read.
        """
        options = {"range": (begin, end), "if_match": entry.etag}
        with self._map_errors(entry.name):
            try:
                result = self._api.get(self._store, entry.name, options=options)
                data = bytes(result.bytes())
            except (self._api.exceptions.PreconditionError, FileNotFoundError):
                raise self._change_error(entry) from None
            # Some stores ignore the condition, but all of them state what they sent.
            now = _describe(result.meta)
        if (now.etag, now.nbytes, len(data)) != (entry.etag, entry.nbytes, end - begin):
            raise self._change_error(entry)
        return data

    def _change_error(self, entry: StoredObject) -> DatasetError:
        return DatasetError(f"{self.location}/{entry.name} was replaced or deleted; read it again")

    def create(self, name: str, data: bytes) -> bool:
        """Create an object unless its name is taken, by a conditional put."""
        with self._map_errors(name):
            try:
                self._api.put(self._store, name, data, mode="create")
            except (self._api.exceptions.AlreadyExistsError, FileExistsError):
                return False
        return True

    def put(self, name: str, source: Path) -> None:
        """Upload a local file; see `Storage.put`."""
        with self._map_errors(name), source.open("rb") as file:
            self._api.put(self._store, name, file)

    def move(self, name: str, target: str) -> None:
        """Copy an object within the store, and then delete the original."""
        with self._map_errors(name):
            self._api.copy(self._store, name, target)
            self._api.delete(self._store, name)

    def flush(self, folders: Iterable[str]) -> None:
        """Do nothing: an object is durable as soon as the store has accepted it."""

    def fetch(self, name: str, target: Path, progress: Progress | None = None) -> None:
        """Download an object; see `Storage.fetch`."""
        with self._map_errors(name), target.open("xb", buffering=0) as file:
            for chunk in self._api.get(self._store, name).stream(min_chunk_size=_CHUNK):
                write_all(file, chunk)
                if progress is not None:
                    progress(file.tell())

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; see `Storage.delete`."""
        with self._map_errors(""):
            for name in names:
                try:
                    self._api.delete(self._store, name)
                except (FileNotFoundError, self._api.exceptions.NotFoundError):
                    continue

    def _get(self, name: str, request: Callable[[], _T]) -> _T | None:
        """Return the result of a request; None if the object does not exist."""
        with self._map_errors(name):
            try:
                return request()
            except (FileNotFoundError, self._api.exceptions.NotFoundError):
                return None

    @contextmanager
    def _map_errors(self, name: str) -> Generator[None]:
        """Turn the errors of obstore and of the system into a `DatasetError`."""
        try:
            yield
        except (self._api.exceptions.BaseError, OSError, ValueError) as error:
            raise DatasetError(f"{self.location}/{name}: {_take_first_line(error)}") from None


def _import_obstore() -> Any:
    try:
        obstore = import_module("obstore")
        import_module("obstore.exceptions")
        import_module("obstore.store")
    except ImportError:
        raise MissingExtraError(
            f"object stores need the extra object-store: {install_hint('object-store')}"
        ) from None
    return obstore


def _describe(entry: Any) -> StoredObject:
    """Return an entry of a listing of obstore."""
    return StoredObject(str(entry["path"]), int(entry["size"]), entry["e_tag"])


def _take_first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without obstore's debugging output."""
    text = str(error).partition("Debug source")[0].strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]


OBJECT_SCHEMES = ("s3", "gs", "az")
"""The URL schemes of object stores."""


def is_storage_url(location: str) -> bool:
    """Return whether a location is a URL with a scheme that `open_storage` accepts."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in (*OBJECT_SCHEMES, "file")


def is_object_url(location: str) -> bool:
    """Return whether a location is the URL of an object store."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in OBJECT_SCHEMES


def open_storage(location: str | os.PathLike[str], *, follow_symlinks: bool = True) -> Storage:
    """Return the storage at a location; see `LocalStorage`. Nothing is read or created yet.

    Raises `UsageError` if the URL is incomplete or has another scheme, and `MissingExtraError` if
    it names an object store, and the extra ``object-store`` is not installed.
    """
    text = os.fspath(location)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalStorage(Path(text), follow_symlinks=follow_symlinks)
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{text}: a file URL must have an absolute path and no host")
        return LocalStorage(Path(unquote(parts.path)), follow_symlinks=follow_symlinks)
    if scheme in OBJECT_SCHEMES:
        return ObjectStorage(text)
    raise UsageError(
        f"{text}: unsupported scheme {scheme!r}; use a path, or a URL with the scheme file, s3, "
        "gs or az"
    )
