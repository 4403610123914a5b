"""Leases: the server counts what a reader holds until the reader drops the last buffer of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.shm import (
    has_no_leases,
    make_filled_batches,
    make_mixed_batches,
    make_number_batches,
    make_table,
    read_table,
)
from helpers.shm_peers import (
    HANDLE,
    Sample,
    ScriptedServer,
    WithDescriptors,
    announcement,
    end,
    message,
    remote_body,
    sealed_memory,
    span_list,
)
from helpers.shm_servers import Serve
from helpers.waiting import wait_until
from splitarrow.transport import blocking


def test_dropped_batches_are_freed_while_the_stream_goes_on(serve: Serve) -> None:
    server = serve({"data": make_number_batches(8)})
    with splitarrow.open(server.uri("data")) as stream:
        seen = sum(batch.num_rows for batch in stream)
        assert seen == 8000
        wait_until(has_no_leases(server))
        wait_until(lambda: server.stats()["connections"] == 0)


def test_only_live_batches_are_leased(serve: Serve) -> None:
    server = serve({"data": make_number_batches(8)})
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
        wait_until(has_no_leases(server))


def test_every_buffer_of_a_batch_is_a_lease(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", make_mixed_batches(3))
    server = serve({"table": make_mixed_batches(3), "file": path})
    for name in ("table", "file"):
        with splitarrow.open(server.uri(name)) as stream:
            batch = next(stream)
            rest = list(stream)
            held = server.stats()["leases"]
            del rest
            # n: values. t: validity, offsets, characters. l: validity, offsets, validity, values.
            # d: indices. All batches share the two buffers of the dictionary.
            wait_until(lambda: server.stats()["leases"] == 11)
            assert held == 2 + 3 * 9
            del batch
        del stream  # which holds the dictionary
        wait_until(has_no_leases(server))


def test_a_closed_stream_holds_no_dictionary(serve: Serve) -> None:
    """The connection ends with the last batch, even while the closed stream object lives."""
    server = serve({"data": make_mixed_batches(3)})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    stream.close()
    assert batches == make_mixed_batches(3)
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0, seconds=2)
    assert stream.schema == make_mixed_batches(1)[0].schema


@pytest.mark.parametrize("part", ["slice", "column", "list", "table", "buffer"])
def test_any_part_of_a_batch_keeps_its_lease(serve: Serve, part: str) -> None:
    server = serve({"data": make_number_batches(4)})
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
    # One thread sends the frees of all connections, in order. Once it has freed a later stream,
    # no more frees of this connection are on their way.
    read_table(server.uri("data"))
    wait_until(lambda: server.stats()["connections"] == 1)
    assert server.stats()["leases"] == 1
    del kept
    wait_until(has_no_leases(server))
    wait_until(lambda: server.stats()["connections"] == 0)


def test_batches_outlive_a_stream_that_was_read_to_its_end(serve: Serve) -> None:
    sent = make_number_batches(8)
    server = serve({"data": sent})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    assert next(stream, None) is None
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
    assert has_no_leases(server)()


def test_batches_outlive_the_stream_of_a_client(serve: Serve) -> None:
    sent = make_number_batches(8)
    server = serve({"data": sent}, control="grpc://127.0.0.1:0")
    with splitarrow.connect(str(server.control_uri)) as client:
        with client.read("data", transport="shm") as stream:
            batches = list(stream)
            assert server.stats()["leases"] == 8
        table = client.read("data", transport="shm", prefetch_bytes=1 << 20).read_all()
    assert server.stats()["leases"] == 16
    assert batches == sent
    assert table == make_table(sent)
    del batches[1:], table
    wait_until(lambda: server.stats()["leases"] == 1)
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0)


async def test_batches_outlive_the_stream_of_an_asynchronous_client(serve: Serve) -> None:
    sent = make_number_batches(8)
    server = serve({"data": sent}, control="grpc://127.0.0.1:0")
    async with (
        splitarrow.aio.connect(str(server.control_uri)) as client,
        client.read("data", transport="shm") as stream,
    ):
        batches = [batch async for batch in stream]
    assert server.stats()["leases"] == 8
    assert batches == sent
    del stream
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0)


def test_closing_a_stream_early_frees_everything(serve: Serve) -> None:
    """Batches that were read stay valid: their memory is mapped, and nobody writes to it."""
    sent = make_number_batches(20_000, 4)  # more than the socket buffers
    server = serve({"data": sent})
    stream = splitarrow.open(server.uri("data"))
    batches = [next(stream) for _ in range(20)]
    stream.close()
    wait_until(lambda: server.stats()["connections"] == 0)
    assert has_no_leases(server)()
    assert batches == sent[:20]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_garbage_collected_stream_frees_everything(serve: Serve) -> None:
    server = serve({"data": make_number_batches(50)})
    stream = splitarrow.open(server.uri("data"))
    batch = next(stream)
    del stream, batch
    wait_until(has_no_leases(server))


def test_close_is_idempotent_while_leases_are_held(serve: Serve) -> None:
    server = serve({"data": make_number_batches(3)})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    for _ in range(3):
        stream.close()
    assert server.stats()["leases"] == 3
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0)


def test_batches_dropped_on_many_threads_are_all_freed(serve: Serve) -> None:
    server = serve({"data": make_number_batches(2000, 16)})
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
        wait_until(has_no_leases(server))


@pytest.mark.slow
@pytest.mark.long
def test_a_hundred_thousand_leases_are_freed(serve: Serve) -> None:
    server = serve({"data": make_number_batches(100_000, 1)})
    stream = splitarrow.open(server.uri("data"))
    batches = list(stream)
    stream.close()
    assert server.stats()["leases"] == 100_000
    batches.clear()
    wait_until(lambda: server.stats()["connections"] == 0)
    assert has_no_leases(server)()


def test_leases_belong_to_their_stream(serve: Serve) -> None:
    server = serve({"data": make_number_batches(8)})
    with splitarrow.open(server.uri("data")) as first, splitarrow.open(server.uri("data")) as other:
        ours, theirs = list(first), list(other)
        assert server.stats()["leases"] == 16
        ours.clear()
        wait_until(lambda: server.stats()["leases"] == 8)
        assert make_table(theirs) == make_table(make_number_batches(8))
        theirs.clear()
        wait_until(has_no_leases(server))


def test_equal_offsets_in_several_files_are_separate_leases(serve: Serve, tmp_path: Path) -> None:
    """Each file is a region of its own, so that its offsets count separately."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(4):
        write_file(folder / f"{number}.arrow", make_number_batches(1, 1000, 1000 * number))
    server = serve({"data": folder})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        assert make_table(batches) == make_table(make_number_batches(4))
        stats = server.stats()
        assert stats["leases"] == 4
        assert stats["leased_bytes"] == 4 * 8000
        del batches
    wait_until(has_no_leases(server))


