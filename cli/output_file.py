"""A file that appears only once it is complete."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..publication.atomic_files import AtomicFile, sync_folder
from . import signals


class OutputFile:
    """Writes a file under a temporary name, and renames it when its context ends.

    The temporary file is hidden, in the same folder, and its name ends in ``.part``. If the block
    raises, the temporary file is removed, and a file that already had the name stays unchanged.

    `path`: Symbolic links are followed. Raises `OSError`: With ``filename`` set: if `path` exists
    and is not a file, or its folder is missing, not writable or full.

    Attributes
    ----------
    part : Path
        The temporary file to write to. It exists, empty, when the context is entered.
    """

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path = path
        self._sync = sync
        target = path.resolve()
        self.part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        self._file = AtomicFile(target, temporary=self.part)
        self._mode: int | None = None
        if not target.parent.is_dir():
            raise OSError(0, f"the folder {path.parent} does not exist", str(path))
        with suppress(FileNotFoundError):
            status = target.stat()
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it exists and is not a file", str(path))
            self._mode = stat.S_IMODE(status.st_mode)

    def __enter__(self) -> OutputFile:
        mode = 0o666 if self._mode is None else self._mode | stat.S_IWUSR
        try:
            os.close(os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        except OSError as error:
            raise self._named_error(error) from None
        except BaseException:  # a signal after the file was created
            self._discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._commit()
            except BaseException:
                self._discard()
                raise
            return
        self._discard()
        if isinstance(error, OSError) and error.filename in (None, str(self.part)):
            raise self._named_error(error) from None

    def _named_error(self, error: OSError) -> OSError:
        """Return the error with the user's name of the file. Errors of pyarrow have no name."""
        reason = os.strerror(error.errno) if error.errno else str(error)
        return OSError(error.errno or 0, reason, str(self.path))

    def _commit(self) -> None:
        try:
            if self._mode is not None:
                self.part.chmod(self._mode)
            if self._sync:
                self._file.sync()
            self._file.commit()
        except OSError as error:
            raise self._named_error(error) from None
        if self._sync:
            with suppress(OSError):  # some network file systems cannot sync a folder
                sync_folder(self._file.path.parent)

    def _discard(self) -> None:
        with signals.ignore_signals(), suppress(OSError):
            self._file.discard()
