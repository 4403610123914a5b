"""Reading: by every way, less than all, in parallel and in order, and again after a break."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from splitarrow import errors
from splitarrow.client import resuming
from splitarrow.client.control import Client, connect
from splitarrow.client.described import DatasetInfo
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.server.auth.tickets import TicketOffice
from splitarrow.transport import registry, tcp
from splitarrow.transport.faults import Faults, FaultyChannel, FaultyTransport

from .conftest import SHARD_ROWS, Running, running, write_file, write_shards


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with connect(server.uri) as client:
        yield client


def described_as(client: Client, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the server seem to offer other endpoints."""
    ask = client._ask

    def changed(asked: dict[str, Any]) -> DatasetInfo:
        info = ask(asked)
        endpoints = tuple(dataclasses.replace(each, **changes) for each in info.endpoints)
        return dataclasses.replace(info, endpoints=endpoints)

    monkeypatch.setattr(client, "_ask", changed)


@pytest.mark.parametrize("name", ["table", "many"])
@pytest.mark.parametrize("transport", ["auto", "tcp", "flight"])
def test_a_dataset(client: Client, table: pa.Table, name: str, transport: str) -> None:
    with client.read(name, transport=transport) as stream:
        assert stream.schema == table.schema
        assert stream.read_all() == table
        assert stream.transport == transport.replace("auto", "tcp")
        assert stream.rows_received == table.num_rows
        assert stream.bytes_received > table.nbytes
        assert stream.resumed == 0
        assert list(stream) == []


@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_less_than_all(client: Client, table: pa.Table, transport: str) -> None:
    def read(name: str, **options: Any) -> pa.Table:
        with client.read(name, transport=transport, **options) as stream:
            return stream.read_all()

    assert read("many", columns=["text"]) == table.select(["text"])
    assert read("many", limit=3001) == table.slice(0, 3001)
    wanted = pc.field("n") >= table.num_rows - 5
    last = table.slice(table.num_rows - 5)
    assert read("many", columns=["text"], filter=wanted) == last.select(["text"])
    assert read("table", filter=wanted, limit=2) == table.slice(table.num_rows - 5, 2)
    assert read("many", compression="zstd", batch_rows=100) == table
    with client.read("table", transport=transport, batch_rows=10) as stream:
        assert next(stream).num_rows <= 10


@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_some_parts(client: Client, table: pa.Table, transport: str) -> None:
    def read(name: str, **options: Any) -> pa.Table:
        with client.read(name, transport=transport, **options) as stream:
            return stream.read_all()

    third = table.slice(3 * SHARD_ROWS, SHARD_ROWS)
    both = pa.concat_tables([table.slice(SHARD_ROWS, SHARD_ROWS), third])
    assert read("many", shards=[3]) == third
    assert read("many", shards=[3, 1, 3]) == both
    assert read("many", shards=[1, 3], limit=SHARD_ROWS + 5) == both.slice(0, SHARD_ROWS + 5)
    assert read("many", shards=[3], limit=5) == third.slice(0, 5)
    assert read("many", shards=[]).num_rows == 0
    assert read("table", shards=[0]) == table
    with pytest.raises(errors.UsageError, match="no shard 7-8"):
        read("many", shards=[0, 7, 8])


def test_one_version(client: Client, table: pa.Table) -> None:
    version = client.info("many").version
    with client.read("many", version=version) as stream:
        assert stream.read_all() == table
    with pytest.raises(errors.RemoteError) as raised:
        client.read("many", version="another")
    assert raised.value.code == "FAILED_PRECONDITION"


def test_other_interfaces(client: Client, table: pa.Table) -> None:
    with client.read("many") as stream:
        assert stream.to_reader().read_all() == table
    with client.read("many") as stream:
        assert pa.table(stream) == table
    with client.read("table", prefetch_bytes=1 << 20) as stream:
        assert stream.read_all() == table


def test_wrong_arguments(client: Client) -> None:
    with pytest.raises(errors.UsageError, match="'ucx', but by tcp, flight"):
        client.read("table", transport="ucx")
    with pytest.raises(errors.UsageError, match="zz"):
        client.read("table", filter=pc.field("zz") > 1)
    refused: list[dict[str, Any]] = [
        {"filter": "n > 1"},
        {"columns": "n"},
        {"validate": "?"},
        {"parallel": 0},
    ]
    for wrong in refused:
        with pytest.raises(errors.UsageError):
            client.read("table", **wrong)


@pytest.mark.parametrize("window", [1, 256 << 20])
@pytest.mark.parametrize("parallel", [1, 3, 100])
def test_parallel_is_in_order(client: Client, table: pa.Table, parallel: int, window: int) -> None:
    with client.read("many", parallel=parallel, window_bytes=window) as stream:
        assert stream.read_all() == table