def test_the_age_of_the_oldest_lease_is_reported(serve: Serve) -> None:
    server = serve({"data": make_number_batches(2)})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        wait_until(lambda: server.stats()["lease_seconds"] >= 1, seconds=5)
        del batches
        wait_until(has_no_leases(server))


def test_leased_bytes_are_counted_but_not_sent(serve: Serve) -> None:
    server = serve({"data": make_filled_batches(4, 1 << 20)})
    assert read_table(server.uri("data")).num_rows == 4 << 17
    wait_until(lambda: server.stats()["connections"] == 0)
    stats = server.stats()
    assert stats["bytes_lent"] == 4 << 20
    assert 0 < stats["bytes_sent"] < 10_000


def many(count: int) -> tuple[Sample, list[bytes | WithDescriptors]]:
    """Return a sample, and a script that sends it from `count` offsets."""
    sample = Sample.of(make_number_batches(1, 8)[0])
    steps: list[bytes | WithDescriptors] = [message(0, sample.schema)]
    region = sealed_memory(sample.body.ljust(64, b"\0") * count)
    steps.append(WithDescriptors(announcement(64 * count, HANDLE), (region,)))
    pieces = [
        message(k + 1, sample.metadata) + remote_body(k + 1, span_list([(0, 0), (64 * k, 64)]))
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


def test_an_offset_delivered_twice_is_freed_twice(tmp_path: Path) -> None:
    sample = Sample.of(make_number_batches(1, 8)[0])
    region = sealed_memory(sample.body)
    steps: list[bytes | WithDescriptors] = [
        message(0, sample.schema),
        WithDescriptors(announcement(len(sample.body)), (region,)),
    ]
    for k in (1, 2, 3):
        steps += [message(k, sample.metadata), remote_body(k, span_list([(0, 0), (0, 64)]))]
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


def test_a_server_without_free_data_gets_no_frees(tmp_path: Path) -> None:
    sample, steps = many(10)
    with ScriptedServer(tmp_path, steps, free_data=None) as server:
        stream = splitarrow.open(server.uri)
        batches = list(stream)
        stream.close()
        wait_until(server.left.is_set)
        assert server.frees == []
        assert batches == [sample.batch] * 10


@pytest.mark.slow
def test_stats_can_be_read_while_readers_come_and_go(serve: Serve) -> None:
    """Any thread may call `Server.stats` at any time."""
    server = serve({"data": make_number_batches(4, 10)})
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            with splitarrow.open(server.uri("data")) as stream:
                list(stream)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4_000):
            assert server.stats()["leases"] >= 0
    finally:
        done.set()
        for thread in threads:
            thread.join()
    wait_until(has_no_leases(server))


class ObservedLock:
    """A reentrant lock that records whether a thread had to wait for another one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.contended = False

    def acquire(self, blocking: bool = True) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self.contended = self.contended or blocking
        return blocking and self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize("ended", [True, False])
def test_a_connection_is_not_closed_while_frees_are_sent_on_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Otherwise the kernel could reuse its descriptor for another connection."""
    server = serve({"data": make_number_batches(8)})
    sending, closed = threading.Event(), threading.Event()
    stream = splitarrow.open(server.uri("data"))
    assert isinstance(stream, splitarrow.Stream)
    (channel,) = stream._reader.channels.values()
    closed_in_between: list[bool] = []
    send = blocking.send
    lock = ObservedLock()
    monkeypatch.setattr(stream._reader._lease_returns, "_send_lock", lock)

    def slow(*arguments: Any) -> None:
        sending.set()
        wait_until(lambda: closed.is_set() or lock.contended, "the other thread")
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
        stream.close()
        closed.set()

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(10)
    assert not closer.is_alive()
    wait_until(lambda: bool(closed_in_between))
    assert not closed_in_between[0]
    batch = None
    monkeypatch.undo()
    wait_until(has_no_leases(server))
    with splitarrow.open(server.uri("data")) as again:
        assert again.read_all().num_rows == 8000
    wait_until(has_no_leases(server))
