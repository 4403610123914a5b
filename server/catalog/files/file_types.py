"""Detecting the type of a file by its first bytes; that of a text file by its name."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from ....errors import DatasetError, ProtocolError
from ....formats.arrow.file import MAGIC
from ....formats.arrow.message import CONTINUATION, HeaderType, parse_prefix, read_message_info
from ....formats.arrow.tensors.files import MAX_METADATA_BYTES, NPY_MAGIC, is_tensor_head
from ....formats.vortex.file import MAGIC as VORTEX_MAGIC
from ....transport.memory.files import SourceFile
from .arrow import ArrowFileDataset, ArrowStreamDataset, FeatherDataset
from .file_dataset import FileDataset
from .orc import OrcDataset
from .origins import FileOrigin, LocalOrigin
from .parquet import ParquetDataset
from .tensor_files import NpyDataset, TensorFileDataset
from .text_files import CsvDataset, JsonLinesDataset, TextDataset
from .vortex import VortexFileDataset, VortexStreamDataset, is_vortex_stream

SUPPORTED_TYPES = (
    "an Arrow IPC file or stream, a Feather, Parquet, ORC, Vortex, .tensor or .npy file, a Vortex "
    "stream, or a text file whose name ends in .csv, .jsonl or .ndjson"
)
"""The supported file types, for errors."""
_MAGICS: tuple[tuple[bytes, type[FileDataset]], ...] = (
    (MAGIC, ArrowFileDataset),
    (b"PAR1", ParquetDataset),
    (b"FEA1", FeatherDataset),
    (b"ORC", OrcDataset),
    (NPY_MAGIC, NpyDataset),
    (VORTEX_MAGIC, VortexFileDataset),
    (CONTINUATION, ArrowStreamDataset),
)
# Text has no first bytes of its own, so the name decides.
_SUFFIXES: dict[str, type[FileDataset]] = {
    ".csv": CsvDataset,
    ".jsonl": JsonLinesDataset,
    ".ndjson": JsonLinesDataset,
}
_ENCRYPTED_PARQUET = b"PARE"
_MAX_SCHEMA_BYTES = 16 << 20


def open_file(
    source: Path | FileOrigin,
    *,
    keep_index: bool = True,
    refuse_writers: bool = True,
    text_schema: pa.Schema | None = None,
) -> FileDataset:
    """Return the dataset in a file; `text_schema` is that of CSV or JSON Lines.

    Raises `DatasetError` if the file does not exist, cannot be read, or has an unsupported type, or
    if it is open for writing.
    """
    origin = LocalOrigin(source) if isinstance(source, Path) else source
    if isinstance(origin.path, Path):
        _check_regular(origin.path)
    with closing(origin.open(refuse_writers=refuse_writers)) as file:
        suffix = PurePosixPath(origin.name).suffix.lower()
        if not file.size and text_schema is not None and suffix in _SUFFIXES:
            dataset_type = _SUFFIXES[suffix]  # no rows of JSON Lines
        else:
            dataset_type = _detect_type(origin, file)
        options: dict[str, Any] = {"keep_index": keep_index, "refuse_writers": refuse_writers}
        if text_schema is not None and issubclass(dataset_type, TextDataset):
            options["text_schema"] = text_schema
        return dataset_type(origin, **options, file=file)


def _check_regular(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DatasetError(f"cannot read {path}: {reason}") from None
    if not stat.S_ISREG(mode):
        raise DatasetError(f"{path} is neither a file nor a directory")


def _detect_type(origin: FileOrigin, file: SourceFile) -> type[FileDataset]:
    path = origin.path
    if not file.size:
        raise DatasetError(f"{path} is empty; expected {SUPPORTED_TYPES}")
    head = file.read(0, min(file.size, 8))
    if _has_tensors(file, head):
        return TensorFileDataset
    for magic, dataset_type in _MAGICS:
        if head.startswith(magic):
            return dataset_type
    if head.startswith(_ENCRYPTED_PARQUET):
        raise DatasetError(f"{path} is an encrypted Parquet file, which is not supported")
    if _is_legacy_stream(file, head):
        return ArrowStreamDataset
    if is_vortex_stream(file):
        return VortexStreamDataset
    suffix = PurePosixPath(origin.name).suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    raise DatasetError(f"{path} begins with {head!r}; expected {SUPPORTED_TYPES}")


def _has_tensors(file: SourceFile, head: bytes) -> bool:
    """Return whether a file begins with the message of a tensor, in either framing."""
    try:
        nbytes, length = parse_prefix(head)
    except ProtocolError:
        return False
    if not 0 < length <= min(file.size - nbytes, MAX_METADATA_BYTES):
        return False
    return is_tensor_head(file.read(0, nbytes + length))


def _is_legacy_stream(file: SourceFile, head: bytes) -> bool:
    """Return whether a file is a stream from before Arrow 0.15, which begins with a length."""
    try:
        nbytes, length = parse_prefix(head)
        if not 0 < length <= min(file.size - nbytes, _MAX_SCHEMA_BYTES):
            return False
        return read_message_info(file.read(nbytes, length)).header_type is HeaderType.SCHEMA
    except ProtocolError:
        return False
