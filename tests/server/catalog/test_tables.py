"""Datasets in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.catalog import (
    DEFAULTS,
    batch_without_columns,
    number_batches,
    read_dataset,
    requests,
    to_table,
)
from splitarrow.errors import DatasetError, NotFoundError, RemoteError, UsageError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.catalog.tables import BATCH_BYTES, ReaderDataset, TableDataset

ARRAYS = make_arrays_of_all_types()


class Frame:
    """An object that exports Arrow data, as the data frames of other libraries do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "make",
    [to_table, lambda b: b, tuple, lambda b: Frame(to_table(b))],
    ids=["table", "list", "tuple", "data frame"],
)
def test_tables_batches_and_data_frames_are_served(make: Any) -> None:
    sent = number_batches()
    dataset = open_dataset(make(sent))
    assert (dataset.kind, dataset.rows) == ("table", 300)
    assert dataset.nbytes is not None
    assert dataset.nbytes > 300 * 9
    for _ in range(2):
        result = read_dataset(dataset)
        assert not result.blocking
        assert result.batches == sent
        assert result.rows == 300
    part = read_dataset(dataset, columns=("d", "n"), limit=150, batch_rows=40)
    assert part.table == to_table(sent).select(["d", "n"]).slice(0, 150)
    assert read_dataset(dataset, compression="zstd").blocking
    assert read_dataset(dataset, Encoding(compression="lz4", batch_rows=10)).batches == [
        batch.slice(start, 10) for batch in sent for start in range(0, 100, 10)
    ]
    dataset.close()


def test_a_single_batch_is_a_dataset() -> None:
    (batch,) = number_batches(1)
    assert read_dataset(open_dataset(batch)).batches == [batch]
    assert read_dataset(open_dataset(batch.slice(10, 5))).batches == [batch.slice(10, 5)]


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_is_served(name: str) -> None:
    chunks: Any = pa.chunked_array([ARRAYS[name], ARRAYS[name][1:3], ARRAYS[name][:0]])
    table = pa.table({"x": chunks})
    for fields in requests({}, {"compression": "lz4"}, {"batch_rows": 2}, {"limit": 6}):
        result = read_dataset(open_dataset(table), **fields)
        assert result.table.equals(table.slice(0, fields.get("limit")))


def test_a_table_may_have_no_rows_or_no_columns() -> None:
    schema = pa.schema([("a", pa.int8())])
    assert read_dataset(open_dataset(schema.empty_table())).schema == schema
    rows = batch_without_columns(7)
    assert read_dataset(open_dataset(rows)).rows == 7


def test_very_large_batches_are_sent_in_slices() -> None:
    rows = BATCH_BYTES // 8 * 5 // 2
    table = pa.table({"n": pa.repeat(pa.scalar(7, pa.int64()), rows)})
    source = open_dataset(table).open(Request("name"), DEFAULTS)
    sizes = [message.body_length for group in source for message in group]
    source.close()
    assert sum(sizes) == 8 * rows
    assert len(sizes) == 1 + 3
    assert max(sizes) <= BATCH_BYTES


def test_slices_of_views_carry_only_their_rows() -> None:
    texts = pa.array([f"a text that is not inlined {n}" for n in range(10_000)], pa.string_view())
    dataset = open_dataset(pa.table({"t": texts}).slice(100, 10))
    assert read_dataset(dataset).messages[1].body_length < 1000
    result = read_dataset(open_dataset(pa.table({"t": texts})), batch_rows=10, limit=100)
    assert all(message.body_length < 1000 for message in result.messages)


def test_other_objects_are_refused() -> None:
    with pytest.raises(UsageError, match="empty list of record batches has no schema"):
        open_dataset([])
    other = pa.record_batch({"n": [1]})
    with pytest.raises(UsageError, match="record batch 1 differs from the first one: it lacks"):
        open_dataset([number_batches(1)[0], other])
    for source in (7, None, [1, 2], {"a": [1]}, b"path"):
        with pytest.raises(UsageError, match="expected a path, an Arrow table"):
            open_dataset(source)
    with pytest.raises(NotFoundError):
        read_dataset(TableDataset(other), columns=("m",))


def test_a_record_batch_reader_is_read_once() -> None:
    sent = number_batches()
    dataset = open_dataset(pa.RecordBatchReader.from_batches(sent[0].schema, sent))
    assert (dataset.kind, dataset.rows, dataset.nbytes) == ("record batch reader", None, None)
    with pytest.raises(NotFoundError):
        read_dataset(dataset, columns=("nothing",))
    result = read_dataset(dataset, columns=("n", "d"), limit=150)
    assert result.table == to_table(sent).select(["n", "d"]).slice(0, 150)
    with pytest.raises(RemoteError, match="can be read only once") as raised:
        read_dataset(dataset)
    assert raised.value.code == "FAILED_PRECONDITION"
    dataset.close()


def test_a_record_batch_reader_is_read_as_its_batches_are_sent() -> None:
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(number_batches(4, 40_000)):
            taken.append(number)
            yield batch

    schema = number_batches(1)[0].schema
    source = ReaderDataset(pa.RecordBatchReader.from_batches(schema, batches())).open(
        Request("name"), DEFAULTS
    )
    assert source.blocking
    groups = iter(source)
    next(groups)
    assert taken == []
    next(groups)
    assert taken == [0]
    source.close()
    assert taken == [0]


def test_a_failing_record_batch_reader_fails_the_stream() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield number_batches(1)[0]
        raise KeyError("nothing more")

    reader = pa.RecordBatchReader.from_batches(number_batches(1)[0].schema, batches())
    with pytest.raises(DatasetError, match=r"record batch reader failed: .*nothing more"):
        read_dataset(open_dataset(reader))


def test_closing_the_dataset_closes_an_unread_reader() -> None:
    reader = pa.RecordBatchReader.from_batches(number_batches(1)[0].schema, number_batches())
    dataset = open_dataset(reader)
    dataset.close()
    dataset.close()
    with pytest.raises(RemoteError, match="once"):
        read_dataset(dataset)
