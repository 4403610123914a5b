"""What arrives equals what was sent, on every transport; everything else raises."""

from __future__ import annotations

import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.faults import Faults, inject_faults
from helpers.waiting import wait_until
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NotFoundError,
    ProtocolError,
    SplitArrowError,
    StallError,
)
from splitarrow.protocol.frames import OutgoingFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.splitter import SourceMessage, Splitter
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import blocking
from splitarrow.transport.base import ConnectOptions
from splitarrow.transport.registry import find_transport


def pair(server: splitarrow.Server, scheme: str) -> list[str]:
    return [server.uri("data", scheme, stream) for stream in ("metadata", "body")]


def test_arrives_equal(server: splitarrow.Server, scheme: str, table: pa.Table) -> None:
    with splitarrow.open(server.uri("data", scheme)) as stream:
        assert stream.schema.equals(table.schema, check_metadata=True)
        assert stream.transport.partition(" ")[0] == scheme
        batches = list(stream)
        assert [batch.num_rows for batch in batches] == [c.num_rows for c in table.to_batches()]
        assert pa.Table.from_batches(batches).equals(table)
        assert stream.rows_received == table.num_rows
        assert stream.bytes_received > table.nbytes / 2
        with pytest.raises(StopIteration):
            next(stream)


def test_batches_are_selected(server: splitarrow.Server, scheme: str, table: pa.Table) -> None:
    batches = table.to_batches()
    for first, end in ((0, 1), (1, 3), (len(batches) - 1, len(batches)), (2, 2)):
        with splitarrow.open(server.uri("data", scheme), batches=(first, end)) as stream:
            assert list(stream) == batches[first:end]
    with pytest.raises(splitarrow.errors.InvalidRequestError, match="no record batches 0:"):
        splitarrow.open(server.uri("data", scheme), batches=(0, len(batches) + 1))


def test_rows_are_selected_first(server: splitarrow.Server, scheme: str, table: pa.Table) -> None:
    def read(begin: int, end: int, **options: Any) -> pa.Table:
        with splitarrow.open(server.uri("data", scheme), rows=(begin, end), **options) as stream:
            return stream.read_all()

    total = table.num_rows
    spans = [(0, 1), (0, total), (1, 8), (108, 5108), (100, 6000), (total - 3, total), (9, 9)]
    for begin, end in spans:
        assert read(begin, end) == table.slice(begin, end - begin)
    assert read(100, 6000, limit=10, columns=["f"]) == table.select(["f"]).slice(100, 10)
    filtered = read(101, 6000, filter=("f", ">", 40.0), limit=7, columns=["n"])
    assert filtered["n"].to_pylist() == list(range(121, 128))
    assert read(130, 6001, filter=("f", ">", 40.0))["n"].to_pylist() == list(range(130, 6001))
    assert read(0, 110, filter=("f", ">", 40.0)).num_rows == 0
    with pytest.raises(splitarrow.errors.InvalidRequestError, match=f"no rows 0:{total + 1};"):
        read(0, total + 1)
    with pytest.raises(splitarrow.errors.UsageError, match="give one of them"):
        read(0, 1, batches=(0, 1))


def test_two_connections_arrive_equal(
    server: splitarrow.Server, scheme: str, table: pa.Table
) -> None:
    with splitarrow.open(pair(server, scheme)) as stream:
        assert stream.read_all().equals(table)


async def test_async_arrives_equal(server: splitarrow.Server, scheme: str, table: pa.Table) -> None:
    async with splitarrow.aio.open(server.uri("data", scheme)) as stream:
        assert stream.schema.equals(table.schema)
        assert (await stream.read_all()).equals(table)
    async with splitarrow.aio.open(pair(server, scheme)) as stream:
        batches = [batch async for batch in stream]
    assert pa.Table.from_batches(batches).equals(table)


def large_batches(kind: str) -> list[pa.RecordBatch]:
    """Return runs of messages of 40 kB and more, with others between them."""
    rows = [2500] * 30 + [2499] + [2500] * 3 + [100] + [10_000] * 9 + [2500]
    made: list[pa.RecordBatch] = []
    for number, count in enumerate(rows):
        values = np.arange(count, dtype=np.int64) * 7919 + number
        mask = np.arange(count) == 5 if number % 17 == 16 else None
        columns: list[pa.Array[Any]] = [pa.array(values, mask=mask), pa.array(values / 3)]
        if kind == "dictionaries":
            columns.append(pa.array([f"{number // 4}"] * count).dictionary_encode())
        made.append(pa.record_batch(columns, names=[f"c{k}" for k in range(len(columns))]))
    return made


