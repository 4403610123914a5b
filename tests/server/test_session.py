"""What a session promises over every transport: reports, other readers, leases per user."""

from __future__ import annotations

import gc
import math
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.ending_peers import Step, WirePeer
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.errors import ExhaustedError, RemoteError
from splitarrow.protocol.frames import TaggedFrame
from splitarrow.protocol.states import ServerState
from splitarrow.protocol.uri import DataUri
from splitarrow.server.catalog.tables import TableDataset
from splitarrow.server.session import Session
from splitarrow.transport import blocking
from splitarrow.transport.base import ConnectOptions
from splitarrow.transport.registry import find_transport

TABLE = pa.table({"n": range(1 << 17)})


def read(uri: str) -> pa.Table:
    with splitarrow.open(uri, stall_timeout=20) as stream:
        return stream.read_all()


@pytest.fixture(params=["tcp", "shm"])
def listen(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"shm://{tmp_path}/socket"


def test_an_unexpected_exception_is_reported_as_internal(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("a secret of the server")

    with splitarrow.serve({"d": TABLE}, listen=[listen]) as server:
        uri = server.uri("d")
        with monkeypatch.context() as patch:
            patch.setattr(TableDataset, "open", fail)
            with pytest.raises(RemoteError) as caught:
                read(uri)
        assert caught.value.code == "INTERNAL"
        assert caught.value.message == "internal error; see the server's log"
        assert read(uri) == TABLE
        assert server.stats()["failures"] == 1


class Blocked:
    """Arrow data whose second batch waits for an event on the thread that reads it."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def batches(self) -> Iterator[pa.RecordBatch]:
        (batch,) = TABLE.to_batches()
        yield batch
        assert self.released.wait(60)
        yield batch

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(TABLE.schema, self.batches())


def test_a_source_that_blocks_does_not_block_other_readers(listen: str) -> None:
    blocked = Blocked()
    datasets = {"slow": blocked.reader(), "fast": TABLE}
    with splitarrow.serve(datasets, listen=[listen]) as server:
        tables: list[pa.Table] = []
        slow = threading.Thread(target=lambda: tables.append(read(server.uri("slow"))))
        slow.start()
        wait_until(lambda: server.stats()["streams"] == 1, "the stream that blocks")
        try:
            for _ in range(3):
                assert read(server.uri("fast")) == TABLE
        finally:
            blocked.released.set()
            slow.join(60)
        assert tables == [pa.concat_tables([TABLE, TABLE])]


def test_shared_memory_delivers_offsets_and_not_data(tmp_path: Path) -> None:
    with splitarrow.serve({"d": TABLE}, listen=[f"shm://{tmp_path}/socket"]) as server:
        with splitarrow.open(server.uri("d")) as stream:
            (batch,) = stream
            assert batch == TABLE.to_batches()[0]
        figures = server.stats()
        assert figures["leases"] == 1
        assert figures["leased_bytes"] >= TABLE.nbytes
        assert figures["bytes_sent"] < TABLE.nbytes / 10
        del batch
        wait_until(lambda: server.stats()["leases"] == 0, "the end of the lease")


def test_leases_count_for_their_user_over_all_connections(tmp_path: Path) -> None:
    listen = f"shm://{tmp_path}/socket"
    limit = TABLE.nbytes * 3 // 2
    with splitarrow.serve(
        {"d": TABLE}, listen=[listen], max_leased=limit, lease_seconds=0.3
    ) as server:
        with splitarrow.open(server.uri("d")) as first:
            held = list(first)
            daemon = server._daemon  # pyright: ignore[reportPrivateUsage]
            assert daemon._leased_by(os.getuid()) >= TABLE.nbytes  # pyright: ignore[reportPrivateUsage]
            assert daemon._leased_by(os.getuid() + 1) == 0  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(ExhaustedError, match="max-leased"):
                read(server.uri("d"))
        del held, first
        wait_until(lambda: server.stats()["leases"] == 0, "the end of all leases")
        assert read(server.uri("d")) == TABLE


def test_a_reader_is_idle_from_its_last_lease_on(tmp_path: Path) -> None:
    """The deadline for its next request moves when its stream ends, and when it frees all."""
    with splitarrow.serve(
        {"d": TABLE}, listen=[f"shm://{tmp_path}/socket"], idle_seconds=1000
    ) as server:
        sessions: Any = server._daemon._sessions  # pyright: ignore[reportPrivateUsage]

        def find_deadline() -> float:
            return session._waiting.deadline

        with closing(WirePeer(DataUri.parse(server.uri("d")), b"d")) as peer:
            wait_until(lambda: sessions, "the connection")
            (session,) = sessions
            wait_until(lambda: session._idle_since, "the start")
            connected = session._idle_since
            peer.advance(Step.LEASED)
            wait_until(lambda: session._machine.state is ServerState.LEASED, "the end")
            wait_until(lambda: session._idle_since > connected, "the time of the end", seconds=5)
            assert find_deadline() == math.inf
            assert session._leases._sources
            ended = session._idle_since
            peer.free_all()
            wait_until(lambda: session._idle_since > ended, "the time of the free", seconds=5)
            wait_until(lambda: find_deadline() == session._idle_since + 1000, seconds=5)
            wait_until(lambda: not session._leases._sources, "the release", seconds=5)


def test_a_reader_makes_progress_by_freeing_leases_of_a_stream_that_was_sent_whole() -> None:
    batches = pa.table({"n": range(1 << 18)}).to_batches(max_chunksize=1 << 13)
    with splitarrow.serve(
        {"d": pa.Table.from_batches(batches)}, listen=["ucx://127.0.0.1:0"]
    ) as server:
        sessions: Any = server._daemon._sessions  # pyright: ignore[reportPrivateUsage]
        uri = DataUri.parse(server.uri("d"))
        with closing(find_transport(uri).connect(uri, ConnectOptions())) as channel:
            blocking.send(channel, [TaggedFrame(uri.require_want_data(), 1, (b"d",))], 10)
            wait_until(lambda: [s for s in sessions if s._machine.state is ServerState.LEASED])
            (session,) = sessions
            session.check_progress(0, 10)
            session.check_progress(5, 10)
            assert (session.lease_table.held, session._stuck_since) == (len(batches), 5)
            blocking.receive(channel, 10)
            blocking.send(channel, [], 10)
            wait_until(lambda: session.lease_table.held < len(batches), "free leases")
            assert session.lease_table.held > 0
            session.check_progress(20, 10)
            assert session._stuck_since is None


def test_the_source_of_a_stream_without_leases_is_released_at_its_end() -> None:
    """The connection stays open, and may carry further streams."""
    with splitarrow.serve({"d": pa.table({"n": [1]})}, listen=["ucx://127.0.0.1:0"]) as server:
        sessions: Any = server._daemon._sessions  # pyright: ignore[reportPrivateUsage]
        uri = DataUri.parse(server.uri("d"))
        with closing(find_transport(uri).connect(uri, ConnectOptions())) as channel:
            wait_until(lambda: sessions, "the connection")
            (session,) = sessions
            blocking.send(channel, [TaggedFrame(uri.require_want_data(), 1, (b"d",))], 10)
            wait_until(lambda: server.stats()["streams_total"], "the stream")
            wait_until(lambda: session._machine.state is ServerState.IDLE, "the end of the stream")
            assert not session._leases._sources


def test_a_session_that_has_sent_a_file_leaves_no_garbage(listen: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.arrow", TABLE)
    with splitarrow.serve({"d": path}, listen=[listen]) as server:
        read(server.uri("d"))
        gc.collect()
        gc.disable()
        try:
            read(server.uri("d"))
            wait_until(
                lambda: not any(type(each) is Session for each in gc.get_objects()), seconds=10
            )
        finally:
            gc.enable()
