"""Reads through a control plane: transports, selections, parallel endpoints, resuming."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from helpers.client_server import SHARD_ROWS, split
from helpers.control_plane import Running, running
from helpers.daemons import StartDaemon
from helpers.faults import Faults, FaultyTransport
from helpers.files import write_file, write_shards
from splitarrow import errors
from splitarrow.client.connect import connect
from splitarrow.client.dataset import endpoints as backoff
from splitarrow.client.dataset.client import Client
from splitarrow.client.rpc.info import DatasetInfo
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.server.auth.access_control import AccessControl
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.transport import registry, tcp
from splitarrow.transport.base import Channel, ConnectOptions


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with connect(server.uri) as client:
        yield client


def described_as(client: Client, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change the endpoints that the server describes."""
    describe = client.describe

    def changed(request: Request) -> DatasetInfo:
        info = describe(request)
        endpoints = tuple(dataclasses.replace(each, **changes) for each in info.endpoints)
        return dataclasses.replace(info, endpoints=endpoints, plan_seconds=0)

    monkeypatch.setattr(client, "describe", changed)


@pytest.mark.parametrize("name", ["table", "many"])
@pytest.mark.parametrize("transport", ["auto", "tcp", "flight"])
def test_a_read_returns_the_dataset(
    client: Client, table: pa.Table, name: str, transport: str
) -> None:
    with client.read(name, transport=transport) as stream:
        assert stream.schema == table.schema
        assert stream.read_all() == table
        assert stream.transport == transport.replace("auto", "tcp")
        assert stream.rows_received == table.num_rows
        assert stream.bytes_received > table.nbytes
        assert stream.resumed == 0
        assert list(stream) == []


@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_a_read_returns_the_selection(client: Client, table: pa.Table, transport: str) -> None:
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
def test_a_read_returns_the_shards_in_order(
    client: Client, table: pa.Table, transport: str
) -> None:
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


