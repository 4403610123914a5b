"""Open files to upload. Their content determines the format."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DatasetError, ProtocolError

_MAGIC_BYTES = 8


@contextmanager
def open_input(path: Path) -> Generator[tuple[pa.Schema, Iterator[Any], int | None]]:
    """Open a file while the context lasts.

    Its schema, its record batches, and its number of rows, or None if the format does not store it.
    Raises `DatasetError` if the format is unknown or the file cannot be read; also while its
    batches are read. Raises `OSError`: With ``filename`` set, if the file cannot be opened.
    """
    with path.open("rb") as file:
        magic = file.read(_MAGIC_BYTES)
    try:
        if magic[:6] == b"ARROW1":
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches))
                yield reader.schema, _read(path, batches), None
        elif magic[:4] == b"PAR1":
            from ..server.catalog.files.parquet import read_parquet

            with read_parquet(path) as (schema, batches, rows):
                yield schema, _read(path, batches), rows
        elif magic[:4] == b"FEA1":
            from pyarrow import feather

            with warnings.catch_warnings():
                # pyarrow has deprecated version 1 of Feather.
                warnings.simplefilter("ignore", DeprecationWarning)
                table = feather.read_table(path)
            yield table.schema, iter(table.to_batches()), table.num_rows
        else:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
                yield stream.schema, _read(path, stream), None
    except (pa.ArrowException, ValueError, ProtocolError) as error:
        if isinstance(error, OSError):
            raise
        raise DatasetError(
            f"{path}: not a valid Arrow IPC file or stream, Parquet file or Feather file: {error}"
        ) from None


def _read(path: Path, batches: Any) -> Iterator[Any]:
    try:
        yield from batches
    except (pa.ArrowException, ValueError, OSError, ProtocolError) as error:
        raise DatasetError(f"{path}: {error}") from None
