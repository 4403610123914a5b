"""Datasets in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import DatasetError, NotFoundError, RemoteError, UsageError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.base import Encoding
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.table import BATCH_BYTES, ReaderDataset, TableDataset

from ..property.arrow_data import arrays_of_all_types
from .reading import PLAIN, asking, numbers, rows_without_columns, serve, table_of

ARRAYS = arrays_of_all_types()


class Frame:
    """Something that gives Arrow data as data frames of other libraries do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "make", [table_of, lambda b: b, tuple, lambda b: Frame(table_of(b))], ids=str
)
def test_tables_batches_and_frames(make: Any) -> None:
    sent = numbers()
    dataset = open_dataset(make(sent))
    assert (dataset.kind, dataset.rows) == ("table", 300)
    assert dataset.nbytes is not None
    assert dataset.nbytes > 300 * 9
    for _ in range(2):
        served = serve(dataset)
        assert not served.blocking
        assert served.batches == sent
        assert served.rows == 300
    part = serve(dataset, columns=("d", "n"), limit=150, batch_rows=40)
    assert part.table == table_of(sent).select(["d", "n"]).slice(0, 150)
    assert serve(dataset, compression="zstd").blocking
    assert serve(dataset, Encoding(compression="lz4", batch_rows=10)).batches == [
        batch.slice(start, 10) for batch in sent for start in range(0, 100, 10)
    ]
    dataset.close()


def test_one_batch() -> None:
    (batch,) = numbers(1)
    assert serve(open_dataset(batch)).batches == [batch]
    assert serve(open_dataset(batch.slice(10, 5))).batches == [batch.slice(10, 5)]


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type(name: str) -> None:
    chunks: Any = pa.chunked_array([ARRAYS[name], ARRAYS[name][1:3], ARRAYS[name][:0]])
    table = pa.table({"x": chunks})
    for asked in asking({}, {"compression": "lz4"}, {"batch_rows": 2}, {"limit": 6}):
        assert serve(open_dataset(table), **asked).table.equals(table.slice(0, asked.get("limit")))


def test_no_rows_and_no_columns() -> None:
    schema = pa.schema([("a", pa.int8())])
    assert serve(open_dataset(schema.empty_table())).schema == schema
    rows = rows_without_columns(7)
    assert serve(open_dataset(rows)).rows == 7


def test_very_large_batches_leave_in_slices() -> None:
    rows = BATCH_BYTES // 8 * 5 // 2
    table = pa.table({"n": pa.repeat(pa.scalar(7, pa.int64()), rows)})
    source = open_dataset(table).open(Request("name"), PLAIN)
    sizes = [message.body_length for group in source for message in group]
    source.close()
    assert sum(sizes) == 8 * rows
    assert len(sizes) == 1 + 3
    assert max(sizes) <= BATCH_BYTES


def test_slices_of_views_do_not_carry_the_whole() -> None:
    texts = pa.array([f"a text that is not inlined {n}" for n in range(10_000)], pa.string_view())
    dataset = open_dataset(pa.table({"t": texts}).slice(100, 10))
    assert serve(dataset).messages[1].body_length < 1000
    served = serve(open_dataset(pa.table({"t": texts})), batch_rows=10, limit=100)
    assert all(message.body_length < 1000 for message in served.messages)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(UsageError, match="empty list of record batches has no schema"):
        open_dataset([])
    other = pa.record_batch({"n": [1]})
    with pytest.raises(UsageError, match="record batch 1 differs from the first one: it lacks"):
        open_dataset([numbers(1)[0], other])
    for nothing in (7, None, [1, 2], {"a": [1]}, b"path"):
        with pytest.raises(UsageError, match="a dataset is a path, an Arrow table"):
            open_dataset(nothing)
    with pytest.raises(NotFoundError):
        serve(TableDataset(other), columns=("m",))


def test_a_reader_is_read_once() -> None:
    sent = numbers()
    dataset = open_dataset(pa.RecordBatchReader.from_batches(sent[0].schema, sent))
    assert (dataset.kind, dataset.rows, dataset.nbytes) == ("record batch reader", None, None)
    with pytest.raises(NotFoundError):
        serve(dataset, columns=("nothing",))
    served = serve(dataset, columns=("n", "d"), limit=150)
    assert served.table == table_of(sent).select(["n", "d"]).slice(0, 150)
    with pytest.raises(RemoteError, match="was read once already") as raised:
        serve(dataset)
    assert raised.value.code == "FAILED_PRECONDITION"
    dataset.close()


def test_a_reader_yields_as_it_goes() -> None:
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(numbers(4, 40_000)):
            taken.append(number)
            yield batch

    schema = numbers(1)[0].schema
    source = ReaderDataset(pa.RecordBatchReader.from_batches(schema, batches())).open(
        Request("name"), PLAIN
    )
    assert source.blocking
    groups = iter(source)
    next(groups)
    assert taken == []
    next(groups)
    assert taken == [0]
    source.close()
    assert taken == [0]


def test_a_reader_that_fails() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbers(1)[0]
        raise KeyError("nothing more")

    reader = pa.RecordBatchReader.from_batches(numbers(1)[0].schema, batches())
    with pytest.raises(DatasetError, match=r"record batch reader failed: .*nothing more"):
        serve(open_dataset(reader))


def test_a_reader_nobody_read_is_closed() -> None:
    reader = pa.RecordBatchReader.from_batches(numbers(1)[0].schema, numbers())
    dataset = open_dataset(reader)
    dataset.close()
    dataset.close()
    with pytest.raises(RemoteError, match="once"):
        serve(dataset)
