"""What kind of file a path leads to, told by its first bytes: names may lie."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

from ...errors import DatasetError, ProtocolError
from ...formats.arrow.file import MAGIC
from ...formats.arrow.message import CONTINUATION, HeaderType, message_facts, parse_prefix
from ...transport.regions import RegionFile
from .arrow_file import ArrowFileDataset
from .arrow_stream import ArrowStreamDataset
from .feather import FeatherDataset
from .files import FileDataset
from .parquet import ParquetDataset

EXPECTED = "an Arrow IPC file or stream, a Feather or a Parquet file"
_MAGICS: tuple[tuple[bytes, type[FileDataset]], ...] = (
    (MAGIC, ArrowFileDataset),
    (b"PAR1", ParquetDataset),
    (b"FEA1", FeatherDataset),
    (CONTINUATION, ArrowStreamDataset),
)
_ENCRYPTED = b"PARE"
_MOST_METADATA = 16 << 20


def open_file(path: Path, *, keep_index: bool = True) -> FileDataset:
    """Return the dataset in a file.

    Parameters
    ----------
    path : Path
        The file.
    keep_index : bool
        Whether the index of its messages is kept between readers.

    Raises
    ------
    DatasetError
        If there is none, it cannot be read, or it is of no kind that is served.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DatasetError(f"cannot read {path}: {reason}") from None
    if not stat.S_ISREG(mode):
        raise DatasetError(f"{path} is neither a file nor a directory")
    return _kind_of(path)(path, keep_index=keep_index)


def _kind_of(path: Path) -> type[FileDataset]:
    with closing(RegionFile(path)) as file:
        if not file.size:
            raise DatasetError(f"{path} is empty; {EXPECTED} was expected")
        head = file.read(0, min(file.size, 8))
        for magic, kind in _MAGICS:
            if head.startswith(magic):
                return kind
        if head.startswith(_ENCRYPTED):
            raise DatasetError(f"{path} is an encrypted Parquet file, which cannot be served")
        if _begins_with_schema(file, head):
            return ArrowStreamDataset
    raise DatasetError(f"{path} begins with {head!r}; {EXPECTED} was expected")


def _begins_with_schema(file: RegionFile, head: bytes) -> bool:
    """Tell whether a file begins as a stream did before Arrow 0.15: with a length."""
    try:
        nbytes, length = parse_prefix(head)
        if not 0 < length <= min(file.size - nbytes, _MOST_METADATA):
            return False
        return message_facts(file.read(nbytes, length)).header_type is HeaderType.SCHEMA
    except ProtocolError:
        return False