@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_a_read_returns_record_batches(client: Client, table: pa.Table, transport: str) -> None:
    def read(name: str, first: int, end: int, **options: Any) -> pa.Table:
        batches = (first, end)
        with client.read(name, batches=batches, transport=transport, **options) as stream:
            return stream.read_all()

    counts = client.count_rows("table")[0]
    assert sum(counts) == table.num_rows
    begin = sum(counts[:1])
    assert read("table", 1, 3) == table.slice(begin, sum(counts[1:3]))
    assert read("table", 1, 1).num_rows == 0
    rows = client.count_rows("many")[3]
    assert sum(rows) == SHARD_ROWS
    begin = len(rows) * 2 + 1
    assert read("many", begin, begin + 2) == table.slice(2 * SHARD_ROWS + rows[0], sum(rows[1:3]))
    third = table.slice(3 * SHARD_ROWS, rows[0])
    version = client.info("many").version
    for _ in range(2):
        assert read("many", 0, 1, shards=[3], version=version) == third
    assert read("many", 0, 1, shards=[3], limit=5, columns=["n"]) == third.slice(0, 5).select(["n"])
    wanted = pc.field("n") >= 3 * SHARD_ROWS + 10
    assert read("many", 0, 1, shards=[3], filter=wanted) == third.slice(10)
    assert client.count_rows("many", filter=wanted)[3] == [rows[0] - 10, *rows[1:]]
    end = len(rows) + 1
    with pytest.raises(errors.InvalidRequestError, match=f"no record batches 0:{end}; there are"):
        read("many", 0, end, shards=[3])
    with pytest.raises(errors.UsageError, match="shards names 2 of 'many'"):
        read("many", 0, 1, shards=[3, 4])
    with pytest.raises(errors.UsageError, match="at most the end"):
        read("many", 3, 1)
    with pytest.raises(errors.UsageError, match=r"expected the first record batch .* \(3, 7\)"):
        client.read("many", batches="x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.RemoteError, match="has changed"):
        read("many", 0, 1, shards=[3], version="another")


@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_a_read_returns_several_ranges_of_record_batches(
    client: Client, table: pa.Table, transport: str
) -> None:
    def read(name: str, *ranges: tuple[int, int], **options: Any) -> pa.Table:
        with client.read(name, batches=ranges, transport=transport, **options) as stream:
            return stream.read_all()

    rows = client.count_rows("many")[3]
    begins = [3 * SHARD_ROWS + sum(rows[:number]) for number in range(len(rows))]
    parts = [table.slice(begin, count) for begin, count in zip(begins, rows, strict=True)]
    last = len(rows) - 1
    expected = pa.concat_tables([parts[0], parts[last]])
    version = client.info("many").version
    for wanted_version in (None, version):
        ends: Any = [(0, 1), (last, last + 1)]
        assert read("many", *ends, shards=[3], version=wanted_version) == expected
    wanted = pc.field("n") >= 3 * SHARD_ROWS + 10
    options: dict[str, Any] = {"filter": wanted, "limit": rows[0], "columns": ["n"]}
    found = read("many", (0, 1), (last, last + 1), shards=[3], **options)
    assert found == expected.slice(10, rows[0]).select(["n"])
    assert read("many", (0, 1), (1, 2), shards=[3]) == pa.concat_tables(parts[:2])
    whole = client.count_rows("table")[0]
    middle = table.slice(whole[0], whole[1])
    assert read("table", (1, 2), (3, 3)) == middle
    with pytest.raises(errors.UsageError, match=r"batches 2:3 after 1:4; .* must not overlap"):
        read("many", (1, 4), (2, 3), shards=[3])
    with pytest.raises(errors.UsageError, match="513 ranges of batches; the limit is 512"):
        read("many", *((2 * n, 2 * n + 1) for n in range(513)), shards=[3])
    with pytest.raises(errors.UsageError, match="batches has no ranges"):
        read("many", shards=[3])
    with pytest.raises(errors.InvalidRequestError, match="no record batches 7000:7001; there are"):
        read("many", (0, 1), (7000, 7001), shards=[3])
    with pytest.raises(errors.UsageError, match="shards names 2 of 'many'"):
        read("many", (0, 1), (2, 3), shards=[3, 4])


@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_a_read_returns_rows(client: Client, table: pa.Table, transport: str) -> None:
    def read(name: str, begin: int, end: int, **options: Any) -> pa.Table:
        with client.read(name, rows=(begin, end), transport=transport, **options) as stream:
            return stream.read_all()

    total, first = table.num_rows, SHARD_ROWS + 5
    for name in ("table", "many"):
        assert read(name, first, 3 * SHARD_ROWS) == table.slice(first, 3 * SHARD_ROWS - first)
        assert read(name, 0, total) == table
        assert read(name, first, first).num_rows == 0
        wanted = pc.field("n") >= first + 10
        expected = table.slice(first + 10, 7).select(["n"])
        options: dict[str, Any] = {"filter": wanted, "limit": 7, "columns": ["n"]}
        assert read(name, first, 3 * SHARD_ROWS, **options) == expected
        assert read(name, first, first + 12, filter=wanted) == table.slice(first + 10, 2)
        with pytest.raises(errors.InvalidRequestError, match=f"no rows 0:{total + 1}; there are"):
            read(name, 0, total + 1)
    version = client.info("many").version
    in_shard = table.slice(2 * SHARD_ROWS + 5, 10)
    for _ in range(2):
        assert read("many", 5, 15, shards=[2], version=version) == in_shard
    with pytest.raises(errors.UsageError, match="rows are selected from one shard"):
        read("many", 0, 1, shards=[3, 4])
    with pytest.raises(errors.RemoteError, match="has changed"):
        read("many", 0, 1, version="another")
    ticket = Request("table", batches=(0, 1), rows=(0, 1)).ticket()
    uri = next(each for each in client.info("table").endpoints[0].locations if "tcp" in each)
    with pytest.raises(errors.InvalidRequestError, match="both rows and batches"):
        splitarrow.open(uri, ticket)


def test_reading_many_parts_describes_a_version_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []
    describe = client.describe
    monkeypatch.setattr(client, "describe", lambda each: requests.append(each) or describe(each))
    version = client.info("many").version
    requests.clear()
    for shard in (1, 2, 3):
        with client.read("many", shards=[shard], batches=(0, 1), version=version) as stream:
            assert stream.read_all()["n"][0].as_py() == shard * SHARD_ROWS
    assert [request.shard for request in requests] == [None]


def test_a_part_that_moved_is_described_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []
    describe = client.describe
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"tcp://127.0.0.1:{closed.getsockname()[1]}?want_data=1"

    def describe_an_earlier_address(request: Request) -> DatasetInfo:
        requests.append(request)
        info = describe(request)
        if request.batches is not None:
            return info
        moved = [dataclasses.replace(each, locations=(nowhere,)) for each in info.endpoints]
        return dataclasses.replace(info, endpoints=tuple(moved))

    version = client.info("many").version
    monkeypatch.setattr(client, "describe", describe_an_earlier_address)
    for _ in range(2):
        with client.read("many", shards=[2], batches=(0, 1), version=version) as stream:
            assert stream.read_all()["n"][0].as_py() == 2 * SHARD_ROWS
    assert [request.shard for request in requests] == [None, 2, 2]


def test_parts_with_signed_tickets_are_described_one_by_one(table: pa.Table, folder: Path) -> None:
    access = AccessControl(signer=TicketSigner())
    with running({"many": folder}, access=access) as server, connect(server.uri) as client:
        version = client.info("many").version
        for _ in range(2):
            with client.read("many", shards=[1], batches=(0, 1), version=version) as stream:
                assert stream.read_all()["n"][0].as_py() == SHARD_ROWS


def test_a_read_returns_the_version_or_fails(client: Client, table: pa.Table) -> None:
    version = client.info("many").version
    with client.read("many", version=version) as stream:
        assert stream.read_all() == table
    with pytest.raises(errors.RemoteError) as raised:
        client.read("many", version="another")
    assert raised.value.code == "FAILED_PRECONDITION"


def test_a_stream_exports_to_arrow(client: Client, table: pa.Table) -> None:
    with client.read("many") as stream:
        assert stream.to_reader().read_all() == table
    with client.read("many") as stream:
        assert pa.table(stream) == table
    with client.read("table", prefetch_bytes=1 << 20) as stream:
        assert stream.read_all() == table


def test_invalid_arguments_are_usage_errors(client: Client) -> None:
    with pytest.raises(errors.UsageError, match="'ucx'; the server offers tcp, flight"):
        client.read("table", transport="ucx")
    with pytest.raises(errors.UsageError, match="zz"):
        client.read("table", filter=pc.field("zz") > 1)
    refused: list[dict[str, Any]] = [
        {"filter": "n >"},
        {"validate": "?"},
        {"parallel": 0},
    ]
    for wrong in refused:
        with pytest.raises(errors.UsageError):
            client.read("table", **wrong)


@pytest.mark.parametrize("window", [1, 256 << 20])
@pytest.mark.parametrize("parallel", [1, 3, 100])
def test_parallel_endpoints_arrive_in_order(
    client: Client, table: pa.Table, parallel: int, window: int
) -> None:
    with client.read("many", parallel=parallel, window_bytes=window) as stream:
        assert stream.read_all() == table


def test_endpoints_are_prefetched_within_the_window(client: Client) -> None:
    with client.read("many", parallel=3, window_bytes=1) as stream:
        next(stream)
        threads = [t for t in threading.enumerate() if t.name == "splitarrow-prefetch"]
        assert len(threads) == 3
        assert stream.rows_received <= 4 * 250
    assert not any(t.name == "splitarrow-prefetch" and t.is_alive() for t in threads)


def test_a_location_that_cannot_be_reached_is_skipped(
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


def test_a_pair_of_listeners_serves_one_stream(table: pa.Table, tmp_path: Path) -> None:
    listen = tuple(f"tcp://127.0.0.1:0?stream={half}" for half in ("metadata", "body"))
    with running({"table": table}, listen=listen) as served, connect(served.uri) as client:
        assert client.info("table").endpoints[0].pair is not None
        with client.read("table") as stream:
            assert stream.transport == "tcp"
            assert stream.read_all() == table


def test_an_endpoint_that_fails_never_ends_the_stream_early(
    tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "many"
    write_shards(folder, split(table))
    with running({"many": folder}) as served, connect(served.uri) as client:
        stream = client.read("many", parallel=1, window_bytes=1)
        (folder / "part-00003.arrow").unlink()
        batches: list[pa.RecordBatch] = []
        with pytest.raises(errors.SplitArrowError), stream:
            batches.extend(stream)
        with pytest.raises(errors.SplitArrowError):
            next(stream)


def test_reading_after_cancel_or_close_is_an_error(client: Client) -> None:
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
    """Break every TCP connection of readers after a number of frames."""
    return registry.override_transport(FaultyTransport(tcp.TRANSPORT, Faults(cut_after=after)))


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.mark.parametrize("name", ["table", "many"])
@pytest.mark.parametrize("signed", [False, True])
def test_a_read_resumes_after_broken_connections(
    table: pa.Table, folder: Path, name: str, signed: bool
) -> None:
    access = AccessControl(signer=TicketSigner()) if signed else None
    with (
        running({"table": table, "many": folder}, access=access) as served,
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


def test_a_read_of_several_ranges_resumes_after_its_last_row(
    client: Client, table: pa.Table
) -> None:
    counts = client.count_rows("table")[0]
    numbers = range(0, len(counts), 2)
    ranges = [(number, number + 1) for number in numbers]
    expected = pa.concat_tables(
        [table.slice(sum(counts[:number]), counts[number]) for number in numbers]
    )
    with cut(6):
        of_shard: dict[str, Any] = {"shards": [0], "version": client.info("table").version}
        for options in ({}, of_shard):
            with client.read("table", batches=ranges, transport="tcp", **options) as stream:
                assert stream.read_all() == expected
                assert stream.resumed


def test_zero_attempts_disable_resuming(client: Client) -> None:
    with cut(12), client.read("table", resume_attempts=0) as stream:
        with pytest.raises(errors.ConnectionLostError):
            stream.read_all()
        assert stream.rows_received > 0


class Worsening(FaultyTransport):
    """Breaks the first connection after 12 frames, and each later one after the first frame."""

    def __init__(self) -> None:
        super().__init__(tcp.TRANSPORT, Faults(cut_after=12))

    def connect(self, uri: DataUri, options: ConnectOptions) -> Channel:
        channel = super().connect(uri, options)
        self._faults = Faults(cut_after=1)
        return channel


def test_resuming_gives_up_if_no_rows_arrive(client: Client) -> None:
    with (
        registry.override_transport(Worsening()),
        client.read("table", resume_attempts=3) as stream,
        pytest.raises(errors.ConnectionLostError),
    ):
        stream.read_all()
    assert stream.resumed <= 3


class Mute(FaultyTransport):
    """Breaks the first connection after 12 frames, and ends the second one before its preface."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(tcp.TRANSPORT, Faults(cut_after=12))
        self._listener = listener
        self._left = [False, True]
        self.accepted: list[socket.socket] = []

    def connect(self, uri: DataUri, options: ConnectOptions) -> Channel:
        if not self._left or not self._left.pop(0):
            return super().connect(uri, options)
        mute = uri.replace(port=self._listener.getsockname()[1])
        channel = super().connect(mute, options)
        self.accepted.append(self._listener.accept()[0])
        self.accepted[0].shutdown(socket.SHUT_WR)
        return channel


def test_a_read_resumes_after_a_connection_without_a_preface(
    client: Client, table: pa.Table
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mute = Mute(listener)
        with registry.override_transport(mute), client.read("table", transport="tcp") as stream:
            assert stream.read_all() == table
        assert len(mute.accepted) == 1
        mute.accepted[0].close()


def test_a_read_never_mixes_two_versions(tmp_path: Path, table: pa.Table) -> None:
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


def test_a_read_fails_if_its_version_is_gone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = client.describe

    def changed(request: Request) -> DatasetInfo:
        info = describe(dataclasses.replace(request, version=None))
        return info if request.version is None else dataclasses.replace(info, version="2")

    monkeypatch.setattr(client, "describe", changed)
    with (
        cut(12),
        client.read("table") as stream,
        pytest.raises(errors.RemoteError, match=r"'table' changed after \d+ rows"),
    ):
        stream.read_all()


CONTROL = "grpc://127.0.0.1:0"


def open_big(client: Client, transport: str) -> Any:
    """Read two endpoints at a time and prefetch one batch, so that every read is cut."""
    return client.read("big", transport=transport, parallel=2, window_bytes=1)


@pytest.mark.parametrize(
    ("transport", "shards"),
    [
        ("tcp", 3),
        pytest.param("tcp", 1, marks=pytest.mark.slow),
        pytest.param("flight", 1, marks=pytest.mark.long),
        pytest.param("flight", 3, marks=pytest.mark.slow),
    ],
)
def test_a_read_resumes_when_a_killed_server_restarts(
    daemon: StartDaemon,
    tmp_path: Path,
    transport: str,
    shards: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_SECONDS", 0.2)
    big = pa.table({"n": pa.array(np.arange(8_000_000))})
    big = pa.Table.from_batches(big.to_batches(50_000))
    rows = -(-big.num_rows // shards)
    folder = tmp_path / "big"
    folder.mkdir()
    for index in range(shards):
        write_file(folder / f"{index}.arrow", big.slice(index * rows, rows))
    server = daemon(
        {"big": folder if shards > 1 else folder / "0.arrow"}, control=CONTROL, workers=1
    )
    with connect(server.control_uri) as client, open_big(client, transport) as stream:
        batches = [next(stream) for _ in range(3)]
        server.kill()
        starting = threading.Thread(target=server.start)
        starting.start()
        batches += stream
        starting.join()
        assert stream.resumed == min(shards, 2)
        assert pa.Table.from_batches(batches) == big


def test_a_read_fails_when_a_killed_server_stays_down(daemon: StartDaemon, tmp_path: Path) -> None:
    big = pa.table({"n": pa.array(np.arange(4_000_000))})
    server = daemon({"big": write_file(tmp_path / "big.arrow", big)}, control=CONTROL, workers=1)
    with (
        connect(server.control_uri) as client,
        client.read("big", batch_rows=1000, window_bytes=1, resume_attempts=3) as stream,
    ):
        next(stream)
        server.kill()
        with pytest.raises(errors.TransportError):
            stream.read_all()


def test_an_expired_ticket_is_renewed(table: pa.Table, folder: Path) -> None:
    now = [1000.0]
    access = AccessControl(signer=TicketSigner(ttl_seconds=10, clock=lambda: now[0]))
    with (
        running({"many": folder}, access=access) as served,
        connect(served.uri) as client,
        client.read("many", parallel=1, window_bytes=1) as stream,
    ):
        batches = [next(stream)]
        now[0] += 100
        batches += stream
        assert pa.Table.from_batches(batches) == table
        assert stream.resumed == 6


@pytest.mark.slow
def test_a_read_waits_for_a_server_that_is_down_between_two_endpoints(
    daemon: StartDaemon, folder: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_SECONDS", 0.2)
    server = daemon({"big": folder}, control=CONTROL)
    with (
        connect(server.control_uri) as client,
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
