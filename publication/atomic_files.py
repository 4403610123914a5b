"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from types import TracebackType

TEMPORARY_PREFIX = ".tmp-"
"""The beginning of the names of incomplete files."""


class AtomicFile:
    """A file that is written under a temporary name in its folder.

    The caller creates and writes `temporary`. `commit` renames it; a file that had the name
    before keeps it until then. `discard` removes it. As a context manager, the object commits
    on success and discards after an error. A process that dies leaves the temporary file.

    The temporary name begins with `TEMPORARY_PREFIX` unless it is given. Without `overwrite`,
    exactly one of several writers succeeds.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "report.txt")
    ...     with AtomicFile(path) as file:
    ...         _ = file.temporary.write_text("complete")
    ...         exists_within_the_context = path.exists()
    ...     exists_within_the_context, path.read_text()
    (False, 'complete')
    """

    def __init__(
        self, path: Path, *, temporary: Path | None = None, overwrite: bool = True
    ) -> None:
        self.path = path
        """The name of the file."""
        self.temporary = path.with_name(new_temporary_name()) if temporary is None else temporary
        """The name to write to."""
        self._overwrite = overwrite

    def sync(self) -> None:
        """Write the contents to the disk, so that they survive a crash of the machine.

        The name survives too if `sync_folder` follows `commit`.
        """
        _sync(self.temporary, os.O_RDONLY)

    def commit(self) -> None:
        """Give the file its name.

        Raises `FileExistsError` if the name is taken and `overwrite` is false.
        """
        if self._overwrite:
            self.temporary.replace(self.path)
        else:
            os.link(self.temporary, self.path)  # unlike a rename, fails if the name is taken
            self.discard()

    def discard(self) -> None:
        """Remove the temporary file if it exists. Idempotent."""
        self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.discard()
            return
        try:
            self.commit()
        except BaseException:
            self.discard()
            raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that every reader sees all of it or none.

    The file survives a crash of the process, but perhaps not of the machine.

    Raises `OSError` if it cannot be written. The file that had the name before keeps it.
    """
    with AtomicFile(path) as file:
        file.temporary.write_bytes(data)


def sync_folder(folder: Path) -> None:
    """Write the names of a folder's files to the disk."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def create_folder(folder: Path) -> None:
    """Create a folder and those that it is in, so that they survive a crash of the machine.

    Nothing happens if it exists.
    """
    try:
        folder.mkdir()
    except FileNotFoundError:
        create_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    sync_folder(folder.parent)


def new_temporary_name() -> str:
    """Return a new name for an incomplete file, which begins with `TEMPORARY_PREFIX`."""
    return f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
