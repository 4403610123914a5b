"""Filters, offsets, shards and versions: a stream equals what pyarrow computes from the table."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.arrow_data import make_arrays_of_all_types
from helpers.catalog import number_batches, read_dataset, to_table
from helpers.files import write_file, write_parquet
from helpers.sources import BATCH_ROWS, DATASET_TYPES, ROWS, encode_filter, make_dataset, make_table
from splitarrow.errors import DatasetError, InvalidRequestError, RemoteError
from splitarrow.filters import encode_filter as encode_condition
from splitarrow.server.catalog.catalog import open_dataset

FILTERS = {
    "number": pc.field("n") >= 600,
    "text": pc.field("t") == "text 7",
    "word": pc.field("d") == "word 3",
    "nested": pc.field("s", "x") < 30,
    "decimal": pc.field("m") > pa.scalar(Decimal(200), pa.decimal128(12, 2)),
    "nulls": pc.field("f").is_null() & pc.field("b"),
    "none": pc.field("n") < 0,
    "all": pc.field("n") >= 0,
    "among": pc.field("n").isin([3, 500, 999]),
}
DIRECTORIES = [dataset_type for dataset_type in DATASET_TYPES if "directory" in dataset_type]


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_the_rows_that_pyarrow_keeps(
    tmp_path: Path, dataset_type: str, name: str
) -> None:
    source, expected = make_dataset(dataset_type, tmp_path), make_table().filter(FILTERS[name])
    row_filter = encode_filter(
        FILTERS[name], _plain(source.schema) if name == "word" else source.schema
    )
    result = read_dataset(source, filter=row_filter)
    assert result.table.equals(expected)
    assert result.rows == len(expected)
    assert all(message.rows for message in result.messages if message.body and _is_batch(message))
    result = read_dataset(source, filter=row_filter, columns=("l", "n"), offset=2, limit=5)
    assert result.table.equals(expected.select(["l", "n"]).slice(2, 5))
    result = read_dataset(
        source, filter=row_filter, columns=("t",), batch_rows=3, compression="zstd"
    )
    assert result.table.equals(expected.select(["t"]))


def _is_batch(message: Any) -> bool:
    from splitarrow.formats.arrow.message import HeaderType, read_message_info

    return read_message_info(message.metadata).header_type is HeaderType.RECORD_BATCH


def _plain(schema: pa.Schema) -> pa.Schema:
    index = schema.get_field_index("d")
    return schema.set(index, pa.field("d", pa.string()))


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
@pytest.mark.parametrize(
    "offset", [0, 1, 99, 100, 101, BATCH_ROWS - 1, BATCH_ROWS, BATCH_ROWS + 1, 500, 999, 1000, 5000]
)
def test_an_offset_skips_rows(tmp_path: Path, dataset_type: str, offset: int) -> None:
    source = make_dataset(dataset_type, tmp_path)
    result = read_dataset(source, offset=offset)
    assert result.table.equals(make_table().slice(offset))
    boundary = offset % BATCH_ROWS in (0, 100 if dataset_type == "arrow directory" else 0)
    if dataset_type in ("file", "stream", "arrow directory"):
        assert result.blocking is not (boundary or offset > ROWS)
    for limit, columns in ((7, ("n",)), (300, ("d", "s")), (0, None)):
        result = read_dataset(source, offset=offset, limit=limit, columns=columns, batch_rows=100)
        expected = make_table() if columns is None else make_table().select(list(columns))
        assert result.table.equals(expected.slice(offset, limit))


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_the_shards_in_order_are_the_dataset(tmp_path: Path, dataset_type: str) -> None:
    source = make_dataset(dataset_type, tmp_path)
    count = len(source.shards)
    assert count == (4 if dataset_type in DIRECTORIES else 1)
    assert sum(shard.rows or 0 for shard in source.shards) == source.rows == ROWS
    assert sum(shard.nbytes or 0 for shard in source.shards) == source.nbytes
    parts = [read_dataset(source, shard=index).table for index in range(count)]
    assert [len(part) for part in parts] == [shard.rows for shard in source.shards]
    assert pa.concat_tables(parts).equals(make_table())
    last = read_dataset(source, shard=count - 1, offset=30, limit=5, columns=("t",)).table
    assert last.equals(parts[-1].select(["t"]).slice(30, 5))
    with pytest.raises(InvalidRequestError, match=f"no shard {count}; the dataset has {count}"):
        source.open(_request(shard=count), _plain_encoding())


def _request(**fields: Any) -> Any:
    from splitarrow.protocol.request import Request

    return Request("name", **fields)


def _plain_encoding() -> Any:
    from splitarrow.server.catalog.dataset import Encoding

    return Encoding()


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_another_version_is_refused(tmp_path: Path, dataset_type: str) -> None:
    source = make_dataset(dataset_type, tmp_path)
    version = source.version
    assert version == source.version
    assert read_dataset(source, version=version).table.equals(make_table())
    if dataset_type != "table":
        assert open_dataset(_path(source)).version == version  # a server that starts again
        file = next(iter(sorted(tmp_path.iterdir())))
        os.utime(file, ns=(1, 1))
        assert source.version != version
    else:
        version = "other"
    with pytest.raises(RemoteError, match="'name' has changed") as caught:
        read_dataset(source, version=version)
    assert caught.value.code == "FAILED_PRECONDITION"
    assert read_dataset(source, version=source.version).rows == ROWS


def _path(source: Any) -> Path:
    return Path(source.location)


def test_a_record_batch_reader_has_one_shard_and_accepts_an_offset() -> None:
    batches = number_batches()
    source = open_dataset(pa.RecordBatchReader.from_batches(batches[0].schema, batches))
    assert [tuple(shard) for shard in source.shards] == [(None, None)]
    with pytest.raises(RemoteError, match="has changed"):
        read_dataset(source, version="other")
    result = read_dataset(source, offset=150, version=source.version, shard=0)
    assert result.table.equals(to_table(batches).slice(150))


@pytest.mark.parametrize(
    ("row_filter", "reason"),
    [
        ("AAAA", "not a Substrait extended expression"),
        (urlsafe_b64encode(b"\xff" * 200).decode(), "not a Substrait extended expression"),
        ("A", "base64url"),
        (
            encode_filter(pc.field("n") + 1, make_table().schema),
            "has the type int64; expected bool",
        ),
        (
            encode_filter(pc.field("o") > 1, pa.schema({"o": pa.int8()})),
            "there is no column 'o'",
        ),
        (encode_filter(pc.field("t") > 1, pa.schema({"t": pa.int8()})), "cannot be applied"),
        (
            encode_filter(pc.field("q", "x") > 1, pa.schema({"q": pa.struct([("x", pa.int8())])})),
            r"there is no column 'q\.x'",
        ),
        (
            urlsafe_b64encode(b"urn:arrow:substrait_simple_extension_function").decode(),
            "not a Substrait extended expression",
        ),
    ],
)
@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_the_error_for_an_invalid_filter_has_one_line(
    tmp_path: Path, dataset_type: str, row_filter: str, reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        read_dataset(make_dataset(dataset_type, tmp_path), filter=row_filter)
    assert "\n" not in str(caught.value)


def test_a_filter_that_fails_on_a_value_is_refused(tmp_path: Path) -> None:
    source = make_dataset("file", tmp_path)
    row_filter = encode_filter(pc.divide(pc.field("n"), pc.field("n")) == 1, source.schema)
    with pytest.raises(InvalidRequestError, match="cannot be applied: divide by zero"):
        read_dataset(source, filter=row_filter)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_mutated_filters_are_applied_or_refused(data: st.DataObject) -> None:
    schema = pa.schema({"n": pa.int64(), "t": pa.string()})
    condition = (pc.field("n") > 3) & (pc.field("t") == "x")
    message = bytearray(condition.to_substrait(schema))
    if data.draw(st.booleans()):
        text = encode_condition("n BETWEEN 3 AND 4.5 OR t IN ('x', NULL) OR -n < 2 * n", schema)
        message = bytearray(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InvalidRequestError):
        read_dataset(open_dataset(make_table(10)), filter=urlsafe_b64encode(message).decode())


@pytest.mark.parametrize("name", make_arrays_of_all_types())
def test_columns_of_every_type_can_be_filtered_and_skipped(tmp_path: Path, name: str) -> None:
    array = make_arrays_of_all_types()[name]
    rows = pa.array(range(len(array)), pa.int8())
    batch = pa.RecordBatch.from_arrays([rows, array], ["n", "x"])
    source = open_dataset(write_file(tmp_path / "x.arrow", [batch, batch]))
    row_filter = encode_filter(
        (pc.field("n") == 0) | (pc.field("n") == 2), pa.schema({"n": pa.int8(), "x": pa.bool_()})
    )
    result = read_dataset(source, filter=row_filter)
    expected = [batch.slice(0, 1), batch.slice(2, 1)] * 2
    assert [row for part in result.batches for row in _rows(part)] == [
        row for part in expected for row in _rows(part)
    ]
    result = read_dataset(source, offset=len(array) + 1)
    assert [_rows(part) for part in result.batches] == [_rows(batch.slice(1))]


def _rows(batch: pa.RecordBatch) -> list[Any]:
    return [_value(value) for value in batch.column(1)]


def _value(scalar: Any) -> Any:
    try:
        return repr(scalar.as_py())
    except ValueError:  # it has nanoseconds
        return scalar.value


def test_row_groups_that_cannot_match_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    source = make_dataset("parquet", tmp_path)
    seen: list[list[int]] = []
    iter_batches = pq.ParquetFile.iter_batches

    def record(self: Any, *args: Any, row_groups: list[int], **options: Any) -> Any:
        seen.append(row_groups)
        return iter_batches(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", record)
    result = read_dataset(
        source, filter=encode_filter(pc.field("n") == 600, source.schema), columns=("t",)
    )
    assert result.table.to_pydict() == {"t": [None]}
    assert read_dataset(source, offset=510).rows == 490
    other = pa.schema({"t": pa.string(), "n": pa.int64()})
    assert read_dataset(source, filter=encode_filter(pc.field("n") == 600, other)).rows == 1
    assert seen == [[2], [2, 3], [2]]


def test_filters_may_refer_to_partition_columns(tmp_path: Path) -> None:
    for year in (2001, 2002):
        write_parquet(tmp_path / f"year={year}" / "x.parquet", make_table(10).select(["n", "t"]))
    source = open_dataset(tmp_path)
    row_filter = encode_filter((pc.field("year") == 2002) & (pc.field("n") > 7), source.schema)
    result = read_dataset(source, filter=row_filter, columns=("n", "year"))
    assert result.table.to_pydict() == {"n": [8, 9], "year": [2002, 2002]}
    result = read_dataset(source, filter=row_filter, columns=("t",))
    assert result.rows == 2
    assert read_dataset(source, offset=12, columns=("year", "n")).table.to_pydict() == {
        "year": [2002] * 8,
        "n": list(range(2, 10)),
    }


def test_a_filtered_dictionary_with_invalid_indices_is_refused(tmp_path: Path) -> None:
    bad = pa.DictionaryArray.from_arrays(pa.array([0, 100], pa.int8()), pa.array(["a"]), safe=False)
    path = write_file(tmp_path / "x.arrow", [pa.record_batch({"d": bad})])
    row_filter = encode_filter(pc.field("d") == "a", pa.schema({"d": pa.string()}))
    with pytest.raises(DatasetError, match="has invalid data"):
        read_dataset(open_dataset(path), filter=row_filter)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(DATASET_TYPES),
    st.none() | st.sampled_from([name for name in FILTERS if name != "word"]),
    st.none() | st.permutations(["n", "t", "d", "l"]).map(tuple),
    st.none() | st.integers(0, 1100),
    st.none() | st.integers(0, 1100),
    st.none() | st.integers(1, 400),
)
def test_every_combination_equals_what_pyarrow_computes(
    tmp_path_factory: pytest.TempPathFactory,
    dataset_type: str,
    name: str | None,
    columns: tuple[str, ...] | None,
    offset: int | None,
    limit: int | None,
    batch_rows: int | None,
) -> None:
    source = make_dataset(dataset_type, tmp_path_factory.mktemp("x"))
    expected = make_table() if name is None else make_table().filter(FILTERS[name])
    if columns is not None:
        expected = expected.select(list(columns))
    result = read_dataset(
        source,
        filter=None if name is None else encode_filter(FILTERS[name], source.schema),
        columns=columns,
        offset=offset,
        limit=limit,
        batch_rows=batch_rows,
    )
    assert result.table.equals(expected.slice(offset or 0, limit))
    assert all(batch.num_rows <= (batch_rows or ROWS) for batch in result.batches)


def _batch_limits(dataset_type: str) -> list[int]:
    """Return the first row of each stored record batch or row group, and the end of the last."""
    if dataset_type == "arrow directory":
        halves = [(n, n + 100) for n in range(0, ROWS, BATCH_ROWS)]
        return [row for pair in halves for row in pair] + [ROWS]
    return list(range(0, ROWS + 1, BATCH_ROWS))


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_batches_are_selected_before_everything_else(tmp_path: Path, dataset_type: str) -> None:
    source, limits = make_dataset(dataset_type, tmp_path), _batch_limits(dataset_type)
    late = pc.field("n") >= 300
    row_filter = encode_filter(late, source.schema)
    for first in range(len(limits)):
        for end in range(first, len(limits)):
            expected = make_table().slice(limits[first], limits[end] - limits[first])
            result = read_dataset(source, batches=(first, end))
            assert result.table.equals(expected)
            if dataset_type in ("file", "stream", "arrow directory"):
                assert not result.blocking  # the messages are sent unchanged
            columns = read_dataset(source, batches=(first, end), columns=("w", "n")).table
            assert columns.equals(expected.select(["w", "n"]))
            rest = read_dataset(source, batches=(first, end), offset=120, limit=300).table
            assert rest.equals(expected.slice(120, 300))
            matches = read_dataset(source, batches=(first, end), filter=row_filter, offset=1)
            assert matches.table.equals(expected.filter(late).slice(1))


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_batches_that_do_not_exist_are_refused(tmp_path: Path, dataset_type: str) -> None:
    source, count = make_dataset(dataset_type, tmp_path), len(_batch_limits(dataset_type)) - 1
    message = f"no record batches 1:{count + 1}; there are {count}, counted from 0"
    with pytest.raises(InvalidRequestError, match=message):
        source.open(_request(batches=(1, count + 1)), _plain_encoding())


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_the_rows_of_batches_are_counted(tmp_path: Path, dataset_type: str) -> None:
    source, limits = make_dataset(dataset_type, tmp_path), _batch_limits(dataset_type)
    spans = [make_table().slice(begin, end - begin) for begin, end in pairwise(limits)]

    def count(**fields: Any) -> list[int]:
        return source.count_rows(_request(**fields), _plain_encoding())

    assert count() == [len(span) for span in spans]
    last_shard = len(source.shards) - 1
    in_last = spans[-len(spans) // (last_shard + 1) :]
    assert count(shard=last_shard) == [len(span) for span in in_last]
    for expression in FILTERS.values():
        if expression is FILTERS["word"]:
            continue
        row_filter = encode_filter(expression, source.schema)
        assert count(filter=row_filter) == [len(span.filter(expression)) for span in spans]
    with pytest.raises(RemoteError, match="has changed"):
        count(version="another")
