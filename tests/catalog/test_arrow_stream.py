"""Arrow IPC streams in files, in both framings."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from splitarrow.errors import DatasetError
from splitarrow.formats.arrow.message import encapsulate
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.arrow_stream import ArrowStreamDataset
from splitarrow.server.catalog.kinds import open_file

from ..property.arrow_data import arrays_of_all_types
from ..protocol.crafting import TENSOR, empty_message
from .reading import PLAIN, asking, numbers, serve, table_of, write_stream

ARRAYS = arrays_of_all_types()
END = b"\xff\xff\xff\xff\0\0\0\0"


def growing_dictionaries(*, deltas: bool) -> list[pa.RecordBatch]:
    values = ["a", "b", "c", "d"]
    made = [pa.array(values[: 2 + number]) for number in range(3)]
    if not deltas:
        made.append(pa.array(["x", "y"]))
    return [
        pa.record_batch(
            {"d": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), dictionary)}
        )
        for dictionary in made
    ]


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("legacy", [False, True])
def test_messages_leave_as_they_lie(tmp_path: Path, legacy: bool, codec: str | None) -> None:
    sent = [*numbers(3), *numbers(2, 20_000)]
    path = write_stream(tmp_path / "x", sent, compression=codec, use_legacy_format=legacy)
    dataset = open_file(path)
    assert (dataset.kind, dataset.rows) == ("arrow stream", 40_300)
    served = serve(dataset)
    assert not served.blocking
    assert served.batches == sent
    assert served.rows == 40_300
    assert served.regions == (2 if codec != "zstd" else served.regions)
    if not legacy:
        assert served.stream + END == path.read_bytes()
    assert serve(dataset, compression=codec or "none").blocking is False


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_grow_or_are_replaced(tmp_path: Path, deltas: bool) -> None:
    sent = growing_dictionaries(deltas=deltas)
    path = write_stream(tmp_path / "x", sent, emit_dictionary_deltas=deltas)
    for asked in asking(
        {}, {"compression": "lz4"}, {"batch_rows": 1}, {"columns": ("d",), "limit": 99}
    ):
        served = serve(open_file(path), **asked)
        want = [batch.to_pydict() for batch in sent]
        if "batch_rows" in asked:
            want = [{"d": [value]} for batch in want for value in batch["d"]]
        assert [batch.to_pydict() for batch in served.batches] == want


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type(tmp_path: Path, name: str) -> None:
    batch = pa.record_batch({"x": ARRAYS[name], "y": ARRAYS[name]})
    sent = [batch, batch.slice(1, 3), batch.slice(0, 0)]
    dataset = open_file(write_stream(tmp_path / "x", sent))
    assert serve(dataset).table.equals(table_of(sent))
    served = serve(dataset, columns=("y",), limit=7, batch_rows=2, compression="zstd")
    assert served.table.equals(table_of(sent).select(["y"]).slice(0, 7))


def test_integration_streams_of_other_versions(arrow_test_data: Path) -> None:
    paths = sorted((arrow_test_data / "arrow-ipc-stream" / "integration").glob("*/*.stream"))
    assert len(paths) > 30
    for path in paths:
        with pa.ipc.open_stream(path.read_bytes()) as reader:
            want = reader.read_all()
        dataset = open_file(path)
        served = serve(dataset)
        assert not served.blocking, path
        anew = serve(dataset, compression="lz4" if "zstd" in path.name else "zstd")
        for got in (served, anew):
            assert got.schema.equals(want.schema, check_metadata=True), path
            assert got.table.equals(want) or got.table.to_pydict() == want.to_pydict(), path
        assert served.rows == dataset.rows == want.num_rows, path


@pytest.mark.parametrize("legacy", [False, True])
def test_the_end_marker_is_optional(tmp_path: Path, legacy: bool) -> None:
    path = write_stream(tmp_path / "x", numbers(), use_legacy_format=legacy)
    os.truncate(path, path.stat().st_size - (4 if legacy else 8))
    assert serve(open_file(path)).batches == numbers()


def test_no_batch(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int8())])
    dataset = open_file(write_stream(tmp_path / "x", [], schema))
    assert serve(dataset).schema == schema
    assert dataset.rows == 0


@pytest.mark.parametrize("legacy", [False, True])
def test_a_truncated_stream_is_refused_with_file_and_byte(tmp_path: Path, legacy: bool) -> None:
    whole = write_stream(tmp_path / "x", numbers(), use_legacy_format=legacy).read_bytes()
    path = tmp_path / "cut.arrows"
    layout = open_file(tmp_path / "x").layout
    assert layout is not None
    boundaries = {block.offset for block in layout.blocks} | {len(whole) - (4 if legacy else 8)}
    for size in sorted({*boundaries, *range(1, len(whole), 37)}):
        path.write_bytes(whole[:size])
        if size not in boundaries:
            with pytest.raises(DatasetError, match=r"cut\.arrows as an Arrow IPC stream: .*byte"):
                ArrowStreamDataset(path)
        else:
            assert serve(ArrowStreamDataset(path)).rows in (0, 100, 200, 300)


def test_what_follows_the_end_is_not_left_out_silently(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "x", numbers())
    end = path.stat().st_size
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(8))
    assert serve(open_file(path)).batches == numbers()
    path.write_bytes(whole + whole)
    with pytest.raises(
        DatasetError, match=f"ends at byte {end}, but the file has {end} bytes more"
    ):
        open_file(path)


def test_other_messages_than_batches_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    whole = write_stream(path, numbers()).read_bytes()[: -len(END)]
    path.write_bytes(whole + encapsulate(empty_message(TENSOR)))
    with pytest.raises(DatasetError, match=f"at byte {len(whole)} is a TENSOR message"):
        open_file(path)
    path.write_bytes(whole + whole)
    with pytest.raises(DatasetError, match=f"at byte {len(whole)} is a SCHEMA message"):
        open_file(path)
    path.write_bytes(encapsulate(empty_message(TENSOR)))
    with pytest.raises(DatasetError, match="begins with a TENSOR message"):
        open_file(path)
    path.write_bytes(END)
    with pytest.raises(DatasetError, match="has no schema"):
        open_file(path)


def test_garbage_in_a_message_names_the_byte(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "x", numbers(1))
    data = path.read_bytes()
    at = data.index(b"\xff\xff\xff\xff", 8)
    path.write_bytes(data[: at + 8] + b"\x7f" * 32 + data[at + 40 :])
    with pytest.raises(
        DatasetError, match=rf"cannot read .*x as an Arrow IPC stream: at byte {at}: "
    ):
        open_file(path)


def test_a_stream_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "x", numbers(4, 20_000))
    dataset = open_file(path)
    for asked in asking({}, {"columns": ("n",)}):
        source = dataset.open(Request("name", **asked), PLAIN)
        groups = iter(source)
        next(groups)
        next(groups)
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        with pytest.raises(DatasetError, match="changed while it was read"):
            list(groups)
        source.close()
