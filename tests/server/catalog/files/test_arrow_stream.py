"""Files with Arrow IPC streams, in the current and the pre-0.15 framing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.big_endian import to_big_endian
from helpers.catalog import DEFAULTS, number_batches, read_dataset, requests, to_table
from helpers.crafting import TENSOR, empty_message
from helpers.files import write_stream
from helpers.sources import encode_filter
from splitarrow.errors import DatasetError
from splitarrow.formats.arrow.message import encapsulate
from splitarrow.formats.arrow.schema import is_native_endian
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.files.arrow import ArrowStreamDataset
from splitarrow.server.catalog.files.file_types import open_file

ARRAYS = make_arrays_of_all_types()
END = b"\xff\xff\xff\xff\0\0\0\0"


def growing_dictionaries(*, deltas: bool) -> list[pa.RecordBatch]:
    values = ["a", "b", "c", "d"]
    dictionaries = [pa.array(values[: 2 + number]) for number in range(3)]
    if not deltas:
        dictionaries.append(pa.array(["x", "y"]))
    return [
        pa.record_batch(
            {"d": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), dictionary)}
        )
        for dictionary in dictionaries
    ]


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("legacy", [False, True])
def test_messages_pass_through_unchanged(tmp_path: Path, legacy: bool, codec: str | None) -> None:
    sent = [*number_batches(3), *number_batches(2, 40_000)]
    path = write_stream(tmp_path / "x", sent, compression=codec, use_legacy_format=legacy)
    dataset = open_file(path)
    assert (dataset.kind, dataset.rows) == ("arrow stream", 80_300)
    result = read_dataset(dataset)
    assert not result.blocking
    assert result.batches == sent
    assert result.rows == 80_300
    assert result.regions == (2 if codec != "zstd" else result.regions)
    if not legacy:
        assert result.stream + END == path.read_bytes()
    assert read_dataset(dataset, compression=codec or "none").blocking is False


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_may_grow_or_be_replaced(tmp_path: Path, deltas: bool) -> None:
    sent = growing_dictionaries(deltas=deltas)
    path = write_stream(tmp_path / "x", sent, emit_dictionary_deltas=deltas)
    for fields in requests(
        {}, {"compression": "lz4"}, {"batch_rows": 1}, {"columns": ("d",), "limit": 99}
    ):
        result = read_dataset(open_file(path), **fields)
        expected = [batch.to_pydict() for batch in sent]
        if "batch_rows" in fields:
            expected = [{"d": [value]} for batch in expected for value in batch["d"]]
        assert [batch.to_pydict() for batch in result.batches] == expected


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_is_served(tmp_path: Path, name: str) -> None:
    batch = pa.record_batch({"x": ARRAYS[name], "y": ARRAYS[name]})
    sent = [batch, batch.slice(1, 3), batch.slice(0, 0)]
    dataset = open_file(write_stream(tmp_path / "x", sent))
    assert read_dataset(dataset).table.equals(to_table(sent))
    result = read_dataset(dataset, columns=("y",), limit=7, batch_rows=2, compression="zstd")
    assert result.table.equals(to_table(sent).select(["y"]).slice(0, 7))


def test_streams_of_other_arrow_versions_are_served(arrow_test_data: Path) -> None:
    paths = sorted((arrow_test_data / "arrow-ipc-stream" / "integration").glob("*/*.stream"))
    assert len(paths) > 30
    for path in paths:
        with pa.ipc.open_stream(path.read_bytes()) as reader:
            expected = reader.read_all()
        dataset = open_file(path)
        result = read_dataset(dataset)
        assert not result.blocking, path
        reencoded = read_dataset(dataset, compression="lz4" if "zstd" in path.name else "zstd")
        for actual in (result, reencoded):
            assert actual.schema.equals(expected.schema, check_metadata=True), path
            assert (
                actual.table.equals(expected) or actual.table.to_pydict() == expected.to_pydict()
            ), path
        assert result.rows == dataset.rows == expected.num_rows, path


@pytest.mark.parametrize("legacy", [False, True])
def test_the_end_marker_is_optional(tmp_path: Path, legacy: bool) -> None:
    path = write_stream(tmp_path / "x", number_batches(), use_legacy_format=legacy)
    os.truncate(path, path.stat().st_size - (4 if legacy else 8))
    assert read_dataset(open_file(path)).batches == number_batches()


def test_a_stream_may_have_no_batch(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int8())])
    dataset = open_file(write_stream(tmp_path / "x", [], schema))
    assert read_dataset(dataset).schema == schema
    assert dataset.rows == 0


@pytest.mark.parametrize("legacy", [False, True])
def test_the_error_for_a_truncated_stream_names_the_file_and_the_byte(
    tmp_path: Path, legacy: bool
) -> None:
    whole = write_stream(tmp_path / "x", number_batches(), use_legacy_format=legacy).read_bytes()
    path = tmp_path / "cut.arrows"
    index = open_file(tmp_path / "x").index
    assert index is not None
    boundaries = {block.offset for block in index.blocks} | {len(whole) - (4 if legacy else 8)}
    for size in sorted({*boundaries, *range(1, len(whole), 37)}):
        path.write_bytes(whole[:size])
        if size not in boundaries:
            with pytest.raises(DatasetError, match=r"cut\.arrows as an Arrow IPC stream: .*byte"):
                ArrowStreamDataset(path)
        else:
            assert read_dataset(ArrowStreamDataset(path)).rows in (0, 100, 200, 300)


def test_data_after_the_end_marker_is_refused(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "x", number_batches())
    end = path.stat().st_size
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(8))
    assert read_dataset(open_file(path)).batches == number_batches()
    path.write_bytes(whole + whole)
    with pytest.raises(DatasetError, match=f"ends at byte {end}, but {end} bytes follow"):
        open_file(path)


def test_messages_other_than_batches_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    whole = write_stream(path, number_batches()).read_bytes()[: -len(END)]
    path.write_bytes(whole + encapsulate(empty_message(TENSOR)))
    with pytest.raises(DatasetError, match=f"at byte {len(whole)} is a TENSOR message"):
        open_file(path)
    path.write_bytes(whole + whole)
    with pytest.raises(DatasetError, match=f"at byte {len(whole)} is a SCHEMA message"):
        open_file(path)
    path.write_bytes(encapsulate(empty_message(TENSOR)))
    with pytest.raises(DatasetError, match="the tensor lacks the field type"):
        open_file(path)
    path.write_bytes(END)
    with pytest.raises(DatasetError, match="has no schema"):
        open_file(path)


def test_the_error_for_a_damaged_message_names_the_byte(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "x", number_batches(1))
    data = path.read_bytes()
    at = data.index(b"\xff\xff\xff\xff", 8)
    path.write_bytes(data[: at + 8] + b"\x7f" * 32 + data[at + 40 :])
    with pytest.raises(
        DatasetError, match=rf"cannot read .*x as an Arrow IPC stream: the message at byte {at} "
    ):
        open_file(path)


def test_a_file_that_changes_while_it_is_read_fails_the_stream(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "x", number_batches(4, 20_000))
    dataset = open_file(path)
    for fields in requests({}, {"columns": ("n",)}):
        source = dataset.open(Request("name", **fields), DEFAULTS)
        groups = iter(source)
        next(groups)
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        with pytest.raises(DatasetError, match="changed while it was read"):
            list(groups)
        source.close()


def big_endian_streams(folder: Path, arrow_test_data: Path) -> Iterator[tuple[str, Path]]:
    """Yield streams with the data of the reference files, and those that are big-endian."""
    integration = arrow_test_data / "arrow-ipc-stream" / "integration"
    for path in sorted((integration / "1.0.0-littleendian").glob("*.stream")):
        swapped = folder / path.name
        swapped.write_bytes(to_big_endian(path.read_bytes()))
        with (
            pa.ipc.open_stream(path.read_bytes()) as little,
            pa.ipc.open_stream(swapped.read_bytes()) as big,
        ):
            assert little.read_all().equals(big.read_all()), path.name
        yield path.name, swapped
    for path in sorted(integration.glob("*-bigendian/*.stream")):
        yield path.name, path


def test_big_endian_streams_are_served_with_every_request(
    tmp_path: Path, arrow_test_data: Path
) -> None:
    count = 0
    for name, path in big_endian_streams(tmp_path, arrow_test_data):
        count += 1
        with pa.ipc.open_stream(path.read_bytes()) as reader:
            expected = reader.read_all()
        dataset = open_file(path)
        assert dataset.index is not None
        assert not is_native_endian(dataset.index.schema_metadata), name
        for fields in requests({}, {"batch_rows": 3}, {"compression": "lz4"}, {"limit": 5}):
            result = read_dataset(dataset, **fields)
            wanted = expected.slice(0, fields.get("limit"))
            assert result.schema.equals(expected.schema, check_metadata=True), name
            equal = result.table.equals(wanted)
            assert equal or result.table.to_pydict() == wanted.to_pydict(), (name, fields)
    assert count > 20


def test_big_endian_streams_are_filtered(tmp_path: Path) -> None:
    sent = pa.table({"n": [1, 500, 70_000], "t": ["a", "b", "c"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sent.schema) as writer:
        writer.write_table(sent)
    path = tmp_path / "x"
    path.write_bytes(to_big_endian(sink.getvalue().to_pybytes()))
    row_filter = encode_filter(pc.field("n") > 400, sent.schema)
    result = read_dataset(open_file(path), filter=row_filter)
    assert result.table.equals(sent.slice(1))