@pytest.mark.parametrize("kind", ["plain", "lz4", "dictionaries"])
def test_runs_of_large_messages_arrive_equal(
    address: str, scheme: str, kind: str, tmp_path: Path
) -> None:
    batches = large_batches(kind)
    options = pa.ipc.IpcWriteOptions(compression="lz4" if kind == "lz4" else None)
    path = tmp_path / "data.arrows"
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_stream(file, batches[0].schema, options=options) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    listen = [address, f"{address}?stream=metadata", f"{address}?stream=body"]
    with splitarrow.serve({"data": path}, listen=listen) as server:
        uris = [server.uri("data", scheme), pair(server, scheme)]
        if scheme == "ucx" and kind != "lz4":
            metadata, body = pair(server, scheme)
            uris.append([metadata, f"{body}&body=remote"])
        for uri in uris:
            with splitarrow.open(uri, validate="full") as stream:
                kept = [batch for number, batch in enumerate(stream) if number % 3 == 0]
            assert kept == batches[::3]


def test_c_stream_and_reader(server: splitarrow.Server, scheme: str, table: pa.Table) -> None:
    uri = server.uri("data", scheme)
    with splitarrow.open(uri) as stream:
        assert pa.table(stream).equals(table)
    with splitarrow.open(uri) as stream:
        assert stream.to_reader().read_all().equals(table)


def test_bodies_are_aligned_and_outlive_the_stream(
    server: splitarrow.Server, scheme: str, table: pa.Table
) -> None:
    with splitarrow.open(server.uri("data", scheme)) as stream:
        batches = list(stream)
    for batch in batches:
        for column in batch.columns:
            for buffer in column.buffers():
                assert buffer is None or buffer.address % 8 == 0
    assert pa.Table.from_batches(batches).equals(table)
    large = batches[6]
    assert all(buffer.address % 64 == 0 for buffer in large.column("n").buffers() if buffer)


def test_one_connection_carries_one_stream_after_another(
    server: splitarrow.Server, scheme: str
) -> None:
    uri = DataUri.parse(server.uri("data", scheme))
    channel = find_transport(uri).connect(uri, ConnectOptions())
    try:
        for _ in range(3):
            blocking.send(channel, [TaggedFrame(uri.require_want_data(), 4, (b"data",))], 10)
            last: object = None
            while not (isinstance(last, UntaggedFrame) and last.payload[0] == 0):
                last = blocking.receive(channel, 10)[-1]
    finally:
        channel.close()


def test_close_at_any_point(server: splitarrow.Server, scheme: str, table: pa.Table) -> None:
    count = len(table.to_batches())
    for stop in range(count + 1):
        stream = splitarrow.open(server.uri("data", scheme))
        taken = [next(stream) for _ in range(stop)]
        stream.close()
        stream.close()
        with pytest.raises(ClosedError):
            next(stream)
        assert pa.Table.from_batches(taken, table.schema).equals(
            table.slice(0, sum(batch.num_rows for batch in taken))
        )
    wait_until(lambda: server.stats()["streams"] == 0)


def test_cancel_from_another_thread(scripted: Any) -> None:
    with scripted(lambda s, m: s.split(m[:3]), leave=False) as uri:
        stream = splitarrow.open(uri)
        assert [next(stream).num_rows, next(stream).num_rows] == [0, 1]
        timer = threading.Timer(0.05, stream.cancel)
        timer.start()
        with pytest.raises(ClosedError, match="cancelled"):
            next(stream)
        timer.join()
        stream.close()


async def test_cancelled_read_goes_on(scripted: Any) -> None:
    """A read that its task gives up loses nothing."""
    with scripted(lambda s, m: s.split(m[:3]), leave=False) as uri:
        async with splitarrow.aio.open(uri) as stream:
            assert (await anext(stream)).num_rows == 0
            assert (await anext(stream)).num_rows == 1
            with anyio.move_on_after(0.05) as scope:
                await anext(stream)
            assert scope.cancelled_caught
            assert stream.rows_received == 1


def test_unknown_dataset(server: splitarrow.Server, scheme: str) -> None:
    uri = str(DataUri.parse(server.uri("data", scheme)).replace(ticket=b"dat"))
    with pytest.raises(NotFoundError, match=r"'dat'.*data") as caught:
        splitarrow.open(uri)
    assert caught.value.code == "NOT_FOUND"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.code) == (
        NotFoundError,
        str(caught.value),
        "NOT_FOUND",
    )


def test_other_tag_is_refused(server: splitarrow.Server, scheme: str) -> None:
    uri = DataUri.parse(server.uri("data", scheme))
    before = server.stats()["protocol_errors"]
    with pytest.raises(ConnectionLostError):
        splitarrow.open(str(uri.replace(want_data=(1 << 41) + 5)))
    wait_until(lambda: server.stats()["protocol_errors"] == before + 1)
    with splitarrow.open(str(uri)) as stream:
        assert stream.read_all().num_rows > 0


def test_nobody_listens(scheme: str) -> None:
    nowhere = {"inproc": "inproc://nobody", "shm": "shm:///nowhere/data.sock"}.get(
        scheme, f"{scheme}://127.0.0.1:1"
    )
    with pytest.raises(ConnectError, match=re.escape(nowhere)):
        splitarrow.open(f"{nowhere}?want_data=0x10000000001&ticket=data", connect_timeout=5)


