"""The operations on the storage of a published dataset.

Names are relative to the location of the dataset. ``/`` separates their components.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol


class StoredObject(NamedTuple):
    """A file in a folder, or an object in an object store."""

    name: str
    """The name."""
    nbytes: int
    """The length in bytes."""
    etag: str | None = None
    """The entity tag that an object store gave to this state of the object."""


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

    def get_size(self, name: str) -> int | None:
        """Return the length of a file in bytes; None if it does not exist."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a file, unless its name is taken.

        The file appears complete and durable, or not at all.

        Returns
        -------
        bool
            Whether the file was created. If not, the existing file is unchanged.
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

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to a new local file."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. Names that do not exist are ignored."""
        ...
