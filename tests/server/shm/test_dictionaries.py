"""Dictionaries and row filters over shared memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.dictionary(pa.int8(), pa.string()))])


def batch(start: int, words: list[str]) -> pa.RecordBatch:
    indices = pa.array([k % len(words) for k in range(100)], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(words))
    return pa.record_batch([pa.array(range(start, start + 100)), column], schema=SCHEMA)


GROWING = [batch(0, ["a", "b"]), batch(100, ["a", "b", "c"]), batch(200, ["a", "b", "c", "d"])]
REPLACED = [batch(0, ["a", "b"]), batch(100, ["x", "y", "z"]), batch(200, ["a", "q"])]


@pytest.mark.parametrize("deltas", [True, False])
@pytest.mark.parametrize("batches", [GROWING, REPLACED], ids=["growing", "replaced"])
@pytest.mark.parametrize("copy", [True, False])
def test_dictionaries_that_change_within_a_stream(
    tmp_path: Path, batches: list[pa.RecordBatch], deltas: bool, copy: bool
) -> None:
    path = tmp_path / "words.arrows"
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, SCHEMA, options=options) as writer,
    ):
        for one in batches:
            writer.write_batch(one)
    with (
        splitarrow.serve({"words": path}, listen=["shm://"], shm_copy=copy) as server,
        splitarrow.open(server.uri("words")) as stream,
    ):
        assert stream.transport == "shm"
        assert list(stream) == batches


def test_rows_are_filtered() -> None:
    table = pa.Table.from_batches(GROWING).unify_dictionaries()
    with (
        splitarrow.serve(
            {"words": table}, listen=["shm://"], control="grpc://127.0.0.1:0"
        ) as server,
        splitarrow.connect(str(server.control_uri)) as client,
    ):
        chosen = client.read("words", columns=["n"], filter=pc.field("n") > 150)
        assert chosen.read_all()["n"].to_pylist() == list(range(151, 300))
        assert chosen.transport == "shm"
