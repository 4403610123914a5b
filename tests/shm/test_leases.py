"""Leases: what a reader holds is counted, and given back when the last buffer of it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import ClosedError
from splitarrow.transport import blocking

from .conftest import Serve
from .parts import (
    filled,
    free_of_leases,
    mixed,
    numbers,
    read_table,
    table_of,
    wait_until,
    write_file,
)
from .peers import (
    HANDLE,
    Carried,
    Sample,
    ScriptedServer,
    announced,
    end,
    listed,
    memory,
    message,
    placed,
)


def test_dropped_batches_are_given_back_one_by_one(serve: Serve) -> None:
    server = serve({"data": numbers(8)})
    with splitarrow.open(server.uri("data")) as stream:
        seen = sum(batch.num_rows for batch in stream)
        assert seen == 8000
        wait_until(free_of_leases(server))
        assert server.stats()["connections"] == 1
    wait_until(lambda: server.stats()["connections"] == 0)


def test_what_is_kept_is_leased_and_nothing_else(serve: Serve) -> None:
    server = serve({"data": numbers(8)})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        stats = server.stats()
        assert (stats["leases"], stats["leased_bytes"]) == (8, 64_000)
        kept = batches[3]
        batches.clear()
        wait_until(lambda: server.stats()["leases"] == 1)
        assert server.stats()["leased_bytes"] == 8000
        assert kept.column("n")[0].as_py() == 3000
        del kept
        wait_until(free_of_leases(server))


def test_every_buffer_of_a_batch_is_a_lease(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", mixed(3))
    server = serve({"table": mixed(3), "file": path})
    for name in ("table", "file"):
        with splitarrow.open(server.uri(name)) as stream:
            batch = next(stream)
            rest = list(stream)
            held = server.stats()["leases"]
            del rest
            # n; t: nulls, offsets, texts; l: nulls, offsets, nulls, values; d: indices. The
            # values of the dictionary are two more, which every batch shares.
            wait_until(lambda: server.stats()["leases"] == 11)
            assert held == 2 + 3 * 9
            del batch
        del stream  # it has the dictionary
        wait_until(free_of_leases(server))


def test_a_closed_stream_holds_no_dictionary(serve: Serve) -> None:
    """The connection ends with the last batch, whether or not somebody still has the stream."""
    server = serve({"data": mixed(3)})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    stream.close()
    assert batches == mixed(3)
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0, 2)
    assert stream.schema == mixed(1)[0].schema


@pytest.mark.parametrize("part", ["slice", "column", "list", "table", "buffer"])
def test_any_part_of_a_batch_keeps_it(serve: Serve, part: str) -> None:
    server = serve({"data": numbers(4)})
    with splitarrow.open(server.uri("data")) as stream:
        batch = list(stream)[2]
    parts: dict[str, Callable[[pa.RecordBatch], object]] = {
        "slice": lambda batch: batch.slice(10, 2),
        "column": lambda batch: batch.column("n"),
        "list": lambda batch: [batch.column("n").slice(5, 1)],
        "table": lambda batch: pa.Table.from_batches([batch]).slice(7),
        "buffer": lambda batch: batch.column("n").buffers()[1],
    }
    kept = parts[part](batch)
    del batch
    wait_until(lambda: server.stats()["leases"] == 1)
    threading.Event().wait(0.05)  # more frees would have come by now
    assert server.stats()["leases"] == 1
    del kept
    wait_until(free_of_leases(server))
    wait_until(lambda: server.stats()["connections"] == 0)


def test_batches_outlive_a_stream_that_was_read_to_its_end(serve: Serve) -> None:
    sent = numbers(8)
    server = serve({"data": sent})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    stream.close()
    with pytest.raises(ClosedError):
        next(stream)
    del stream
    assert server.stats()["leases"] == 8
    assert server.stats()["connections"] == 1
    assert batches == sent
    del batches[1:]
    wait_until(lambda: server.stats()["leases"] == 1)
    assert batches == sent[:1]
    assert server.stats()["connections"] == 1
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0)
    assert free_of_leases(server)()


def test_a_stream_closed_in_the_middle_gives_all_back(serve: Serve) -> None:
    """What was taken stays valid: the memory is mapped, and nobody writes to it."""
    sent = numbers(20_000, 4)  # more than the socket holds
    server = serve({"data": sent})
    stream = splitarrow.open(server.uri("data"))
    batches = [next(stream) for _ in range(20)]
    stream.close()
    wait_until(lambda: server.stats()["connections"] == 0)
    assert free_of_leases(server)()
    assert batches == sent[:20]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_that_is_forgotten_gives_all_back(serve: Serve) -> None:
    server = serve({"data": numbers(50)})
    stream = splitarrow.open(server.uri("data"))
    batch = next(stream)
    del stream, batch
    wait_until(free_of_leases(server))


def test_close_is_idempotent_while_leases_are_held(serve: Serve) -> None:
    server = serve({"data": numbers(3)})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    for _ in range(3):
        stream.close()
    assert server.stats()["leases"] == 3
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0)


def test_batches_dropped_on_many_threads_all_come_back(serve: Serve) -> None:
    server = serve({"data": numbers(2000, 16)})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        assert server.stats()["leases"] == 2000
        shares = [batches[k::8] for k in range(8)]
        batches.clear()
        start = threading.Barrier(8)

        def drop(share: list[pa.RecordBatch]) -> None:
            start.wait()
            while share:
                share.pop()

        threads = [threading.Thread(target=drop, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(free_of_leases(server))


def test_a_hundred_thousand_leases_come_back(serve: Serve) -> None:
    server = serve({"data": numbers(100_000, 1)})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    stream.close()
    assert server.stats()["leases"] == 100_000
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0)
    assert free_of_leases(server)()


def test_leases_of_several_streams_are_told_apart(serve: Serve) -> None:
    server = serve({"data": numbers(8)})
    with splitarrow.open(server.uri("data")) as first, splitarrow.open(server.uri("data")) as other:
        ours, theirs = list(first), list(other)
        assert server.stats()["leases"] == 16
        ours.clear()
        wait_until(lambda: server.stats()["leases"] == 8)
        assert table_of(theirs) == table_of(numbers(8))
        theirs.clear()
        wait_until(free_of_leases(server))


def test_files_of_a_directory_each_count(serve: Serve, tmp_path: Path) -> None:
    """Bodies at the same offsets of several files are leases of their own, with their bytes."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(4):
        write_file(folder / f"{number}.arrow", numbers(1, 1000, 1000 * number))
    server = serve({"data": folder})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        assert table_of(batches) == table_of(numbers(4))
        stats = server.stats()
        assert stats["leases"] == 4
        assert stats["leased_bytes"] == 4 * 8000
        del batches
    wait_until(free_of_leases(server))


