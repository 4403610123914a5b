"""Filters, offsets, shards and versions: what is served equals what pyarrow makes of the table."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitarrow.errors import DatasetError, InvalidRequestError, RemoteError
from splitarrow.server.catalog.catalog import open_dataset

from ..catalog.reading import numbers, serve, table_of, write_file, write_parquet
from ..property.arrow_data import arrays_of_all_types
from .sources import BATCH_ROWS, KINDS, ROWS, dataset, encoded, table

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
SHARDED = [kind for kind in KINDS if "directory" in kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_leaves_the_rows_that_pyarrow_leaves(tmp_path: Path, kind: str, name: str) -> None:
    source, expected = dataset(kind, tmp_path), table().filter(FILTERS[name])
    asked = encoded(FILTERS[name], _plain(source.schema) if name == "word" else source.schema)
    served = serve(source, filter=asked)
    assert served.table.equals(expected)
    assert served.rows == len(expected)
    assert all(message.rows for message in served.messages if message.body and _is_batch(message))
    served = serve(source, filter=asked, columns=("l", "n"), offset=2, limit=5)
    assert served.table.equals(expected.select(["l", "n"]).slice(2, 5))
    served = serve(source, filter=asked, columns=("t",), batch_rows=3, compression="zstd")
    assert served.table.equals(expected.select(["t"]))


def _is_batch(message: Any) -> bool:
    from splitarrow.formats.arrow.message import HeaderType, message_facts

    return message_facts(message.metadata).header_type is HeaderType.RECORD_BATCH


def _plain(schema: pa.Schema) -> pa.Schema:
    index = schema.get_field_index("d")
    return schema.set(index, pa.field("d", pa.string()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "offset", [0, 1, 99, 100, 101, BATCH_ROWS - 1, BATCH_ROWS, BATCH_ROWS + 1, 500, 999, 1000, 5000]
)
def test_an_offset_skips_rows(tmp_path: Path, kind: str, offset: int) -> None:
    source = dataset(kind, tmp_path)
    served = serve(source, offset=offset)
    assert served.table.equals(table().slice(offset))
    boundary = offset % BATCH_ROWS in (0, 100 if kind == "arrow directory" else 0)
    if kind in ("file", "stream", "arrow directory"):
        assert served.blocking is not (boundary or offset > ROWS)
    for limit, columns in ((7, ("n",)), (300, ("d", "s")), (0, None)):
        served = serve(source, offset=offset, limit=limit, columns=columns, batch_rows=100)
        expected = table() if columns is None else table().select(list(columns))
        assert served.table.equals(expected.slice(offset, limit))


@pytest.mark.parametrize("kind", KINDS)
def test_shards_make_up_the_dataset(tmp_path: Path, kind: str) -> None:
    source = dataset(kind, tmp_path)
    count = len(source.shards)
    assert count == (4 if kind in SHARDED else 1)
    assert sum(shard.rows or 0 for shard in source.shards) == source.rows == ROWS
    assert sum(shard.nbytes or 0 for shard in source.shards) == source.nbytes
    parts = [serve(source, shard=index).table for index in range(count)]
    assert [len(part) for part in parts] == [shard.rows for shard in source.shards]
    assert pa.concat_tables(parts).equals(table())
    last = serve(source, shard=count - 1, offset=30, limit=5, columns=("t",)).table
    assert last.equals(parts[-1].select(["t"]).slice(30, 5))
    with pytest.raises(InvalidRequestError, match=f"no shard {count}; there are {count}"):
        source.open(_request(shard=count), _plain_encoding())


def _request(**asked: Any) -> Any:
    from splitarrow.protocol.request import Request

    return Request("name", **asked)


def _plain_encoding() -> Any:
    from splitarrow.server.catalog.base import Encoding

    return Encoding()


@pytest.mark.parametrize("kind", KINDS)
def test_another_version_is_refused(tmp_path: Path, kind: str) -> None:
    source = dataset(kind, tmp_path)
    version = source.version
    assert version == source.version
    assert serve(source, version=version).table.equals(table())
    if kind != "table":
        assert open_dataset(_path(source)).version == version  # a server that starts again
        file = next(iter(sorted(tmp_path.iterdir())))
        os.utime(file, ns=(1, 1))
        assert source.version != version
    else:
        version = "other"
    with pytest.raises(RemoteError, match="'name' has changed") as caught:
        serve(source, version=version)
    assert caught.value.code == "FAILED_PRECONDITION"
    assert serve(source, version=source.version).rows == ROWS


def _path(source: Any) -> Path:
    return source.path


def test_a_reader_has_one_shard_and_takes_an_offset() -> None:
    batches = numbers()
    source = open_dataset(pa.RecordBatchReader.from_batches(batches[0].schema, batches))
    assert [tuple(shard) for shard in source.shards] == [(None, None)]
    with pytest.raises(RemoteError, match="has changed"):
        serve(source, version="other")
    served = serve(source, offset=150, version=source.version, shard=0)
    assert served.table.equals(table_of(batches).slice(150))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("AAAA", "no Substrait extended expression"),
        (urlsafe_b64encode(b"\xff" * 200).decode(), "no Substrait extended expression"),
        ("A", "base64url"),
        (encoded(pc.field("n") + 1, table().schema), "gives int64, not a boolean"),
        (encoded(pc.field("o") > 1, pa.schema({"o": pa.int8()})), "column 'o'.*has not"),
        (encoded(pc.field("t") > 1, pa.schema({"t": pa.int8()})), "cannot be applied"),
        (
            encoded(pc.field("q", "x") > 1, pa.schema({"q": pa.struct([("x", pa.int8())])})),
            "column 'q'",
        ),
        (
            urlsafe_b64encode(b"urn:arrow:substrait_simple_extension_function").decode(),
            "none of Substrait's",
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_filter_is_refused_in_one_line(
    tmp_path: Path, kind: str, asked: str, why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=why) as caught:
        serve(dataset(kind, tmp_path), filter=asked)
    assert "\n" not in str(caught.value)


def test_a_filter_that_fails_on_a_value_is_refused(tmp_path: Path) -> None:
    source = dataset("file", tmp_path)
    asked = encoded(pc.divide(pc.field("n"), pc.field("n")) == 1, source.schema)
    with pytest.raises(InvalidRequestError, match="cannot be applied: divide by zero"):
        serve(source, filter=asked)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_altered_filters_are_applied_or_refused(data: st.DataObject) -> None:
    schema = pa.schema({"n": pa.int64(), "t": pa.string()})
    message = bytearray(((pc.field("n") > 3) & (pc.field("t") == "x")).to_substrait(schema))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InvalidRequestError):
        serve(open_dataset(table(10)), filter=urlsafe_b64encode(message).decode())


@pytest.mark.parametrize("name", arrays_of_all_types())
def test_columns_of_every_type_can_be_filtered_and_skipped(tmp_path: Path, name: str) -> None:
    array = arrays_of_all_types()[name]
    rows = pa.array(range(len(array)), pa.int8())
    batch = pa.RecordBatch.from_arrays([rows, array], ["n", "x"])
    source = open_dataset(write_file(tmp_path / "x.arrow", [batch, batch]))
    asked = encoded(
        (pc.field("n") == 0) | (pc.field("n") == 2), pa.schema({"n": pa.int8(), "x": pa.bool_()})
    )
    served = serve(source, filter=asked)
    expected = [batch.slice(0, 1), batch.slice(2, 1)] * 2
    assert [row for part in served.batches for row in _rows(part)] == [
        row for part in expected for row in _rows(part)
    ]
    served = serve(source, offset=len(array) + 1)
    assert [_rows(part) for part in served.batches] == [_rows(batch.slice(1))]


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

    source = dataset("parquet", tmp_path)
    seen: list[list[int]] = []
    iter_batches = pq.ParquetFile.iter_batches

    def noted(self: Any, *args: Any, row_groups: list[int], **options: Any) -> Any:
        seen.append(row_groups)
        return iter_batches(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    served = serve(source, filter=encoded(pc.field("n") == 600, source.schema), columns=("t",))
    assert served.table.to_pydict() == {"t": [None]}
    assert serve(source, offset=510).rows == 490
    other = pa.schema({"t": pa.string(), "n": pa.int64()})
    assert serve(source, filter=encoded(pc.field("n") == 600, other)).rows == 1
    assert seen == [[2], [2, 3], [0, 1, 2, 3]]


def test_partitions_can_be_filtered_by(tmp_path: Path) -> None:
    for year in (2001, 2002):
        write_parquet(tmp_path / f"year={year}" / "x.parquet", table(10).select(["n", "t"]))
    source = open_dataset(tmp_path)
    asked = encoded((pc.field("year") == 2002) & (pc.field("n") > 7), source.schema)
    served = serve(source, filter=asked, columns=("n", "year"))
    assert served.table.to_pydict() == {"n": [8, 9], "year": [2002, 2002]}
    served = serve(source, filter=asked, columns=("t",))
    assert served.rows == 2
    assert serve(source, offset=12, columns=("year", "n")).table.to_pydict() == {
        "year": [2002] * 8,
        "n": list(range(2, 10)),
    }


def test_a_dictionary_with_bad_indices_is_refused_by_a_filter(tmp_path: Path) -> None:
    bad = pa.DictionaryArray.from_arrays(pa.array([0, 100], pa.int8()), pa.array(["a"]), safe=False)
    path = write_file(tmp_path / "x.arrow", [pa.record_batch({"d": bad})])
    asked = encoded(pc.field("d") == "a", pa.schema({"d": pa.string()}))
    with pytest.raises(DatasetError, match="not valid"):
        serve(open_dataset(path), filter=asked)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(KINDS),
    st.none() | st.sampled_from([name for name in FILTERS if name != "word"]),
    st.none() | st.permutations(["n", "t", "d", "l"]).map(tuple),
    st.none() | st.integers(0, 1100),
    st.none() | st.integers(0, 1100),
    st.none() | st.integers(1, 400),
)
def test_any_combination(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    name: str | None,
    columns: tuple[str, ...] | None,
    offset: int | None,
    limit: int | None,
    batch_rows: int | None,
) -> None:
    source = dataset(kind, tmp_path_factory.mktemp("x"))
    expected = table() if name is None else table().filter(FILTERS[name])
    if columns is not None:
        expected = expected.select(list(columns))
    served = serve(
        source,
        filter=None if name is None else encoded(FILTERS[name], source.schema),
        columns=columns,
        offset=offset,
        limit=limit,
        batch_rows=batch_rows,
    )
    assert served.table.equals(expected.slice(offset or 0, limit))
    assert all(batch.num_rows <= (batch_rows or ROWS) for batch in served.batches)