@pytest.mark.parametrize("sent", [0, 1, 5])
def test_silent_peer_is_bounded(scripted: Any, sent: int) -> None:
    with scripted(lambda s, m: s.split(m[:sent]), leave=False) as uri:
        begin = time.monotonic()
        with pytest.raises(StallError, match="silent"):
            splitarrow.open(uri, stall_timeout=0.5).read_all()
        assert 0.4 <= time.monotonic() - begin <= 5


async def test_silent_peer_is_bounded_async(scripted: Any) -> None:
    with scripted(lambda s, m: s.split(m[:5]), leave=False) as uri:
        begin = time.monotonic()
        with pytest.raises(StallError, match="silent"):
            async with splitarrow.aio.open(uri, stall_timeout=0.5) as stream:
                await stream.read_all()
        assert 0.4 <= time.monotonic() - begin <= 5


def all_frames(splitter: Splitter, messages: list[SourceMessage]) -> list[OutgoingFrame]:
    return [*splitter.split(messages), *splitter.end()]


def test_scripted_peer_is_understood(scripted: Any, table: pa.Table) -> None:
    with scripted(all_frames) as uri, splitarrow.open(uri) as stream:
        assert stream.read_all().equals(table)


def test_batches_before_a_violation_arrive(scripted: Any, scheme: str, table: pa.Table) -> None:
    def script(splitter: Splitter, messages: list[SourceMessage]) -> list[OutgoingFrame]:
        return [*all_frames(splitter, messages)[:-1], UntaggedFrame(b"\x7f\0\0\0\0")]

    with scripted(script) as uri, splitarrow.open(uri) as stream:
        arrived: list[pa.RecordBatch] = []
        with pytest.raises(ProtocolError):
            arrived.extend(stream)
        # Over ucx, the violation overtakes bodies.
        count = len(arrived) if scheme == "ucx" else len(table.to_batches())
        assert arrived == table.to_batches()[:count]


def test_cut_at_every_message(scripted: Any, table: pa.Table) -> None:
    total = 2 * len(table.to_batches()) + 2
    for kept in range(total):
        with scripted(lambda s, m, kept=kept: all_frames(s, m)[:kept]) as uri:
            with pytest.raises(ConnectionLostError) as caught:
                splitarrow.open(uri).read_all()
            assert caught.value.stream == "data"


@pytest.mark.parametrize("count", [0, 1, 12, 14, 200, 2**32 - 1])
def test_wrong_count_at_the_end(scripted: Any, count: int) -> None:
    def script(splitter: Splitter, messages: list[SourceMessage]) -> list[OutgoingFrame]:
        end = UntaggedFrame(b"\x00" + count.to_bytes(4, "little"))
        return [*all_frames(splitter, messages)[:-1], end]

    with scripted(script) as uri, pytest.raises((ProtocolError, ConnectionLostError)):
        splitarrow.open(uri).read_all()


def test_one_body_dropped(scripted: Any, table: pa.Table) -> None:
    for index in range(len(table.to_batches())):

        def script(
            splitter: Splitter, messages: list[SourceMessage], at: int = index
        ) -> list[OutgoingFrame]:
            frames = all_frames(splitter, messages)
            bodies = [frame for frame in frames if isinstance(frame, TaggedFrame)]
            frames.remove(bodies[at])
            return frames

        with scripted(script) as uri:
            with pytest.raises((ProtocolError, ConnectionLostError)) as caught:
                splitarrow.open(uri).read_all()
            assert caught.value.stream == "data"


def seeds(count: int, *, quick: int) -> list[Any]:
    """Return seeds; those from `quick` on make slow tests."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n >= quick else []) for n in range(count)]


@pytest.mark.parametrize("seed", seeds(12, quick=6))
def test_order_and_duplicates_do_not_matter(
    server: splitarrow.Server, scheme: str, table: pa.Table, seed: int
) -> None:
    faults = Faults(seed=seed, reorder=2 ** (seed % 6 + 1), duplicate=0.3, delay=0.001)
    with inject_faults(scheme, faults), splitarrow.open(server.uri("data", scheme)) as stream:
        assert stream.read_all().equals(table)
    with inject_faults(scheme, faults), splitarrow.open(pair(server, scheme)) as stream:
        assert stream.read_all().equals(table)


@pytest.mark.parametrize("seed", seeds(28, quick=8))
def test_faults_never_shorten(
    server: splitarrow.Server, scheme: str, table: pa.Table, seed: int
) -> None:
    faults = [
        Faults(seed=seed, drop=0.08),
        Faults(seed=seed, cut_after=seed),
        Faults(seed=seed, corrupt=0.1),
        Faults(seed=seed, drop=0.05, reorder=8, duplicate=0.2),
    ][seed % 4]
    with inject_faults(scheme, faults):
        try:
            with splitarrow.open(server.uri("data", scheme), stall_timeout=0.2) as stream:
                result = stream.read_all()
        except SplitArrowError:
            return
    assert result.num_rows == table.num_rows
    if not faults.corrupt:
        assert result.equals(table)
