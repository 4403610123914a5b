"""The interface of a backend, and the consumer of its reads.

It also makes the certificates and the Parquet file that several backends serve.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidDataError, install_hint
from ..datasets import SCHEMA, BatchFile
from ..options import Consume, Read, Validate


class Consumer:
    """Counts the batches of one read, and records the time of the first one.

    With `check`, it compares them with the file. Such a read is not timed.
    """

    def __init__(
        self,
        dataset: BatchFile,
        consume: Consume = "count",
        read: Read = "iterate",
        check: bool = False,
    ) -> None:
        self.dataset = dataset
        self.reads_table = read == "all"
        """Whether the backend must pass one table."""
        self.check = check
        self.rows = 0
        self.batches = 0
        """The number of batches received. Of a table, those of its first column."""
        self.first_at: float | None = None
        """The time of the first batch, of the monotonic clock in seconds; None for a table."""
        self._process: Callable[[pa.RecordBatch], None] | None = None
        if check:
            self._file = pa.ipc.open_file(pa.memory_map(dataset.path))
            self._compared = 0
            self._process = self._compare
        elif consume != "count":
            self._process = _sum_columns if consume == "sum" else _sum_arrays

    def consume_batches(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Process every batch and drop it."""
        iterator = iter(batches)
        batch = next(iterator, None)
        if batch is None:
            return
        self.first_at = time.monotonic()
        process = self._process
        if process is not None:
            process(batch)
        rows, count = batch.num_rows, 1
        # Two loops: the measured loop does nothing for a batch that it need not do.
        if process is None:
            for batch in iterator:
                rows += batch.num_rows
                count += 1
        else:
            for batch in iterator:
                process(batch)
                rows += batch.num_rows
                count += 1
        self.rows += rows
        self.batches += count

    async def consume_batches_async(self, batches: AsyncIterable[pa.RecordBatch]) -> None:
        """Process every batch and drop it."""
        process = self._process
        rows = count = 0
        async for batch in batches:
            if not count:
                self.first_at = time.monotonic()
            if process is not None:
                process(batch)
            rows += batch.num_rows
            count += 1
        self.rows += rows
        self.batches += count

    def consume_table(self, table: pa.Table) -> None:
        """Process all batches of a table."""
        if self._process is not None:
            for batch in table.to_batches():
                self._process(batch)
        self.rows += table.num_rows
        self.batches += table.column(0).num_chunks

    def verify(self) -> None:
        """Raise `InvalidDataError` if the numbers of rows or batches are not those of the file."""
        dataset = self.dataset
        if (self.rows, self.batches) != (dataset.rows, dataset.batches):
            raise InvalidDataError(
                f"the client received {self.rows} rows in {self.batches} batches; "
                f"the file has {dataset.rows} rows in {dataset.batches} batches"
            )

    def _compare(self, batch: pa.RecordBatch) -> None:
        index = self._compared
        if index >= self.dataset.batches:
            raise InvalidDataError(f"the client received more batches than the file has, {index}")
        if not batch.schema.equals(SCHEMA) or not batch.equals(self._file.get_batch(index)):
            raise InvalidDataError(f"batch {index} differs from that of the file")
        self._compared += 1


def _sum_columns(batch: pa.RecordBatch) -> None:
    for column in batch.columns:
        pc.sum(column)


def _sum_arrays(batch: pa.RecordBatch) -> None:
    for column in batch.columns:
        column.to_numpy().sum()


class Backend(Protocol):
    """One technique to transfer batches from a server to a client.

    The runner, the server and the client each have an instance in their process, so creating one
    must be cheap. All methods may raise any exception.
    """

    name: str
    """The name in the report."""
    summary: str
    """A description of one line."""
    in_process: bool
    """Whether the client's process also serves the file."""
    baseline: str | None
    """The name of the backend that the report compares it with; None for such a backend."""

    def unavailable_reason(self) -> str | None:
        """Return why the backend cannot run on this machine, or None if it can."""
        ...

    def serve(self, dataset: BatchFile) -> AbstractContextManager[str]:
        """Serve a file from this process while the context lasts, on its own threads.

        The value of the context is the address for `read`.
        """
        ...

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Connect, read the whole file once, pass it to the consumer, and disconnect."""
        ...


CA_MARK = "#ca="
"""The mark in an address between the URI and the path of the authority's certificate."""


class Certificates(NamedTuple):
    """The paths of PEM files."""

    authority: Path
    """The certificate of the authority, which clients trust."""
    chain: Path
    """The certificate of the server, for 127.0.0.1 and localhost."""
    key: Path
    """The private key of the server."""


def missing_package() -> str | None:
    """Return why no certificates can be made, or None if they can."""
    try:
        import trustme  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        return f"it needs trustme: {install_hint('bench')}"
    return None


def make_certificates(folder: Path, name: str) -> Certificates:
    """Write certificates for a server on this host to a folder."""
    import trustme

    paths = Certificates(*(folder / f"{name}-{part}.pem" for part in ("ca", "cert", "key")))
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(paths.authority))
    paths.chain.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    server.private_key_pem.write_to_path(str(paths.key))
    return paths


def write_parquet(dataset: BatchFile, name: str) -> Path:
    """Write the rows of a file as Parquet, with pyarrow's default encodings and compression.

    Each record batch becomes a row group. The file lies beside the other one.
    """
    from pyarrow import parquet

    path = Path(dataset.path).with_name(f"{name}.parquet")
    with pa.memory_map(dataset.path) as source:
        table = pa.ipc.open_file(source).read_all()
        parquet.write_table(table, path, row_group_size=dataset.batch_rows)
    return path
