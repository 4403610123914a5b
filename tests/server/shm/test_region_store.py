"""Copies of streams in sealed memory: the sizes of their chunks, and what the store keeps."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from splitarrow.errors import ClosedError, DatasetError
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.server.catalog.dataset import GeneratorSource, MessageGroups
from splitarrow.server.catalog.tables import TableDataset
from splitarrow.server.config import load_settings
from splitarrow.server.shm import mapped_files
from splitarrow.server.shm.mapped_files import FileGuards, FileMappings
from splitarrow.server.shm.region_store import (
    DEFAULT_SIZES,
    Chunk,
    ChunkSizes,
    ChunkWriter,
    RegionStore,
    SharedStream,
)
from splitarrow.server.shm.regions import SharedRegions, _CopyReader
from splitarrow.transport.memory.files import FileSpan, SourceFile

PAGE = resource.getpagesize()
DATASET = TableDataset(pa.table({"n": [1]}))


def open_source(count: int = 3, nbytes: int = 8) -> GeneratorSource:
    """Return a schema, and then messages with bodies."""

    def groups() -> MessageGroups:
        yield [SourceMessage(b"schema", None, 0)]
        for number in range(count):
            yield [SourceMessage(b"%d" % number, [bytes([number]) * nbytes], nbytes)]

    return GeneratorSource(groups(), blocking=True)


def acquire(store: RegionStore, key: object, count: int = 1, nbytes: int = 8) -> SharedStream:
    """Return a stream that is written, and that has a reader."""
    stream = store.acquire(DATASET, key, lambda: open_source(count, nbytes), "x")
    index = start = 0
    while isinstance(chunk := stream.chunk(index, start), Chunk):
        index, start = index + 1, chunk.memory.size
    return stream


def kept(store: RegionStore) -> list[object]:
    return [key for _, key in store._streams]


def test_each_chunk_is_twice_as_large_as_the_one_before() -> None:
    assert DEFAULT_SIZES == (1 << 20, 256 << 20)
    writer = ChunkWriter(open_source(20, PAGE), "x", sizes=ChunkSizes(PAGE, 4 * PAGE))
    chunks = list(iter(writer.next_chunk, None))
    bodies = [[message for message in chunk.messages if message.body] for chunk in chunks]
    assert [len(each) for each in bodies] == [1, 2, 4, 4, 4, 4, 1]
    assert writer.chunk_count == 7
    places = [message.body[0] for each in bodies for message in each if message.body]
    spans = [each for each in places if isinstance(each, FileSpan)]
    offsets = [span.offset for span in spans]
    assert len(offsets) == 20
    assert offsets == sorted(set(offsets)), "an offset identifies a body"
    assert [len(chunk.messages) for chunk in chunks] == [2, 2, 4, 4, 4, 4, 1]


@pytest.mark.parametrize(
    ("capacity", "max_chunks", "expected"), [(24, 9, 3), (23, 9, 2), (999, 3, 3), (999, 2, 2)]
)
def test_the_store_keeps_the_last_ones_that_fit(
    capacity: int, max_chunks: int, expected: int
) -> None:
    size = acquire(RegionStore(1 << 20, 9), "x").nbytes
    store = RegionStore(capacity * size // 8, max_chunks)
    for key in "abcdef":
        store.release(acquire(store, key))
    assert kept(store) == [*"abcdef"][-expected:]
    assert store.nbytes == expected * size
    assert (store.uses.hits, store.uses.misses) == (0, 6)
    store.release(store.acquire(DATASET, "e", open_source, "x"))
    assert (store.uses.hits, store.uses.misses) == (1, 6)
    assert kept(store)[-1] == "e"
    store.close()
    assert store.nbytes == 0


def test_the_copies_of_a_dataset_go_with_it() -> None:
    store = RegionStore(1 << 20, 9)
    dataset = TableDataset(pa.table({"n": [1]}))
    for key in "ab":
        stream = store.acquire(dataset, key, open_source, "x")
        stream.chunk(0, 0)
        store.release(stream)
    store.release(acquire(store, "other"))
    assert len(kept(store)) == 3
    del dataset
    assert store.nbytes > 0
    assert kept(store) == ["other"]


def test_a_stream_with_readers_is_not_evicted() -> None:
    size = acquire(RegionStore(1 << 20, 9), "x").nbytes
    store = RegionStore(2 * size, 9)
    streams = [acquire(store, "a"), store.acquire(DATASET, "a", open_source, "x")]
    store.release(streams[0])
    for key in "bc":
        store.release(acquire(store, key))
    assert kept(store) == ["a", "c"]
    store.release(streams[1])
    store.release(acquire(store, "d"))
    assert kept(store) == ["c", "d"]


def test_a_closed_store_leaves_its_streams_to_their_readers() -> None:
    store = RegionStore(1 << 20, 9)
    stream = acquire(store, "a")
    assert isinstance(stream.chunk(0, 0), Chunk)
    store.close()
    assert isinstance(stream.chunk(0, 0), Chunk)
    assert store.nbytes == 0
    store.release(stream)
    with pytest.raises(ClosedError, match="no longer shares"):
        stream.chunk(0, 0)


def test_a_reader_beyond_the_capacity_continues_with_its_own_copy() -> None:
    """The first one goes on with the source; each other one starts again, and skips what it has."""
    opened: list[GeneratorSource] = []

    def reopen() -> GeneratorSource:
        opened.append(open_source(5))
        return opened[-1]

    size = acquire(RegionStore(1 << 20, 9), "x").nbytes
    store = RegionStore(2 * size, 9, ChunkSizes(1, 1))
    streams = [store.acquire(DATASET, "a", reopen, "x") for _ in range(2)]
    readers = [_CopyReader(stream, []) for stream in streams]
    groups = [reader.groups() for reader in readers]
    first = [bytes(next(group)[-1].metadata) for group in groups]
    texts = [[bytes(message.metadata) for part in group for message in part] for group in groups]
    assert first == [b"0", b"0"]
    assert texts == [[b"1", b"2", b"3", b"4"]] * 2
    assert len(opened) == 2
    assert kept(store) == []
    for reader in readers:
        reader.close()


@pytest.mark.parametrize(
    ("descriptors", "chunks"),
    [(resource.RLIM_INFINITY, 4096), (1600, 100), (1 << 20, 4096)],
)
def test_copies_take_a_part_of_the_descriptors_and_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, chunks: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    monkeypatch.setattr("splitarrow.server.shm.regions.measure_host_memory", lambda: 4000)
    regions = SharedRegions(load_settings(vortex_cache=100), 2)
    assert (regions.store._capacity, regions.vortex_store._capacity) == (1000, 50)
    assert (regions.store._max_chunks, regions.vortex_store._max_chunks) == (chunks, chunks)
    assert regions.vortex_store.chunk_sizes == (1 << 20, 8 << 20)
    assert SharedRegions(load_settings(shm_cache=7)).store._capacity == 7


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Callable[[str], SourceFile]]:
    files: list[SourceFile] = []

    def open_file(name: str) -> SourceFile:
        (tmp_path / name).write_bytes(bytes(PAGE))
        files.append(SourceFile(tmp_path / name))
        return files[-1]

    yield open_file
    for file in files:
        file.close()


@pytest.mark.parametrize("trust", [True, False])
async def test_the_mappings_used_last_are_kept(
    monkeypatch: pytest.MonkeyPatch, open_file: Callable[[str], SourceFile], trust: bool
) -> None:
    monkeypatch.setattr(mapped_files, "_MAX_MAPPINGS", 2)
    guards = FileGuards()
    mappings = FileMappings(guards, trust=trust)
    files = [open_file(name) for name in "abc"]
    regions = [mappings.map(file) for file in files[:2]]
    assert mappings.map(files[0]) is regions[0]
    mappings.map(files[2])
    assert list(mappings._mappings) == [files[0].version, files[2].version]
    assert len(guards._guards) == (0 if trust else 3)
    monkeypatch.setattr(mapped_files, "_MAPPING_POLL_SECONDS", 0.001)
    monkeypatch.setattr(mapped_files, "_IDLE_SECONDS", 0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mappings.run)
        with anyio.fail_after(20):
            while mappings._mappings:
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    for guard in guards._guards.values():
        guard.close()


def test_files_that_cannot_be_mapped_are_remembered(
    monkeypatch: pytest.MonkeyPatch, open_file: Callable[[str], SourceFile]
) -> None:
    monkeypatch.setattr(mapped_files, "_MAX_REFUSALS", 2)
    monkeypatch.setattr(anyio, "current_time", lambda: 0.0)
    mappings = FileMappings(FileGuards(), trust=False)
    tries: list[str] = []

    def refuse(self: FileGuards, file: SourceFile) -> Any:
        tries.append(Path(file.path).name)
        raise DatasetError("a writer")

    monkeypatch.setattr(FileGuards, "guard", refuse)
    counts: list[int] = []
    for name in ("a", "b", "c", "d"):
        file = open_file(name)
        assert mappings.map(file) is None
        assert mappings.map(file) is None
        counts.append(len(mappings._refused))
    assert counts == [1, 2, 3, 1]
    assert tries == ["a", "b", "c", "d"]
