"""Readers share regions: a file is not copied, and other data is copied once, within a limit."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.arrow_data import make_arrays_of_all_types, make_batches
from helpers.files import write_file
from helpers.shm import (
    anonymous_bytes,
    find_mappings,
    has_no_leases,
    make_filled_batches,
    make_mixed_batches,
    make_number_batches,
    make_table,
    open_memory,
    read_table,
)
from helpers.shm_servers import Serve
from helpers.waiting import wait_until
from splitarrow.errors import NotFoundError, SplitArrowError
from splitarrow.protocol.request import Request
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.server.catalog.dataset import Encoding, GeneratorSource, MessageGroups
from splitarrow.server.catalog.decoding_shares import DecodingCancelledError, DecodingShares
from splitarrow.server.catalog.tables import TableDataset
from splitarrow.server.shm.region_store import Chunk, ChunkSizes, ChunkWriter, RegionStore

ARRAYS = make_arrays_of_all_types()


def test_a_file_is_its_own_region(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", make_filled_batches(64, 1 << 20))
    server = serve({"data": path})
    read_table(server.uri("data"))
    before = anonymous_bytes()
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        assert sum(batch.nbytes for batch in batches) == 64 << 20
        assert anonymous_bytes() - before < 8 << 20
        (place,) = find_mappings(batches)
        assert (place.name, place.inode, place.rights) == (str(path), path.stat().st_ino, "r--s")
        assert server.stats()["shared_bytes"] == 0
        assert make_table(batches) == make_table(make_filled_batches(64, 1 << 20))
        del batches


def test_a_copy_of_a_file_that_may_be_written_is_not_shared(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", pa.table({"n": [7] * 1000}))
    server = serve({"data": path}, shm_copy=True, allow_writers=True)
    assert set(read_table(server.uri("data"))["n"].to_pylist()) == {7}
    status, data = path.stat(), path.read_bytes()
    old, new = (number.to_bytes(8, "little") * 1000 for number in (7, 8))
    with path.open("r+b") as file:
        file.write(data.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the change cannot be noticed
    assert set(read_table(server.uri("data"))["n"].to_pylist()) == {8}


KINDS = ["table", "file", "lz4", "stream", "parquet", "directory"]


def dataset(kind: str, folder: Path, batches: list[pa.RecordBatch]) -> object:
    """Return a dataset that holds batches."""
    path = folder / f"data.{kind}"
    if kind == "table":
        return make_table(batches)
    if kind in ("file", "lz4"):
        return write_file(path, batches, compression="lz4" if kind == "lz4" else None)
    if kind == "parquet":
        pq.write_table(make_table(batches), path)
        return path
    if kind == "directory":
        path.mkdir()
        for number, batch in enumerate(batches):
            write_file(path / f"{number}.arrow", [batch])
        return path
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_dataset_arrives(serve: Serve, tmp_path: Path, kind: str, copy: bool) -> None:
    server = serve({"data": dataset(kind, tmp_path, make_mixed_batches())}, shm_copy=copy)
    uri, sent = server.uri("data"), make_table(make_mixed_batches())
    columns = ["t", "n", "l"]
    assert read_table(uri).select(columns).equals(sent.select(columns))
    assert read_table(uri)["d"].to_pylist() == sent["d"].to_pylist()
    assert read_table(uri, limit=777).select(columns) == sent.slice(0, 777).select(columns)
    assert read_table(uri, columns=columns) == sent.select(columns)
    assert read_table(uri, batch_rows=100).select(columns) == sent.select(columns)
    if copy:
        assert server.stats()["shared_bytes"] > 0


def test_each_descriptor_of_a_shared_file_is_closed(serve: Serve, tmp_path: Path) -> None:
    """The server opens a file again for each reader, and for the guard."""
    path = write_file(tmp_path / "data.arrow", make_number_batches(2))
    server = serve({"data": path})

    def count() -> int:
        gc.collect()
        return sum(
            os.path.realpath(f"/proc/self/fd/{name}") == str(path)
            for name in os.listdir("/proc/self/fd")
        )

    for _ in range(3):
        with splitarrow.open(server.uri("data")) as stream:
            batches = list(stream)
            assert count() > 0
        batches.clear()
    wait_until(lambda: count() == 0, "the end of the files")


def test_a_stream_without_readers_keeps_its_copy_but_not_its_source(
    serve: Serve, tmp_path: Path
) -> None:
    """The source holds a decoder and the open file."""
    sent = make_filled_batches(40, 1 << 20)
    path = tmp_path / "data.parquet"
    pq.write_table(make_table(sent), path)
    server = serve({"data": path})

    def is_open() -> bool:
        return any(
            os.path.realpath(f"/proc/self/fd/{name}") == str(path)
            for name in os.listdir("/proc/self/fd")
        )

    with splitarrow.open(server.uri("data")) as stream:
        assert next(stream).num_rows
        assert is_open()
    wait_until(lambda: not is_open(), "the end of the source")
    assert server.stats()["shared_bytes"] > 0
    for _ in range(2):
        assert read_table(server.uri("data")) == make_table(sent)


def test_a_second_reader_needs_no_second_copy(serve: Serve) -> None:
    server = serve({"data": make_filled_batches(8, 1 << 20)})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        shared = server.stats()["shared_bytes"]
        assert 8 << 20 <= shared < 9 << 20
        with splitarrow.open(server.uri("data")) as other:
            others = list(other)
        assert server.stats()["shared_bytes"] == shared
        assert {p.inode for p in find_mappings(batches)} == {p.inode for p in find_mappings(others)}


def test_the_least_recently_read_copy_is_evicted_first(serve: Serve) -> None:
    names = ("a", "b", "c")
    server = serve({name: make_filled_batches(4, 1 << 20) for name in names}, shm_cache=9 << 20)
    for name in ("a", "b", "a", "c"):
        read_table(server.uri(name))
        wait_until(lambda: server.stats()["connections"] == 0)
    assert 8 << 20 <= server.stats()["shared_bytes"] <= 9 << 20
    lent = server.stats()["shared_bytes"]
    read_table(server.uri("a"))  # its copy was kept
    assert server.stats()["shared_bytes"] == lent


def test_copies_of_a_file_that_changes_often_keep_few_descriptors(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitarrow.server.shm.regions._MAX_CHUNKS", 4)
    path = write_file(tmp_path / "data.arrow", make_number_batches(1))
    server = serve({"data": path}, shm_copy=True)
    gc.collect()  # mappings of earlier tests
    before, shared = open_memory(), list[int]()
    for version in range(12):
        sent = make_number_batches(1, start=version)
        write_file(path, sent)
        assert read_table(server.uri("data")) == make_table(sent)
        wait_until(lambda: server.stats()["connections"] == 0)
        shared.append(server.stats()["shared_bytes"])
    assert shared == [shared[0] * min(version, 4) for version in range(1, 13)]
    gc.collect()  # the reader's mappings
    assert len(open_memory() - before) == 4


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_a_dataset_larger_than_the_cache_reaches_every_reader(serve: Serve, cache: int) -> None:
    sent = make_filled_batches(40, 1 << 20)
    server = serve({"data": sent}, shm_cache=cache)
    streams = [splitarrow.open(server.uri("data")) for _ in range(3)]
    got: list[list[pa.RecordBatch]] = [[], [], []]
    got[0] += [next(streams[0]) for _ in range(40)]
    assert server.stats()["shared_bytes"] <= cache
    got[1] += [next(streams[1]) for _ in range(5)]
    batches: list[pa.RecordBatch] = []
    for batches, stream in zip(got, streams, strict=True):
        batches += stream
        assert batches == sent
        stream.close()
    got.clear()
    batches = []
    wait_until(has_no_leases(server))
    wait_until(lambda: server.stats()["shared_bytes"] == 0)


def test_streams_beyond_the_cache_leave_no_finalizers(serve: Serve) -> None:
    server = serve({"data": make_number_batches(2, 10)}, shm_cache=0)
    found = server._daemon.catalog.lookup("data")
    for _ in range(100):
        read_table(server.uri("data"))
    assert weakref.getweakrefcount(found) < 20


def test_a_removed_dataset_stays_with_its_readers(serve: Serve) -> None:
    server = serve({"data": make_number_batches(8)})
    with splitarrow.open(server.uri("data")) as stream:
        uri, batches = server.uri("data"), [next(stream)]
        server.remove("data")
        with pytest.raises(NotFoundError):
            read_table(uri)
        server.add("data", make_number_batches(2, 5))
        assert read_table(uri) == make_table(make_number_batches(2, 5))
        batches += stream
        assert batches == make_number_batches(8)


def test_every_reader_gets_the_error_of_a_source(serve: Serve) -> None:
    def failing() -> object:
        yield from make_filled_batches(20, 1 << 20)
        raise ValueError("the source broke")

    schema = make_filled_batches(1, 8)[0].schema
    reader = pa.RecordBatchReader.from_batches(schema, failing())  # pyright: ignore[reportArgumentType]
    server = serve({"data": reader})
    with pytest.raises(SplitArrowError):
        read_table(server.uri("data"))
    with pytest.raises(SplitArrowError):
        read_table(server.uri("data"))


def test_a_directory_of_many_files_arrives(serve: Serve, tmp_path: Path) -> None:
    sent = make_number_batches(60, 10)
    server = serve({"data": dataset("directory", tmp_path, sent)})
    assert read_table(server.uri("data")).sort_by("n") == make_table(sent)


def test_every_arrow_type_arrives(serve: Serve, tmp_path: Path) -> None:
    tables = {name: make_table(make_batches(array)) for name, array in ARRAYS.items()}
    names = {f"t{k}": name for k, name in enumerate(tables)}
    server = serve({key: tables[name] for key, name in names.items()})
    for key, name in names.items():
        assert read_table(server.uri(key)).equals(tables[name]), name


def test_simultaneous_readers_get_their_own_data(serve: Serve) -> None:
    server = serve({f"d{k}": make_filled_batches(20, 64 << 10, value=k) for k in range(8)})
    wrong: list[int] = []

    def read(k: int) -> None:
        if read_table(server.uri(f"d{k}")) != make_table(
            make_filled_batches(20, 64 << 10, value=k)
        ):
            wrong.append(k)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_removed_dataset_leaves_the_store_and_no_stream_for_another() -> None:
    store = RegionStore(1 << 20, 100)
    for number in range(100):  # the next dataset often has the address of the last one
        dataset = TableDataset(pa.table({"n": [number]}))
        stream = store.acquire(dataset, "key", partial(dataset.open, Request("d"), Encoding()), "d")
        chunk = stream.chunk(0, 0)
        assert isinstance(chunk, Chunk)
        assert stream.chunk(1, chunk.memory.size) is None
        body, found = chunk.messages[1].body, bytearray(8)
        assert body is not None
        body[0].read_into(memoryview(found))
        assert int.from_bytes(found, "little") == number
        store.release(stream)
        del dataset, stream, chunk, body
    gc.collect()
    assert store.nbytes == 0
    store.close()


def test_a_reader_that_leaves_early_does_not_keep_a_removed_dataset() -> None:
    store = RegionStore(1 << 20, 100, ChunkSizes(1, 1))
    dataset = TableDataset(make_number_batches(3))

    def read_chunk(dataset: TableDataset, index: int, offset: int) -> int:
        open_source = partial(dataset.open, Request("d"), Encoding())
        stream = store.acquire(dataset, "key", open_source, "d")
        chunk = stream.chunk(index, offset)
        assert isinstance(chunk, Chunk)
        store.release(stream)
        return chunk.memory.size

    end = read_chunk(dataset, 0, 0)
    read_chunk(dataset, 1, end)  # this reader continues where the first one has left
    assert store.nbytes > 0
    alive = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert alive() is None
    assert store.nbytes == 0


def test_a_reader_that_leaves_while_it_waits_does_not_fail_the_others() -> None:
    shares = DecodingShares(1)
    opened: list[GeneratorSource] = []

    def open_source() -> GeneratorSource:
        is_first = not opened

        def groups() -> MessageGroups:
            for number in range(3):
                if is_first and number == 1:
                    raise DecodingCancelledError("the reader left")
                with shares.hold(1, "it"):
                    yield [SourceMessage(b"%d" % number, [bytes(8)], 8)]

        opened.append(GeneratorSource(groups(), blocking=True))
        return opened[-1]

    store = RegionStore(1 << 20, 100, ChunkSizes(1, 1))
    stream = store.acquire(TableDataset(pa.table({"n": [1]})), "x", open_source, "x")
    try:
        first = stream.chunk(0, 0)
        assert isinstance(first, Chunk)
        with pytest.raises(DecodingCancelledError):
            stream.chunk(1, first.memory.size)
        writer = stream.chunk(1, first.memory.size)
        assert isinstance(writer, ChunkWriter)
        writer.skip(1)
        rest = [writer.next_chunk(), writer.next_chunk()]
        texts = [bytes(chunk.messages[0].metadata) for chunk in rest if chunk is not None]
        assert texts == [b"1", b"2"]
        assert writer.next_chunk() is None
        writer.close()
    finally:
        store.release(stream)
        store.close()
    assert shares.used == 0
