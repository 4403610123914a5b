"""The file that a command writes: its suffix, its form, and what writes record batches to it.

The file appears once it is complete.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import UsageError
from ..formats.arrow.form import Form
from ..publication.atomic_files import AtomicFile, sync_folder
from .exit_status import ignore_signals

ARROW_SUFFIXES = frozenset({".arrow", ".feather", ".arrows"})
"""The suffixes of Arrow IPC, whose messages need no decoding."""
TENSOR_SUFFIXES = (".tensor", ".npy")
_KNOWN = (
    *(".arrow", ".feather", ".arrows", ".parquet", ".csv", ".jsonl", ".ndjson"),
    *(".vortex", ".vortexs"),
    *TENSOR_SUFFIXES,
)


def parse_suffix(path: Path) -> str:
    """Return the suffix of a path, in lower case; raise `UsageError` unless it selects a format."""
    suffix = path.suffix.lower()
    if suffix not in _KNOWN:
        raise UsageError(
            f"{path}: the suffix selects the format; use one of {', '.join(_KNOWN)}, "
            "or - for standard output"
        )
    return suffix


@dataclass(frozen=True, slots=True)
class OutputForm:
    """What to write."""

    text_format: str | None = None
    """``csv`` or ``jsonl`` on standard output, in place of an IPC stream."""
    messages: Form = field(default_factory=Form)
    """The form of Arrow IPC messages."""
    legacy: bool = False
    """Whether to write Arrow IPC with the framing before Arrow 0.15."""
    shred: Mapping[str, Any] | None = None
    """The Variant columns to shred in a Parquet file; see `ParquetSink`."""


PLAIN = OutputForm()
"""Arrow IPC messages as they arrive."""


class OutputFile:
    """Writes a file under a temporary name, and renames it when its context ends.

    The temporary file is hidden, in the same folder, and its name ends in ``.part``. If the block
    raises, the temporary file is removed, and a file that already had the name stays unchanged.

    Symbolic links are followed. Every `OSError` names `path`.
    """

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path = path
        self._sync = sync
        target = path.resolve()
        self.part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        """The temporary file to write to. It exists, empty, when the context is entered."""
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
        with ignore_signals(), suppress(OSError):
            self._file.discard()
