"""Custom metadata of messages reaches the reader, and the files that `fetch` writes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.cli.app import run as run_here
from splitarrow.client.stream import batch_stream
from splitarrow.client.stream.batch_stream import find_metadata

Pairs = list[tuple[list[int], dict[bytes, bytes] | None]]


def write(path: Path, rows: int, *, dictionary: bool = False, **options: Any) -> Pairs:
    """Write four batches, of which two have equal metadata and one has none."""
    written: Pairs = []
    arrays: list[Any] = [pa.array(range(start, start + rows)) for start in range(4)]
    if dictionary:
        arrays = [array.dictionary_encode() for array in arrays]
    schema = pa.schema([("n", arrays[0].type)])
    metadata: list[dict[bytes, bytes] | None] = [{b"k": b"1"}, {b"k": b"1"}, None, {b"": b"\xff"}]
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer,
    ):
        for array, one in zip(arrays, metadata, strict=True):
            writer.write_batch(pa.record_batch({"n": array}), custom_metadata=one)
            written.append((array.to_pylist(), one))
    return written


def pair(batch: pa.RecordBatch, metadata: dict[bytes, bytes] | None) -> Any:
    return batch.column("n").to_pylist(), metadata


CASES: dict[str, dict[str, Any]] = {
    "small": {"rows": 3},
    "large": {"rows": 50_000},
    "dictionary": {"rows": 3, "dictionary": True},
    "compressed": {"rows": 5000, "compression": "lz4"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheme", ["tcp", "shm"])
async def test_batches_come_with_their_metadata(tmp_path: Path, case: str, scheme: str) -> None:
    path = tmp_path / "x.arrows"
    written = write(path, **CASES[case])
    with splitarrow.serve({"x": path}, listen=["tcp://127.0.0.1:0", "shm://"]) as server:
        uri = server.uri("x", scheme)
        for prefetch_bytes in (0, 1 << 20):
            with splitarrow.open(uri, prefetch_bytes=prefetch_bytes) as stream:
                assert [pair(*both) for both in stream.batches_with_metadata()] == written
        async with splitarrow.aio.open(uri) as stream:
            assert [pair(*both) async for both in stream.batches_with_metadata()] == written


def test_datasets_come_with_their_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.arrows"
    written = write(path, 3)
    with (
        splitarrow.serve({"x": path}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        for transport in ("tcp", "flight"):
            with client.read("x", transport=transport) as stream:
                assert [pair(*both) for both in stream.batches_with_metadata()] == written
        # With shards, the client limits the rows itself.
        for shards in (None, [0]):
            with client.read("x", limit=4, shards=shards) as stream:
                first, second = stream.batches_with_metadata()
            assert (first.custom_metadata, second.custom_metadata) == ({b"k": b"1"}, {b"k": b"1"})
            assert (first.batch.num_rows, second.batch.num_rows) == (3, 1)


@pytest.mark.parametrize("suffix", ["arrow", "arrows"])
def test_fetch_writes_it(tmp_path: Path, suffix: str) -> None:
    path, got = tmp_path / "x.arrows", tmp_path / f"got.{suffix}"
    written = write(path, 3)
    with splitarrow.serve({"x": path}, listen=["tcp://127.0.0.1:0"]) as server:
        assert run_here(["fetch", server.uri("x"), "-o", str(got), "--quiet"]) == 0
    found: Any
    if suffix == "arrow":
        with pa.ipc.open_file(got.read_bytes()) as reader:
            found = [reader.get_batch_with_custom_metadata(number) for number in range(4)]
    else:
        with pa.ipc.open_stream(got.read_bytes()) as reader:
            found = list(reader.iter_batches_with_custom_metadata())
    pairs = [pair(batch, metadata and dict(metadata)) for batch, metadata in found]
    assert pairs == written


def test_it_is_kept_as_long_as_its_batch(tmp_path: Path) -> None:
    write(tmp_path / "x.arrows", 3)
    with (
        splitarrow.serve({"x": tmp_path / "x.arrows"}, listen=["tcp://127.0.0.1:0"]) as server,
        splitarrow.open(server.uri("x")) as stream,
    ):
        batches = list(stream)
        assert find_metadata(batches[0]) == {b"k": b"1"}
    del batches
    gc.collect()
    assert batch_stream._METADATA == {}
