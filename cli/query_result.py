"""The result of a query in SQL, in the form of a stream for ``splitarrow fetch``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


class QueryResult:
    """A table that is iterated over like a stream: see `BatchStream`.

    Parameters
    ----------
    table : pyarrow.Table
        The result.
    """

    transport = "sql"
    footer_metadata = None

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema = table.schema
        """The schema of the result."""
        self.rows_received = table.num_rows
        """The number of rows."""
        self.bytes_received = table.nbytes
        """The size of the result in bytes."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._table.to_batches())

    def __enter__(self) -> QueryResult:
        return self

    def __exit__(self, *_error: object) -> None:
        pass