def test_the_age_of_the_oldest_lease_is_told(serve: Serve) -> None:
    server = serve({"data": numbers(2)})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        wait_until(lambda: server.stats()["lease_seconds"] >= 1, 5)
        del batches
        wait_until(free_of_leases(server))


def test_bytes_lent_are_counted_and_not_sent(serve: Serve) -> None:
    server = serve({"data": filled(4, 1 << 20)})
    assert read_table(server.uri("data")).num_rows == 4 << 17
    wait_until(lambda: server.stats()["connections"] == 0)
    stats = server.stats()
    assert stats["bytes_lent"] == 4 << 20
    assert 0 < stats["bytes_sent"] < 10_000


def many(count: int) -> tuple[Sample, list[bytes | Carried]]:
    """Return a sample, and a script that sends it from `count` places."""
    sample = Sample.of(numbers(1, 8)[0])
    steps: list[bytes | Carried] = [message(0, sample.schema)]
    region = memory(sample.body.ljust(64, b"\0") * count)
    steps.append(Carried(announced(64 * count, HANDLE), (region,)))
    pieces = [
        message(k + 1, sample.metadata) + placed(k + 1, listed([(0, 0), (64 * k, 64)]))
        for k in range(count)
    ]
    steps += [b"".join(pieces), end(count + 1)]
    return sample, steps