def test_parallel_reads_ahead_and_no_further_than_its_window(client: Client) -> None:
    with client.read("many", parallel=3, window_bytes=1) as stream:
        next(stream)
        threads = [t for t in threading.enumerate() if t.name == "splitarrow-part"]
        assert len(threads) == 3
        assert stream.rows_received <= 4 * 250
    assert not any(t.name == "splitarrow-part" and t.is_alive() for t in threads)


def test_the_next_location_is_tried(
    client: Client, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = client.info("table").endpoints[0].locations
    bad = ("novel://x?want_data=1", "tcp://127.0.0.1:1?want_data=1", "no uri", "tcp://x")
    described_as(client, monkeypatch, locations=(*bad, *good))
    with client.read("table") as stream:
        assert stream.transport == "tcp"
        assert stream.read_all() == table
    described_as(client, monkeypatch, locations=(*bad, good[-1]))
    with client.read("table") as stream:
        assert stream.transport == "flight"
        assert stream.read_all() == table
    described_as(client, monkeypatch, locations=bad)
    with pytest.raises(errors.ConnectError, match=r"novel: .*tcp: .*127\.0\.0\.1:1"):
        client.read("table")
    described_as(client, monkeypatch, locations=())
    with pytest.raises(errors.UsageError, match="nothing"):
        client.read("table")


def test_two_servers_share_the_work(table: pa.Table, tmp_path: Path) -> None:
    office = TicketOffice()
    listen = tuple(f"tcp://127.0.0.1:0?stream={half}" for half in ("metadata", "body"))
    with running({"table": table}, listen=listen) as served, connect(served.uri) as client:
        assert client.info("table").endpoints[0].pair is not None
        with client.read("table") as stream:
            assert stream.transport == "tcp"
            assert stream.read_all() == table
    office.close()


def test_an_endpoint_that_fails_shortens_nothing(
    tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "many", table)
    with running({"many": folder}) as served, connect(served.uri) as client:
        stream = client.read("many", parallel=1, window_bytes=1)
        (folder / "part-3.arrow").unlink()
        batches: list[pa.RecordBatch] = []
        with pytest.raises(errors.SplitArrowError), stream:
            batches.extend(stream)
        with pytest.raises(errors.SplitArrowError):
            next(stream)


def test_cancel_and_close(client: Client) -> None:
    stream = client.read("many")
    next(stream)
    stream.cancel()
    with pytest.raises(errors.ClosedError):
        stream.read_all()
    stream.close()
    stream.close()
    with client.read("table", transport="flight") as stream:
        next(stream)
        stream.cancel()
        with pytest.raises(errors.ClosedError):
            stream.read_all()
    stream = client.read("table")
    stream.close()
    with pytest.raises(errors.ClosedError):
        next(stream)


# Resuming.


def cut(after: int) -> Any:
    """Let every TCP connection of readers break after so many frames."""
    return registry.replaced(FaultyTransport(tcp.TRANSPORT, Faults(cut_after=after)))


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "_FIRST_WAIT", 0.001)


@pytest.mark.parametrize("name", ["table", "many"])
@pytest.mark.parametrize("signed", [False, True])
def test_a_broken_connection_is_resumed(
    table: pa.Table, folder: Path, name: str, signed: bool
) -> None:
    office = TicketOffice() if signed else None
    with (
        running({"table": table, "many": folder}, office=office) as served,
        connect(served.uri) as client,
        cut(12),
    ):
        with client.read(name) as stream:
            assert stream.read_all() == table
            assert stream.resumed >= 7
            assert stream.rows_received == table.num_rows
        with client.read(name, limit=2600, columns=["text"]) as stream:
            assert stream.read_all() == table.slice(0, 2600).select(["text"])
        with client.read(name, filter=pc.field("n") > 100) as stream:
            assert stream.read_all() == table.slice(101)
    if office is not None:
        office.close()


def test_resuming_may_be_switched_off(client: Client) -> None:
    with cut(12), client.read("table", resume_attempts=0) as stream:
        with pytest.raises(errors.ConnectionLostError):
            stream.read_all()
        assert stream.rows_received > 0


class Worsening(FaultyTransport):
    """The first connection breaks after 12 frames, each later one after the first frame."""

    def __init__(self) -> None:
        super().__init__(tcp.TRANSPORT, Faults(cut_after=12))

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> FaultyChannel:
        channel = super().connect(uri, limits, timeout)
        self._faults = Faults(cut_after=1)
        return channel


def test_resuming_ends_where_nothing_comes(client: Client) -> None:
    with (
        registry.replaced(Worsening()),
        client.read("table", resume_attempts=3) as stream,
        pytest.raises(errors.ConnectionLostError),
    ):
        stream.read_all()
    assert stream.resumed <= 3


