"""Opening files for pyarrow, and mapping its errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ....errors import DatasetError, MissingExtraError, ProtocolError, exhausted_error
from ....transport.memory.files import SourceFile
from .object_file import ObjectFile

Identity = tuple[int | str, ...]
"""The values that identify the state of a file; see `SourceFile.version`."""


def read_identity(path: Path) -> Identity:
    """Return the identity of a file's current state; raise `OSError` if it does not exist."""
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def open_handle(file: SourceFile) -> pa.NativeFile:
    """Return a handle of pyarrow on an open file. The caller closes it.

    The handle refers to the open file, even if another file has its path by now. It reads the file
    and does not map it.
    """
    if isinstance(file, ObjectFile):
        return file.open_handle()
    return pa.OSFile(f"/proc/self/fd/{file.fileno()}", "rb")


@contextmanager
def map_read_errors(path: Path | str, file_type: str) -> Generator[None]:
    """Turn the errors of libraries into a `DatasetError` of one line.

    Parameters
    ----------
    path : Path or str
        The file, for errors.
    file_type : str
        Its expected type with an article, for errors: ``an Arrow IPC file``.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ProtocolError as error:
        raise DatasetError(f"cannot read {path} as {file_type}: {error.message}") from None
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        if exhausted := exhausted_error(error):
            raise exhausted from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DatasetError(f"cannot read {path} as {file_type}: {reason}") from None
