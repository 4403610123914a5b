"""Shards that are sent while they are downloaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import DatasetError, InvalidRequestError, RemoteError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.arriving import open_arriving
from splitarrow.server.catalog.dataset import Encoding, GeneratorSource
from splitarrow.server.catalog.object_cache import ShardDownload
from splitarrow.server.catalog.selection import Selection
from splitarrow.server.catalog.vortex_encoding import MessageDecoder

BATCHES = 5
ROWS = 20_000
"""The rows of a batch, which is larger than what is read at a time."""
TABLE = pa.table(
    {
        "n": pa.array(range(BATCHES * ROWS), pa.int64()),
        "text": pa.array(["some", "words"] * (BATCHES * ROWS // 2)).dictionary_encode(),
    }
)


class Arrival:
    """A file that arrives in the parts that a test chooses."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self.data = data
        self._path = folder / "shard"
        self._path.write_bytes(b"")
        self.download = ShardDownload(self._path, len(data))
        self._opened = ExitStack()

    def grow(self, nbytes: int) -> None:
        self._path.write_bytes(self.data[:nbytes])
        self.download.advance(nbytes)

    def open(self, *, regions: bool = False, **selected: Any) -> GeneratorSource | None:
        request = Request("trips", **selected)
        selection = Selection.resolve(request, Encoding(), TABLE.schema)
        location = "grpc://upstream/trips"
        source = open_arriving(self.download, TABLE.schema, selection, location, regions=regions)
        if source is not None:
            self._opened.callback(source.close)
        return source

    def close(self) -> None:
        self._opened.close()


def write(table: pa.Table = TABLE, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=ROWS)
    return sink.getvalue().to_pybytes()


def list_ends(data: bytes) -> list[int]:
    """Return the offsets after the record batches of a file."""
    stream = pa.BufferReader(data[8:])
    with pa.ipc.open_stream(stream) as reader:
        ends: list[int] = []
        for _ in range(BATCHES):
            reader.read_next_batch()
            ends.append(8 + stream.tell())
    return ends


def decode(messages: list[Any]) -> pa.Table:
    decoder = MessageDecoder(bytes(messages[0].metadata))
    found = [decoder.decode(message) for message in messages[1:]]
    return pa.Table.from_batches([each[0] for each in found if each], decoder.schema)


Arrive = Callable[[bytes], Arrival]


@pytest.fixture
def arrive(tmp_path: Path) -> Iterator[Arrive]:
    """Return what makes a file arrive, and close the sources at the end."""
    with ExitStack() as stack:

        def begin(data: bytes) -> Arrival:
            arrival = Arrival(tmp_path, data)
            stack.callback(arrival.close)
            return arrival

        yield begin


