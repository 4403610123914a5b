"""Where the files of datasets come from: a file system, or an object store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from ....publication.storage import ObjectStorage, StoredObject
from ....transport.memory.files import SourceFile
from .file_access import Identity, read_identity
from .object_file import ObjectFile, identify_object


class FileOrigin(Protocol):
    """A file that may belong to a dataset."""

    @property
    def name(self) -> str:
        """The path below the folder or prefix of the dataset. ``/`` separates its components."""
        ...

    @property
    def path(self) -> Path | str:
        """The path, or the URL of an object."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether it is an object in an object store."""
        ...

    def read_identity(self) -> Identity:
        """Return the identity of the current state; raise `OSError` if the file is missing."""
        ...

    def open(self, *, refuse_writers: bool) -> SourceFile:
        """Open the file for reading.

        Raises
        ------
        DatasetError
            If it cannot be read, or is open for writing.
        """
        ...


class LocalOrigin:
    """A file of a file system. See `FileOrigin`.

    Parameters
    ----------
    path : path-like
        The file.
    name : str, optional
        The path below the folder of the dataset. Default: the name of the file.
    """

    is_remote = False

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.name

    def read_identity(self) -> Identity:
        """Return the identity of the current state; see `FileOrigin.read_identity`."""
        return read_identity(self.path)

    def open(self, *, refuse_writers: bool) -> SourceFile:
        """Open the file for reading; see `FileOrigin.open`."""
        return SourceFile(self.path, refuse_writers=refuse_writers)


class ObjectOrigin:
    """An object of an object store, in the state of a listing. See `FileOrigin`.

    Parameters
    ----------
    storage : ObjectStorage
        The object store.
    entry : StoredObject
        The object.
    """

    is_remote = True

    def __init__(self, storage: ObjectStorage, entry: StoredObject) -> None:
        self._storage = storage
        self._entry = entry
        self.name = entry.name
        self.path = f"{storage.location}/{entry.name}"

    def read_identity(self) -> Identity:
        """Return the identity of the listed state."""
        return identify_object(self._entry)

    def open(self, *, refuse_writers: bool) -> SourceFile:
        """Open the object for reading. A writer replaces it, and never changes it."""
        return ObjectFile(self._storage, self._entry)
