"""The result of a query as a stream."""

from __future__ import annotations

import pyarrow as pa
import pytest

from splitarrow.client.dataset.sql import QueryStream
from splitarrow.errors import ClosedError

TABLE = pa.Table.from_batches(pa.table({"n": [1, 2, 3]}).to_batches(2))
BATCHES = TABLE.to_batches()


def test_the_result_is_counted_as_it_is_returned() -> None:
    with QueryStream(TABLE) as stream:
        assert (stream.schema, stream.transport) == (TABLE.schema, "sql")
        assert (stream.rows_received, stream.bytes_received) == (0, 0)
        assert next(stream) == BATCHES[0]
        assert stream.rows_received == 2
        assert stream.bytes_received == BATCHES[0].get_total_buffer_size()
        assert list(stream) == BATCHES[1:]
        assert stream.rows_received == 3
        assert stream.bytes_received == sum(batch.get_total_buffer_size() for batch in BATCHES)
        assert stream.is_exhausted
        assert list(stream) == []
    assert repr(stream).startswith("<splitarrow.DatasetStream 'query': read to its end, sql, 3 row")


@pytest.mark.parametrize("end", [QueryStream.cancel, QueryStream.close])
def test_a_result_that_is_closed_or_cancelled_is_dropped(end: object) -> None:
    stream = QueryStream(TABLE)
    closed: list[bool] = []
    stream.on_close = lambda: closed.append(True)
    next(stream)
    assert callable(end)
    end(stream)
    assert len(closed) == 1
    for _ in range(2):
        with pytest.raises(ClosedError, match="the stream is closed"):
            next(stream)
    assert (stream.rows_received, stream.is_exhausted) == (2, False)
    assert not stream._batches  # The memory of the result is free.
