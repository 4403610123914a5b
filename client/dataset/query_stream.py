"""The result of a query in SQL as a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...errors import UsageError
from .dataset_stream import DatasetStream


class QueryStream(DatasetStream):
    """The result of a SELECT statement over datasets, which is in memory. See `DatasetStream`.

    Parameters
    ----------
    table : pyarrow.Table
        The result.
    """

    def __init__(self, table: pa.Table) -> None:
        super().__init__("query", table.schema, (), 1, 0)
        self._batches = deque(table.to_batches())
        self._rows = self._nbytes = 0

    @property
    def transport(self) -> str:
        """``sql``."""
        return "sql"

    @property
    def rows_received(self) -> int:
        """The number of rows that were returned so far."""
        return self._rows

    @property
    def bytes_received(self) -> int:
        """The size of the batches that were returned so far, in bytes."""
        return self._nbytes

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch; see `DatasetStream.__next__`."""
        if self._closed or not self._batches:
            return super().__next__()
        batch = self._batches.popleft()
        self._rows += batch.num_rows
        self._nbytes += batch.get_total_buffer_size()
        return batch

    def cancel(self) -> None:
        """Drop the rest of the result."""
        self.close()

    def close(self) -> None:
        """Drop the rest of the result. Idempotent."""
        self._batches = deque[pa.RecordBatch]()
        super().close()


def check_no_selection(name: str | None, selection: Mapping[str, Any]) -> None:
    """Refuse arguments that select from one dataset beside a query.

    Parameters
    ----------
    name : str or None
        The dataset that the caller named.
    selection : mapping of str to object
        The arguments. None stands for those that the caller left out.

    Raises
    ------
    UsageError
        If there are any.
    """
    given = [key for key, value in selection.items() if value is not None]
    if name is not None:
        given.insert(0, repr(name))
    if given:
        raise UsageError(f"sql selects by itself; leave {', '.join(given)} out")
