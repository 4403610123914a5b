"""Projection: only the bytes of the selected columns are sent, and no value is decoded."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.catalog import StreamContents, read_dataset
from helpers.files import write_file, write_stream
from splitarrow.errors import DatasetError, InvalidDataError
from splitarrow.formats.arrow.data_types import has_dictionaries
from splitarrow.formats.arrow.message import read_message_info
from splitarrow.formats.arrow.projection import Projector
from splitarrow.server.catalog.catalog import open_dataset

WRITERS = {"file": write_file, "stream": write_stream}
ARRAYS = make_arrays_of_all_types()


def count_bytes(result: StreamContents) -> int:
    return sum(message.body_length + len(message.metadata) for message in result.messages)


@pytest.mark.parametrize("file_type", WRITERS)
@pytest.mark.parametrize("rows", [500, 50_000])
def test_two_of_fifty_columns_take_four_percent_of_the_bytes(
    tmp_path: Path, file_type: str, rows: int
) -> None:
    columns = {f"c{c}": pa.array(range(c, c + rows), pa.int64()) for c in range(50)}
    table = pa.table(columns)
    batches = table.to_batches(max_chunksize=rows // 2)
    source = open_dataset(WRITERS[file_type](tmp_path / "x", batches))
    whole, part = read_dataset(source), read_dataset(source, columns=("c30", "c7"))
    assert part.table.equals(table.select(["c30", "c7"]))
    assert not part.blocking
    assert part.regions == (4 if rows > 10_000 else 0)
    share = count_bytes(part) / count_bytes(whole)
    print(f"{file_type}, {rows} rows: {share:.2%} of the bytes")
    assert share < 0.045


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_columns_of_every_type_can_be_projected(
    tmp_path: Path, name: str, codec: str | None
) -> None:
    array = ARRAYS[name]
    ends = pa.array([None, *range(len(array) - 1)], pa.int32())
    texts = pa.array([f"a text that is not short {n}" for n in range(len(array))])
    batch = pa.RecordBatch.from_arrays([texts, array, ends], ["t", "x", "n"])
    source = open_dataset(write_file(tmp_path / "x.arrow", [batch, batch], compression=codec))
    for columns in (("n",), ("x",), ("n", "x"), ("x", "t"), ("n", "t")):
        result = read_dataset(source, columns=columns)
        for part in result.batches:
            part.validate(full=True)
            assert _same(
                part.select(["x"] if "x" in columns else [0]),
                batch.select(["x" if "x" in columns else columns[0]]),
            )
        assert len(result.batches) == 2
        assert result.blocking is ("x" in columns and has_dictionaries(array.type))


def _same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    rows = [[_value(value) for value in batch.column(0)] for batch in (one, other)]
    return rows[0] == rows[1] and one.schema == other.schema and one.num_rows == other.num_rows


def _value(scalar: Any) -> Any:
    try:
        return repr(scalar.as_py())
    except ValueError:  # it has nanoseconds
        return scalar.value


def test_custom_metadata_of_messages_is_kept(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": [1, 2], "b": [3, 4]})
    with (
        pa.OSFile(str(tmp_path / "x"), "wb") as sink,
        pa.ipc.new_stream(sink, batch.schema) as writer,
    ):
        writer.write_batch(batch, custom_metadata={b"k": b"v"})
        writer.write_batch(batch)
    result = read_dataset(open_dataset(tmp_path / "x"), columns=("b",))
    with pa.ipc.open_stream(result.stream) as reader:
        batches = list(reader.iter_batches_with_custom_metadata())
    assert [dict(metadata or {}) for _, metadata in batches] == [{b"k": b"v"}, {}]
    assert [part for part, _ in batches] == [batch.select(["b"])] * 2


@pytest.mark.parametrize("offset", [0, 1000, 1500, 2000])
def test_projection_can_be_combined_with_offset_and_limit(tmp_path: Path, offset: int) -> None:
    batches = pa.table({"a": range(3000), "b": range(3000), "c": range(3000)}).to_batches(1000)
    source = open_dataset(write_file(tmp_path / "x.arrow", batches))
    expected = pa.Table.from_batches(batches).select(["c", "a"]).slice(offset)
    result = read_dataset(source, columns=("c", "a"), offset=offset, limit=3000, batch_rows=1000)
    assert result.table.equals(expected)
    assert result.blocking is (offset == 1500)
    assert read_dataset(source, columns=("c",), offset=offset, limit=5).table.equals(
        expected.select(["c"]).slice(0, 5)
    )


def test_messages_with_unions_of_old_versions_are_reencoded(tmp_path: Path) -> None:
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    )
    batch = pa.RecordBatch.from_arrays([union, pa.array([5, 6])], ["u", "n"])
    old: dict[str, Any] = {"metadata_version": pa.ipc.MetadataVersion.V4}
    source = open_dataset(write_file(tmp_path / "x.arrow", [batch], **old))
    result = read_dataset(source, columns=("n",))
    assert result.blocking
    assert result.table.to_pydict() == {"n": [5, 6]}


def test_metadata_that_does_not_fit_the_schema_is_refused() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    metadata = batch.serialize().to_pybytes()[8:]
    good = Projector(batch.schema, [1]).project(metadata)
    assert read_message_info(good.metadata).body_length == good.body_length == 24
    for schema in (batch.schema.remove(0), batch.schema.append(pa.field("c", pa.int8()))):
        with pytest.raises(InvalidDataError):
            Projector(schema, [0]).project(metadata)
    for end in range(0, 200, 3):
        with pytest.raises(InvalidDataError):
            Projector(batch.schema, [0]).project(metadata[:end])


def test_a_buffer_outside_its_body_fails_the_stream(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array(range(10_000)), "b": pa.array(range(10_000))})
    path = write_file(tmp_path / "x.arrow", [batch, batch])
    data = path.read_bytes()
    # The buffers in the metadata of the second batch: validity and data of a, then of b.
    spans = struct.pack("<8q", 0, 0, 0, 80_000, 80_000, 0, 80_000, 80_000)
    at = data.rindex(spans)
    wrong = struct.pack("<8q", 0, 0, 0, 80_000, 80_000, 0, 80_000, 90_000)
    path.write_bytes(data[:at] + wrong + data[at + len(spans) :])
    with pytest.raises(DatasetError, match="outside its body"):
        read_dataset(open_dataset(path), columns=("b",))