@pytest.mark.parametrize("keep", [True, False])
def test_frees_are_coalesced(tmp_path: Path, keep: bool) -> None:
    sample, steps = many(10_000)
    with ScriptedServer(tmp_path, steps) as server:
        stream = splitarrow.open(server.uri)
        batches: list[pa.RecordBatch] = []
        batch: pa.RecordBatch | None = None
        for batch in stream:
            assert batch == sample.batch
            if keep:
                batches.append(batch)
        batch = None
        stream.close()
        batches.clear()
        wait_until(server.left.is_set)
        freed = [offset for offsets in server.frees for offset in offsets]
        assert sorted(freed) == [64 * k for k in range(10_000)]
        assert len(server.frees) < (100 if keep else 1000)


def test_a_place_that_is_delivered_twice_is_freed_twice(tmp_path: Path) -> None:
    sample = Sample.of(numbers(1, 8)[0])
    region = memory(sample.body)
    steps: list[bytes | Carried] = [
        message(0, sample.schema),
        Carried(announced(len(sample.body)), (region,)),
    ]
    for k in (1, 2, 3):
        steps += [message(k, sample.metadata), placed(k, listed([(0, 0), (0, 64)]))]
    with ScriptedServer(tmp_path, [*steps, end(4)]) as server:
        with splitarrow.open(server.uri) as stream:
            batches = list(stream)
            assert batches == [sample.batch] * 3
            batches.pop()
            wait_until(lambda: sum(map(len, server.frees)) == 1)
            batches.clear()
            wait_until(lambda: sum(map(len, server.frees)) == 3)
        assert {offset for offsets in server.frees for offset in offsets} == {0}
        wait_until(server.left.is_set)


def test_a_server_that_takes_no_frees_gets_none(tmp_path: Path) -> None:
    sample, steps = many(10)
    with ScriptedServer(tmp_path, steps, free_data=None) as server:
        stream = splitarrow.open(server.uri)
        batches = list(stream)
        stream.close()
        wait_until(server.left.is_set)
        assert server.frees == []
        assert batches == [sample.batch] * 10


def test_counting_while_readers_come_and_go(serve: Serve) -> None:
    """`Server.stats` may be asked at any time, from any thread."""
    server = serve({"data": numbers(4, 10)})
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            with splitarrow.open(server.uri("data")) as stream:
                list(stream)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20_000):
            assert server.stats()["leases"] >= 0
    finally:
        done.set()
        for thread in threads:
            thread.join()
    wait_until(free_of_leases(server))


@pytest.mark.parametrize("ended", [True, False])
def test_a_connection_is_not_closed_while_leases_are_sent_on_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Its descriptor could be another connection's by then."""
    server = serve({"data": numbers(8)})
    sending, closing = threading.Event(), threading.Event()
    stream = splitarrow.open(server.uri("data"))
    (channel,) = stream._reader.channels.values()
    closed_in_between: list[bool] = []
    send = blocking.send

    def slow(*arguments: Any) -> None:
        sending.set()
        closing.wait(5)
        time.sleep(0.05)  # what closes now has every chance to
        closed_in_between.append(channel.fileno() < 0)
        send(*arguments)

    monkeypatch.setattr(blocking, "send", slow)
    batch = next(stream)
    if ended:
        batch = list(stream)[-1]
    else:
        del batch
    assert sending.wait(5)

    def close() -> None:
        closing.set()
        stream.close()

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(10)
    assert not closer.is_alive()
    wait_until(lambda: bool(closed_in_between))
    assert not closed_in_between[0]
    batch = None
    monkeypatch.undo()
    wait_until(free_of_leases(server))
    with splitarrow.open(server.uri("data")) as again:
        assert again.read_all().num_rows == 8000
    wait_until(free_of_leases(server))
