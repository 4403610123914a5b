"""What readers share: one region for all, no copy of a file, and a bound on what is kept."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from splitarrow.errors import NotFoundError, SplitArrowError

from ..property.arrow_data import arrays_of_all_types, batches_of
from .conftest import Serve
from .parts import (
    anonymous_bytes,
    filled,
    free_of_leases,
    mixed,
    numbers,
    places_of,
    read_table,
    table_of,
    wait_until,
    write_file,
)

ARRAYS = arrays_of_all_types()


def test_a_file_is_its_own_region(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", filled(64, 1 << 20))
    server = serve({"data": path})
    read_table(server.uri("data"))
    before = anonymous_bytes()
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        assert sum(batch.nbytes for batch in batches) == 64 << 20
        assert anonymous_bytes() - before < 8 << 20
        (place,) = places_of(batches)
        assert (place.name, place.inode, place.rights) == (str(path), path.stat().st_ino, "r--s")
        assert server.stats()["shared_bytes"] == 0
        assert table_of(batches) == table_of(filled(64, 1 << 20))
        del batches


KINDS = ["table", "file", "lz4", "stream", "parquet", "directory"]


def dataset(kind: str, folder: Path, batches: list[pa.RecordBatch]) -> object:
    """Return a dataset of a kind."""
    path = folder / f"data.{kind}"
    if kind == "table":
        return table_of(batches)
    if kind in ("file", "lz4"):
        return write_file(path, batches, compression="lz4" if kind == "lz4" else None)
    if kind == "parquet":
        pq.write_table(table_of(batches), path)
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
def test_all_kinds_arrive(serve: Serve, tmp_path: Path, kind: str, copy: bool) -> None:
    server = serve({"data": dataset(kind, tmp_path, mixed())}, shm_copy=copy)
    uri, sent = server.uri("data"), table_of(mixed())
    columns = ["t", "n", "l"]
    assert read_table(uri).select(columns).equals(sent.select(columns))
    assert read_table(uri)["d"].to_pylist() == sent["d"].to_pylist()
    assert read_table(uri, limit=777).select(columns) == sent.slice(0, 777).select(columns)
    assert read_table(uri, columns=columns) == sent.select(columns)
    assert read_table(uri, batch_rows=100).select(columns) == sent.select(columns)
    if copy:
        assert server.stats()["shared_bytes"] > 0


def test_a_second_reader_adds_nothing(serve: Serve) -> None:
    server = serve({"data": filled(8, 1 << 20)})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        shared = server.stats()["shared_bytes"]
        assert 8 << 20 <= shared < 9 << 20
        with splitarrow.open(server.uri("data")) as other:
            others = list(other)
        assert server.stats()["shared_bytes"] == shared
        assert {p.inode for p in places_of(batches)} == {p.inode for p in places_of(others)}


def test_what_was_read_longest_ago_goes_first(serve: Serve) -> None:
    names = ("a", "b", "c")
    server = serve({name: filled(4, 1 << 20) for name in names}, shm_cache=9 << 20)
    for name in ("a", "b", "a", "c"):
        read_table(server.uri(name))
        wait_until(lambda: server.stats()["connections"] == 0)
    assert 8 << 20 <= server.stats()["shared_bytes"] <= 9 << 20
    lent = server.stats()["shared_bytes"]
    read_table(server.uri("a"))  # it was kept
    assert server.stats()["shared_bytes"] == lent


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_datasets_larger_than_the_cache(serve: Serve, cache: int) -> None:
    sent = filled(40, 1 << 20)
    server = serve({"data": sent}, shm_cache=cache)
    streams = [splitarrow.open(server.uri("data")) for _ in range(3)]
    got: list[list[pa.RecordBatch]] = [[], [], []]
    got[0] += [next(streams[0]) for _ in range(40)]
    got[1] += [next(streams[1]) for _ in range(5)]
    batches: list[pa.RecordBatch] = []
    for batches, stream in zip(got, streams, strict=True):
        batches += stream
        assert batches == sent
        stream.close()
    got.clear()
    batches = []
    wait_until(free_of_leases(server))
    wait_until(lambda: server.stats()["shared_bytes"] == 0)


def test_streams_that_are_not_kept_leave_nothing_at_the_dataset(serve: Serve) -> None:
    server = serve({"data": numbers(2, 10)}, shm_cache=0)
    found = server._daemon.catalog.lookup("data")
    for _ in range(100):
        read_table(server.uri("data"))
    assert weakref.getweakrefcount(found) < 20


def test_a_removed_dataset_stays_with_its_readers(serve: Serve) -> None:
    server = serve({"data": numbers(8)})
    with splitarrow.open(server.uri("data")) as stream:
        uri, batches = server.uri("data"), [next(stream)]
        server.remove("data")
        with pytest.raises(NotFoundError):
            read_table(uri)
        server.add("data", numbers(2, 5))
        assert read_table(uri) == table_of(numbers(2, 5))
        batches += stream
        assert batches == numbers(8)


def test_a_source_that_fails_raises_for_all(serve: Serve) -> None:
    def failing() -> object:
        yield from filled(20, 1 << 20)
        raise ValueError("the source broke")

    schema = filled(1, 8)[0].schema
    reader = pa.RecordBatchReader.from_batches(schema, failing())  # pyright: ignore[reportArgumentType]
    server = serve({"data": reader})
    with pytest.raises(SplitArrowError):
        read_table(server.uri("data"))
    with pytest.raises(SplitArrowError):
        read_table(server.uri("data"))


def test_a_directory_of_many_files(serve: Serve, tmp_path: Path) -> None:
    sent = numbers(60, 10)
    server = serve({"data": dataset("directory", tmp_path, sent)})
    assert read_table(server.uri("data")).sort_by("n") == table_of(sent)


def test_all_types(serve: Serve, tmp_path: Path) -> None:
    tables = {name: table_of(batches_of(array)) for name, array in ARRAYS.items()}
    names = {f"t{k}": name for k, name in enumerate(tables)}
    server = serve({key: tables[name] for key, name in names.items()})
    for key, name in names.items():
        assert read_table(server.uri(key)).equals(tables[name]), name


def test_readers_at_once_get_their_own_data(serve: Serve) -> None:
    server = serve({f"d{k}": filled(20, 64 << 10, value=k) for k in range(8)})
    wrong: list[int] = []

    def read(k: int) -> None:
        if read_table(server.uri(f"d{k}")) != table_of(filled(20, 64 << 10, value=k)):
            wrong.append(k)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