@pytest.fixture
def run() -> Callable[..., threading.Thread]:
    def start(function: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        return thread

    return start


def test_a_batch_is_sent_once_it_has_arrived(arrive: Arrive) -> None:
    arrival = arrive(write())
    ends = list_ends(arrival.data)
    arrival.grow(ends[0])
    source = arrival.open()
    assert source is not None
    messages: list[Any] = []
    rows = 0
    for end in ends:
        arrival.grow(end)
        while rows < ROWS * (1 + ends.index(end)):
            group = next(source)
            messages += group
            rows += sum(message.rows for message in group)
    assert decode(messages) == TABLE
    arrival.grow(len(arrival.data))
    arrival.download.end(None)
    assert list(source) == []


def test_readers_may_map_a_file_before_it_is_complete(arrive: Arrive) -> None:
    arrival = arrive(write())
    arrival.grow(list_ends(arrival.data)[0])
    source, other = arrival.open(regions=True), arrival.open()
    assert source is not None
    assert source.region is not None
    assert (source.region.is_own, source.region.size) == (True, len(arrival.data))
    assert other is not None
    assert other.region is None


def test_the_stream_waits_for_the_checksum(
    arrive: Arrive, run: Callable[..., threading.Thread]
) -> None:
    arrival = arrive(write())
    arrival.grow(len(arrival.data))
    source = arrival.open()
    assert source is not None
    received: list[Any] = []
    ended = threading.Event()

    def read() -> None:
        received.extend(message for group in source for message in group)
        ended.set()

    thread = run(read)
    assert not ended.wait(0.2)
    assert sum(message.rows for message in received) <= TABLE.num_rows
    arrival.download.end(None)
    thread.join(10)
    assert ended.is_set()
    assert decode(received) == TABLE


@pytest.mark.parametrize("arrived", [0, 8, 100, 100_000, 300_000, None])
def test_a_download_that_fails_is_an_error(arrive: Arrive, arrived: int | None) -> None:
    arrival = arrive(write())
    arrival.grow(len(arrival.data) if arrived is None else arrived)
    arrival.download.end(DatasetError("other bytes than in the manifest"))
    with pytest.raises(DatasetError, match="other bytes than in the manifest"):
        list(arrival.open() or ())


def test_ranges_of_batches(arrive: Arrive) -> None:
    arrival = arrive(write())
    arrival.grow(len(arrival.data))
    arrival.download.end(None)
    source = arrival.open(batches=((1, 2), (3, 5)))
    assert source is not None
    found = decode([message for group in source for message in group])
    assert found == pa.concat_tables([TABLE.slice(ROWS, ROWS), TABLE.slice(3 * ROWS)])
    beyond = arrival.open(batches=(3, 6))
    with pytest.raises(InvalidRequestError, match="no record batches 3:6; there are 5"):
        list(beyond or ())


@pytest.mark.parametrize(
    "selected",
    [
        {"columns": ("n",)},
        {"limit": 5},
        {"offset": 5},
        {"batch_rows": 3},
        {"compression": "zstd"},
    ],
)
def test_other_requests_wait_for_the_file(arrive: Arrive, selected: dict[str, Any]) -> None:
    arrival = arrive(write())
    arrival.grow(len(arrival.data))
    assert arrival.open(**selected) is None


def test_a_compressed_shard_is_decompressed_from_the_complete_file(arrive: Arrive) -> None:
    arrival = arrive(write(options=pa.ipc.IpcWriteOptions(compression="zstd")))
    arrival.grow(len(arrival.data))
    arrival.download.end(None)
    assert arrival.open(compression="none") is None
    source = arrival.open(compression="zstd")
    assert decode([message for group in source or () for message in group]) == TABLE


def test_another_schema_is_left_to_the_complete_file(arrive: Arrive) -> None:
    arrival = arrive(write(TABLE.rename_columns(["m", "text"])))
    arrival.grow(len(arrival.data))
    assert arrival.open() is None


def test_what_is_no_arrow_file_is_an_error(arrive: Arrive) -> None:
    arrival = arrive(b"PAR1" + bytes(1000))
    arrival.grow(1004)
    arrival.download.end(None)
    with pytest.raises(DatasetError, match="not an Arrow IPC file"):
        arrival.open()


def test_a_longer_file_than_in_the_manifest_is_not_complete(
    arrive: Arrive, run: Callable[..., threading.Thread]
) -> None:
    arrival = arrive(write())
    arrival.grow(len(arrival.data))
    arrival.download.advance(len(arrival.data) + 100)
    ended = threading.Event()
    thread = run(lambda: (list(arrival.open() or ()), ended.set()))
    assert not ended.wait(0.2)
    arrival.download.end(None)
    thread.join(10)
    assert ended.is_set()


@pytest.mark.parametrize("data", [b"PAR1" + bytes(1000), write()[:500]], ids=["parquet", "short"])
def test_the_error_of_the_download_comes_first(
    arrive: Arrive, run: Callable[..., threading.Thread], data: bytes
) -> None:
    arrival = arrive(data)
    arrival.grow(len(data))
    errors: list[Exception] = []

    def read() -> None:
        try:
            list(arrival.open() or ())
        except DatasetError as error:
            errors.append(error)

    thread = run(read)
    thread.join(0.2)  # the reader has seen what is wrong, and waits for the cause
    arrival.download.end(DatasetError("other bytes than in the manifest"))
    thread.join(10)
    assert [str(error) for error in errors] == ["other bytes than in the manifest"]


def test_deltas_after_a_batch_are_read_from_the_complete_file(arrive: Arrive) -> None:
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    chunks = [pa.array(["a", "b"]), pa.array(["a", "b", "c"])]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, TABLE.schema, options=options) as writer:
        for words in chunks:
            indices = pa.array(range(len(words)), pa.int32())
            text = pa.DictionaryArray.from_arrays(indices, words)
            numbers = pa.array(range(len(words)), pa.int64())
            writer.write_batch(pa.record_batch([numbers, text], schema=TABLE.schema))
    arrival = arrive(sink.getvalue().to_pybytes())
    arrival.grow(len(arrival.data))
    arrival.download.end(None)
    with pytest.raises(RemoteError, match="a dictionary follows"):
        list(arrival.open() or ())