class Mute(FaultyTransport):
    """The first connection breaks after 12 frames, the second ends before a word was said."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(tcp.TRANSPORT, Faults(cut_after=12))
        self._listener = listener
        self._left = [False, True]
        self.accepted: list[socket.socket] = []

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> FaultyChannel:
        if not self._left or not self._left.pop(0):
            return super().connect(uri, limits, timeout)
        mute = uri.replace(port=self._listener.getsockname()[1])
        channel = super().connect(mute, limits, timeout)
        self.accepted.append(self._listener.accept()[0])
        self.accepted[0].shutdown(socket.SHUT_WR)
        return channel


def test_a_server_that_ends_while_it_is_connected_to(client: Client, table: pa.Table) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mute = Mute(listener)
        with registry.replaced(mute), client.read("table", transport="tcp") as stream:
            assert stream.read_all() == table
        assert len(mute.accepted) == 1
        mute.accepted[0].close()


def test_another_version_is_not_mixed_in(tmp_path: Path, table: pa.Table) -> None:
    path = write_file(tmp_path / "a.arrow", table)
    with (
        running({"a": path}) as served,
        connect(served.uri) as client,
        cut(12),
        client.read("a") as stream,
    ):
        next(stream)
        write_file(tmp_path / "new", table.slice(1)).rename(path)
        with pytest.raises(errors.SplitArrowError, match="'a'"):
            stream.read_all()


def test_what_is_asked_when_the_version_is_gone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = client._ask

    def changed(asked: dict[str, Any]) -> DatasetInfo:
        info = ask({key: value for key, value in asked.items() if key != "version"})
        return dataclasses.replace(info, version="2") if "version" in asked else info

    monkeypatch.setattr(client, "_ask", changed)
    with (
        cut(12),
        client.read("table") as stream,
        pytest.raises(errors.RemoteError, match=r"'table' changed .* after \d+ rows"),
    ):
        stream.read_all()


_SERVING = """
import sys, splitarrow
path, listen, control = sys.argv[1:]
with splitarrow.serve({"big": path}, listen=[listen], control=control) as server:
    print(server.uri("big"), server.control_uri, flush=True)
    sys.stdin.read()
"""


class Killable:
    """A server in a process of its own, always at the same addresses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listen, self.control = "tcp://127.0.0.1:0", "grpc://127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVING, str(self._path), self._listen, self.control],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        uri, self.control = self._process.stdout.readline().split()
        self._listen = uri.partition("?")[0]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def open_big(client: Client, transport: str) -> Any:
    """Two parts at a time, and no more ahead than a batch, so that all of them are cut."""
    return client.read("big", transport=transport, parallel=2, window_bytes=1)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_a_killed_server_that_starts_again(
    tmp_path: Path, transport: str, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "_FIRST_WAIT", 0.2)
    big = pa.table({"n": pa.array(range(8_000_000), pa.int64())})
    big = pa.Table.from_batches(big.to_batches(50_000))
    rows = -(-big.num_rows // shards)
    folder = tmp_path / "big"
    folder.mkdir()
    for index in range(shards):
        write_file(folder / f"{index}.arrow", big.slice(index * rows, rows))
    server = Killable(folder if shards > 1 else folder / "0.arrow")
    try:
        with connect(server.control) as client, open_big(client, transport) as stream:
            batches = [next(stream) for _ in range(3)]
            server.kill()
            starting = threading.Thread(target=server.start)
            starting.start()
            batches += stream
            starting.join()
            assert stream.resumed == min(shards, 2)
            assert pa.Table.from_batches(batches) == big
    finally:
        server.kill()


def test_a_killed_server_that_stays_away(tmp_path: Path) -> None:
    big = pa.table({"n": pa.array(range(4_000_000), pa.int64())})
    server = Killable(write_file(tmp_path / "big.arrow", big))
    with (
        connect(server.control) as client,
        client.read("big", batch_rows=1000, window_bytes=1, resume_attempts=3) as stream,
    ):
        next(stream)
        server.kill()
        with pytest.raises(errors.TransportError):
            stream.read_all()


def test_a_ticket_that_waits_too_long_is_renewed(table: pa.Table, folder: Path) -> None:
    now = [1000.0]
    office = TicketOffice(ttl_seconds=10, clock=lambda: now[0])
    with (
        running({"many": folder}, office=office) as served,
        connect(served.uri) as client,
        client.read("many", parallel=1, window_bytes=1) as stream,
    ):
        batches = [next(stream)]
        now[0] += 100
        batches += stream
        assert pa.Table.from_batches(batches) == table
        assert stream.resumed == 6
    office.close()


def test_a_server_that_is_away_when_a_part_has_its_turn(
    folder: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "_FIRST_WAIT", 0.2)
    server = Killable(folder)
    try:
        with (
            connect(server.control) as client,
            client.read("big", parallel=1, batch_rows=SHARD_ROWS, window_bytes=1) as stream,
        ):
            batches = [next(stream)]
            server.kill()
            starting = threading.Thread(target=server.start)
            starting.start()
            batches += stream
            starting.join()
            assert pa.Table.from_batches(batches).combine_chunks() == table.combine_chunks()
            assert stream.resumed >= 1
    finally:
        server.kill()
