"""A file that appears only once it is whole."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from . import signals


class Target:
    """A context in which a file is written under another name; success gives it its own.

    The other name is hidden, in the same folder, and ends in ``.part``. Leaving the context
    without an error renames the file over what was there before; leaving it with one removes
    the file and touches nothing else.

    Parameters
    ----------
    path : Path
        Where the file shall be. A symbolic link is followed.
    sync : bool
        Whether to wait until the disk has it before it gets its name.

    Attributes
    ----------
    part : Path
        Where to write; the file exists, and is empty, inside the context.

    Raises
    ------
    OSError
        With ``filename`` set: if there is something else than a file, or the folder is missing,
        not writable, or full.
    """

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path = path
        self._syncs = sync
        self._place = path.resolve()
        self.part = self._place.with_name(f".{self._place.name}.{secrets.token_hex(4)}.part")
        self._mode: int | None = None
        if not self._place.parent.is_dir():
            raise OSError(0, f"there is no folder {path.parent}", str(path))
        with suppress(FileNotFoundError):
            found = self._place.stat()
            if not stat.S_ISREG(found.st_mode):
                raise OSError(0, "it exists and is not a file", str(path))
            self._mode = stat.S_IMODE(found.st_mode)

    def __enter__(self) -> Target:
        mode = 0o666 if self._mode is None else self._mode | stat.S_IWUSR
        try:
            os.close(os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        except OSError as error:
            raise self._about(error) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._finish()
            except BaseException:
                self._discard()
                raise
            return
        self._discard()
        if isinstance(error, OSError) and error.filename in (None, str(self.part)):
            raise self._about(error) from None

    def _about(self, error: OSError) -> OSError:
        """Return the error with the name that the user gave; pyarrow's have none."""
        reason = os.strerror(error.errno) if error.errno else str(error)
        return OSError(error.errno or 0, reason, str(self.path))

    def _finish(self) -> None:
        try:
            if self._mode is not None:
                self.part.chmod(self._mode)
            if self._syncs:
                _sync(self.part)
            os.replace(self.part, self._place)
        except OSError as error:
            raise self._about(error) from None
        if self._syncs:
            with suppress(OSError):  # some network file systems cannot sync a folder
                _sync(self._place.parent)

    def _discard(self) -> None:
        with signals.ignored(), suppress(OSError):
            self.part.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
