"""Files to upload: which kind one is, by its content, and its record batches."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DatasetError

_LONGEST_MAGIC = 8


@contextmanager
def opened(path: Path) -> Generator[tuple[pa.Schema, Iterator[Any], int | None]]:
    """Open a file while the context lasts.

    Returns
    -------
    tuple
        Its schema, its record batches, and how many rows it has, if it tells.

    Raises
    ------
    DatasetError
        If it is of no known kind, or cannot be read; also while its batches are read.
    OSError
        With ``filename`` set, if it cannot be opened.
    """
    with path.open("rb") as file:
        magic = file.read(_LONGEST_MAGIC)
    try:
        if magic[:6] == b"ARROW1":
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches))
                yield reader.schema, _readable(path, batches), None
        elif magic[:4] == b"PAR1":
            from pyarrow import parquet

            with parquet.ParquetFile(path) as found:
                schema: pa.Schema = found.schema_arrow
                yield schema, _readable(path, found.iter_batches()), found.metadata.num_rows
        elif magic[:4] == b"FEA1":
            from pyarrow import feather

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # pyarrow will drop it one day
                table = feather.read_table(path)
            yield table.schema, iter(table.to_batches()), table.num_rows
        else:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
                yield stream.schema, _readable(path, stream), None
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, OSError):
            raise
        raise DatasetError(
            f"{path}: it is no Arrow IPC file or stream, Parquet or Feather file that can be read: "
            f"{error}"
        ) from None


def _readable(path: Path, batches: Any) -> Iterator[Any]:
    try:
        yield from batches
    except (pa.ArrowException, ValueError, OSError) as error:
        raise DatasetError(f"{path}: {error}") from None
