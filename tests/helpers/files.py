"""Files of Arrow data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from helpers.waiting import wait_until
from splitarrow.server import session
from splitarrow.transport.memory.files import holds_file_lease, list_leased_files

Data = pa.Table | Iterable[pa.RecordBatch]


def write_file(
    path: Path,
    data: Data,
    schema: pa.Schema | None = None,
    *,
    batch_rows: int | None = None,
    **options: Any,
) -> Path:
    """Write an Arrow IPC file, and the folders that it is in; a file that exists is replaced.

    `batch_rows` bounds the rows of a batch; `options` are those of `pyarrow.ipc.IpcWriteOptions`.
    """
    return _write(pa.ipc.new_file, path, data, schema, batch_rows, options)


def write_stream(path: Path, data: Data, schema: pa.Schema | None = None, **options: Any) -> Path:
    """Write an Arrow IPC stream, whose dictionaries may replace each other."""
    return _write(pa.ipc.new_stream, path, data, schema, None, options)


def _write(
    open_writer: Any,
    path: Path,
    data: Data,
    schema: pa.Schema | None,
    batch_rows: int | None,
    options: dict[str, Any],
) -> Path:
    if isinstance(data, pa.Table):
        batches, schema = data.to_batches(batch_rows), schema or data.schema
    else:
        batches = list(data)
    found = batches[0].schema if schema is None else schema  # one without columns is false
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    write_options = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(beside), "wb") as sink,
        open_writer(sink, found, options=write_options) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    beside.rename(path)
    return path


@contextmanager
def changing(change: Callable[[], object]) -> Generator[None]:
    """Change a file that this process reads under a file lease: on a thread, which has to wait.

    The context begins when the change waits for the lease, or is done. No server in this process
    gives up the lease meanwhile.
    """
    thread = threading.Thread(target=change)

    def has_begun() -> bool:
        leases = [holds_file_lease(file.fileno()) for file in list_leased_files()]
        return not (thread.is_alive() and all(leases))

    with patch.object(session, "list_leased_files", return_value=[]):
        thread.start()
        wait_until(has_begun)
        yield
        thread.join()


def write_parquet(path: Path, table: pa.Table, **options: Any) -> Path:
    """Write a Parquet file, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def write_shards(folder: Path, tables: Sequence[pa.Table], **options: Any) -> list[Path]:
    """Write each table as an Arrow IPC file of a folder; return their paths in order."""
    return [
        write_file(folder / f"part-{index:05d}.arrow", table, **options)
        for index, table in enumerate(tables)
    ]
