"""Storage in an object store, through obstore: S3 and compatible stores, Google Cloud, Azure.

Credentials and endpoints come from the environment variables that the stores' own tools read:
``AWS_…``, ``GOOGLE_…``, ``AZURE_…``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ...errors import DatasetError, MissingExtraError, UsageError
from .base import StoredObject
from .credentials import check_credentials

_CHUNK = 8 << 20
_T = TypeVar("_T")


class ObjectStorage:
    """A prefix in an object store. See `Storage`.

    Parameters
    ----------
    location : str
        A URL: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``.

    Raises
    ------
    MissingExtraError
        If the extra ``object-store`` is not installed.
    UsageError
        If the URL has no bucket, or there are no credentials for the store.
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

    def get_size(self, name: str) -> int | None:
        """Return the length of an object in bytes; None if it does not exist."""
        entry = self.find(name)
        return None if entry is None else entry.nbytes

    def find(self, name: str) -> StoredObject | None:
        """Return the current state of an object; None if it does not exist."""
        return self._get(name, lambda: _describe(self._api.head(self._store, name)))

    def read_range(self, entry: StoredObject, begin: int, end: int) -> bytes:
        """Return a part of an object, in exactly the state that `entry` describes.

        Parameters
        ----------
        entry : StoredObject
            The object, as `list_objects` or `find` returned it.
        begin, end : int
            The first byte, and the one after the last. The object has them all.

        Raises
        ------
        DatasetError
            If the object was replaced or deleted, or cannot be read.
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

    def fetch(self, name: str, target: Path) -> None:
        """Download an object; see `Storage.fetch`."""
        with self._map_errors(name), target.open("xb") as file:
            for chunk in self._api.get(self._store, name).stream(min_chunk_size=_CHUNK):
                file.write(chunk)

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
            "object stores need the extra object-store: pip install 'splitarrow[object-store]'"
        ) from None
    return obstore


def _describe(entry: Any) -> StoredObject:
    """Return an entry of a listing of obstore."""
    return StoredObject(str(entry["path"]), int(entry["size"]), entry["e_tag"])


def _take_first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without obstore's debugging output."""
    text = str(error).partition("Debug source")[0].strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]
