"""Object stores, through obstore: S3 and what speaks like it, Google Cloud Storage, Azure.

Credentials and endpoints come from the environment, as each store's own tools have them:
``AWS_…``, ``GOOGLE_…``, ``AZURE_…``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ...errors import DatasetError, MissingExtraError, UsageError
from .storage import Stored

_CHUNK = 8 << 20
_Found = TypeVar("_Found")


class ObjectStorage:
    """A prefix of an object store. See `Storage`.

    Parameters
    ----------
    location : str
        A URL: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``.

    Raises
    ------
    MissingExtraError
        If the extra ``object-store`` is not installed.
    UsageError
        If there is no such bucket's name in the URL, or the store is not configured.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        """The URL."""
        self._api = _obstore()
        try:
            self._store: Any = self._api.store.from_url(self.location)
        except (self._api.exceptions.BaseError, ValueError) as error:
            raise UsageError(f"{location}: {_line(error)}") from None

    @property
    def folder(self) -> None:
        """None: it is on no machine of ours."""

    def names(self, folder: str) -> list[Stored]:
        """Return the objects below a prefix."""
        with self._mapped(folder):
            return sorted(
                Stored(str(found["path"]), int(found["size"]))
                for chunk in self._api.list(self._store, folder + "/")
                for found in chunk
            )

    def read(self, name: str) -> bytes | None:
        """Return what an object holds."""
        return self._if_there(name, lambda: bytes(self._api.get(self._store, name).bytes()))

    def nbytes(self, name: str) -> int | None:
        """Return how long an object is."""
        return self._if_there(name, lambda: int(self._api.head(self._store, name)["size"]))

    def create(self, name: str, data: bytes) -> bool:
        """Make an object by a conditional put."""
        with self._mapped(name):
            try:
                self._api.put(self._store, name, data, mode="create")
            except (self._api.exceptions.AlreadyExistsError, FileExistsError):
                return False
        return True

    def put(self, name: str, source: Path) -> None:
        """Upload a file."""
        with self._mapped(name), source.open("rb") as file:
            self._api.put(self._store, name, file)

    def move(self, name: str, target: str) -> None:
        """Copy an object within the store, and delete the first."""
        with self._mapped(name):
            self._api.copy(self._store, name, target)
            self._api.delete(self._store, name)

    def flush(self, folders: Iterable[str]) -> None:
        """Do nothing: a store that has answered keeps it."""

    def fetch(self, name: str, target: Path) -> None:
        """Download an object."""
        with self._mapped(name), target.open("xb") as file:
            for chunk in self._api.get(self._store, name).stream(min_chunk_size=_CHUNK):
                file.write(chunk)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        with self._mapped(""):
            for name in names:
                try:
                    self._api.delete(self._store, name)
                except (FileNotFoundError, self._api.exceptions.NotFoundError):
                    continue

    def _if_there(self, name: str, get: Callable[[], _Found]) -> _Found | None:
        with self._mapped(name):
            try:
                return get()
            except (FileNotFoundError, self._api.exceptions.NotFoundError):
                return None

    @contextmanager
    def _mapped(self, name: str) -> Generator[None]:
        """Turn what obstore and the system raise into a `DatasetError`."""
        try:
            yield
        except (self._api.exceptions.BaseError, OSError, ValueError) as error:
            raise DatasetError(f"{self.location}/{name}: {_line(error)}") from None


def _obstore() -> Any:
    try:
        obstore = import_module("obstore")
        import_module("obstore.exceptions")
        import_module("obstore.store")
    except ImportError:
        raise MissingExtraError(
            "object stores need the extra object-store: pip install 'splitarrow[object-store]'"
        ) from None
    return obstore


def _line(error: BaseException) -> str:
    """Return the part of an error's text that says what is wrong, in one line."""
    text = str(error).partition("Debug source")[0].strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]
