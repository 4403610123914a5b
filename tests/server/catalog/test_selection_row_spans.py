"""Rows by their numbers: a stream has the slice of the table, before filter, offset and limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.catalog import read_dataset
from helpers.sources import BATCH_ROWS, DATASET_TYPES, ROWS, encode_filter, make_dataset, make_table
from splitarrow.errors import InvalidRequestError, RemoteError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Encoding, ServedDataset
from splitarrow.server.catalog.selection import resolve_rows

SPANS = [
    (0, 1),
    (0, ROWS),
    (BATCH_ROWS, 2 * BATCH_ROWS),
    (BATCH_ROWS - 1, BATCH_ROWS + 1),
    (120, 870),
    (ROWS - 1, ROWS),
    (ROWS, ROWS),
    (7, 7),
]


def resolve(dataset: ServedDataset, **fields: Any) -> Request:
    return resolve_rows(dataset, Request("data", **fields), Encoding())


def read(dataset: ServedDataset, **fields: Any) -> pa.Table:
    request = resolve(dataset, **fields)
    names = ("batches", "rows", "filter", "offset", "limit", "columns", "shard", "version")
    return read_dataset(dataset, **{name: getattr(request, name) for name in names}).table


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_rows_are_selected_before_everything_else(tmp_path: Path, dataset_type: str) -> None:
    dataset = make_dataset(dataset_type, tmp_path)
    wanted = pc.field("n") >= 500
    row_filter = encode_filter(wanted, dataset.schema)
    for begin, end in SPANS:
        expected = make_table().slice(begin, end - begin)
        assert read(dataset, rows=(begin, end)).equals(expected)
        columns = read(dataset, rows=(begin, end), columns=("w", "n"), limit=5)
        assert columns.equals(expected.select(["w", "n"]).slice(0, 5))
        rest = read(dataset, rows=(begin, end), offset=100, limit=300)
        assert rest.equals(expected.slice(100, 300))
        matches = read(dataset, rows=(begin, end), filter=row_filter, offset=1, limit=200)
        assert matches.equals(expected.filter(wanted).slice(1, 200))


@pytest.mark.parametrize("dataset_type", ["file", "arrow directory"])
def test_whole_record_batches_are_sent_unchanged(tmp_path: Path, dataset_type: str) -> None:
    dataset = make_dataset(dataset_type, tmp_path)
    request = resolve(dataset, rows=(BATCH_ROWS, 2 * BATCH_ROWS))
    assert (request.offset, request.limit, request.rows) == (None, None, None)
    assert not read_dataset(dataset, batches=request.batches).blocking


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_rows_of_a_shard_and_of_a_version(tmp_path: Path, dataset_type: str) -> None:
    dataset = make_dataset(dataset_type, tmp_path)
    size = ROWS // len(dataset.shards)
    last = len(dataset.shards) - 1
    expected = make_table().slice(last * size + 3, 50)
    assert read(dataset, rows=(3, 53), shard=last).equals(expected)
    assert resolve(dataset, rows=(3, 53)).version == dataset.version
    with pytest.raises(InvalidRequestError, match=rf"no rows 0:{size + 1}; there are {size}, coun"):
        resolve(dataset, rows=(0, size + 1), shard=last)
    with pytest.raises(RemoteError, match="has changed"):
        resolve(dataset, rows=(0, 1), version="another")


def test_rows_of_a_reader_are_refused() -> None:
    dataset = open_dataset(make_table().to_reader())
    with pytest.raises(RemoteError, match="no random access"):
        resolve(dataset, rows=(0, 1))


def test_rows_and_record_batches_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="selects both rows and batches"):
        resolve(make_dataset("table", tmp_path), rows=(0, 1), batches=(0, 1))
