"""Connections that are kept for the next reader: when they are, and when they are not."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import anyio
import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.streams import list_frames, source_messages
from helpers.waiting import wait_until
from splitarrow.errors import ConnectionLostError, RemoteError
from splitarrow.protocol.frames import TaggedFrame
from splitarrow.protocol.tags import pack_body_tag
from splitarrow.protocol.uri import DataUri
from splitarrow.testing import Daemon
from splitarrow.transport import blocking
from splitarrow.transport.base import Channel, ConnectOptions, Listener, ListenOptions
from splitarrow.transport.registry import find_transport
from splitarrow.transport.ucx import channel as reader_channel
from splitarrow.transport.ucx import transport
from splitarrow.transport.ucx.links import IDLE_LINKS, IdleLinks

LISTEN = ["ucx://127.0.0.1:0"]
ROWS = 50_000


def make_table(fill: int) -> pa.Table:
    batch = pa.record_batch({"n": pa.array([fill] * ROWS, pa.int64())})
    return pa.Table.from_batches([batch] * 4)


def is_reused(stream: Any) -> bool:
    """Return whether the connection of a stream has carried another one before."""
    (channel,) = stream._reader.channels.values()
    return channel.capabilities.is_reused


def read(uri: str, fill: int) -> bool:
    """Read a dataset, check it, and return whether the connection had been kept."""
    with splitarrow.open(uri) as stream:
        reused = is_reused(stream)
        assert stream.read_all() == make_table(fill)
    return reused


@pytest.fixture(autouse=True)
def no_idle_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start and end without idle connections, and keep them as long as a test takes."""
    IDLE_LINKS.close()
    monkeypatch.setattr(IDLE_LINKS, "seconds", 600.0)
    yield
    IDLE_LINKS.close()


@pytest.fixture(scope="module")
def server() -> Iterator[splitarrow.Server]:
    tables = {f"fill{fill}": make_table(fill) for fill in range(64)}
    # No reader has received all of it with the first batch.
    tables["big"] = pa.concat_tables([make_table(77)] * 250)
    with splitarrow.serve(tables, listen=LISTEN) as running:
        yield running


@pytest.mark.parametrize("body", ["packed", "remote"])
def test_a_second_stream_uses_the_connection_of_the_first(
    server: splitarrow.Server, body: str
) -> None:
    reused = [read(f"{server.uri(f'fill{fill}')}&body={body}", fill) for fill in range(5)]
    assert reused == [False, True, True, True, True]
    assert len(IDLE_LINKS) == 1
    wait_until(lambda: not server.stats()["leases"], "the end of the leases")


def test_the_end_may_overtake_bodies_that_wait_at_the_server(
    server: splitarrow.Server, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "t.arrow", pa.concat_tables([make_table(6)] * 20))
    server.add("file", path)
    reused: list[bool] = []
    for _ in range(3):
        with splitarrow.open(f"{server.uri('file')}&body=remote") as stream:
            reused.append(is_reused(stream))
            assert stream.read_all().num_rows == 80 * ROWS
    assert reused == [False, True, True]
    wait_until(lambda: not server.stats()["leases"], "the end of the leases")


def test_a_connection_changes_between_packed_and_remote_bodies(server: splitarrow.Server) -> None:
    bodies = ["remote", "packed", "remote", "remote", "packed"]
    reused = [read(f"{server.uri('fill7')}&body={body}", 7) for body in bodies]
    assert reused == [False, True, True, True, True]


def test_an_asynchronous_reader_uses_it_too(server: splitarrow.Server) -> None:
    async def read_twice() -> list[bool]:
        reused: list[bool] = []
        for fill in (1, 2):
            async with splitarrow.aio.open(server.uri(f"fill{fill}")) as stream:
                reused.append(is_reused(stream))
                assert await stream.read_all() == make_table(fill)
        return reused

    assert anyio.run(read_twice) == [False, True]


@pytest.mark.parametrize("body", ["packed", "remote"])
def test_the_connection_of_an_aborted_stream_is_not_kept(
    server: splitarrow.Server, body: str
) -> None:
    for fill in range(4):
        assert not read(f"{server.uri(f'fill{fill}')}&body={body}", fill)
        with splitarrow.open(f"{server.uri('big')}&body={body}") as stream:
            assert is_reused(stream)
            assert next(stream).column("n")[0].as_py() == 77
        assert not IDLE_LINKS
    wait_until(lambda: not server.stats()["leases"], "the end of the leases")


def test_the_connection_of_a_cancelled_or_failed_stream_is_not_kept(
    server: splitarrow.Server,
) -> None:
    with splitarrow.open(server.uri("big")) as stream:
        next(stream)
        stream.cancel()
    assert not IDLE_LINKS
    missing = server.uri("fill1").replace("fill1", "missing")
    with pytest.raises(RemoteError, match="no dataset 'missing'"):
        splitarrow.open(missing)
    assert not IDLE_LINKS


@pytest.mark.slow
def test_streams_at_once_get_their_own_data_over_kept_connections(
    server: splitarrow.Server,
) -> None:
    def read_many(first: int) -> None:
        for fill in range(first, 64, 8):
            with splitarrow.open(server.uri(f"fill{fill}")) as stream:
                if fill % 3:
                    assert stream.read_all() == make_table(fill)
                else:  # it is aborted
                    assert next(stream).column("n").unique().to_pylist() == [fill]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read_many, range(8)))
    assert 0 < len(IDLE_LINKS) <= IDLE_LINKS.most_alike


def test_a_process_keeps_few_connections(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_at_once(uri: str, fill: int, count: int) -> None:
        streams = [splitarrow.open(uri) for _ in range(count)]
        for stream in streams:
            with stream:
                assert stream.read_all() == make_table(fill)

    assert IDLE_LINKS.most > IDLE_LINKS.most_alike
    read_at_once(server.uri("fill0"), 0, IDLE_LINKS.most_alike + 1)
    assert len(IDLE_LINKS) == IDLE_LINKS.most_alike
    monkeypatch.setattr(IDLE_LINKS, "most", IDLE_LINKS.most_alike)
    with splitarrow.serve({"t": make_table(3)}, listen=LISTEN) as other:
        read_at_once(other.uri("t"), 3, 1)
        assert len(IDLE_LINKS) == IDLE_LINKS.most_alike
        assert read(other.uri("t"), 3)


def test_an_idle_connection_expires(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = IdleLinks()  # no thread waits already, for the end of connections of other tests
    for module in (transport, reader_channel):
        monkeypatch.setattr(module, "IDLE_LINKS", links)
    links.seconds = 0.01
    assert not read(server.uri("fill1"), 1)
    wait_until(lambda: not links, "the end of the idle connection")
    links.seconds = 600.0
    assert not read(server.uri("fill1"), 1)
    assert read(server.uri("fill1"), 1)
    links.close()


def test_the_idle_connections_of_a_server_that_leaves_are_closed() -> None:
    with splitarrow.serve({"t": make_table(3)}, listen=LISTEN) as other:
        assert not read(other.uri("t"), 3)
        assert len(IDLE_LINKS) == 1
    wait_until(lambda: not IDLE_LINKS, "the end of the idle connection")


def test_a_full_or_closed_store_keeps_nothing(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = IdleLinks()
    closed.close_at_exit()
    monkeypatch.setattr("splitarrow.transport.ucx.channel.IDLE_LINKS", closed)
    assert not read(server.uri("fill1"), 1)
    assert not closed
    assert not closed.close()


@pytest.mark.slow
def test_a_restarted_server_is_reached_at_the_same_uri(daemon: StartDaemon, tmp_path: Path) -> None:
    path = write_file(tmp_path / "t.arrow", make_table(5))
    fixed = "ucx://127.0.0.1:0?want_data=0x10000000001&remote_handle=AAECAwQF%2F%2F8"
    running: Daemon = daemon({"t": path}, listen=[fixed])
    uri = running.uri("t")
    for _ in range(3):
        assert not read(uri, 5)
        assert read(uri, 5)
        running.kill()
        running.start()
        assert running.uri("t") == uri


FORK = """
import atexit, os, sys

# Functions that are registered first are called last.
atexit.register(lambda: print("kept at exit:", len(IDLE_LINKS)))

import splitarrow
from splitarrow.transport.ucx.links import IDLE_LINKS

def read():
    with splitarrow.open(sys.argv[1]) as stream:
        return stream.read_all().num_rows

rows = [read(), read()]
assert len(IDLE_LINKS) == 1
process = os.fork()
if not process:
    os._exit(0 if not IDLE_LINKS and [read(), read()] == rows else 1)
assert not IDLE_LINKS
assert os.waitpid(process, 0)[1] == 0
assert [read(), read()] == rows
assert len(IDLE_LINKS) == 1
"""


def test_a_forked_child_makes_its_own_connections(server: splitarrow.Server) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, server.uri("fill9")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "kept at exit: 0\n", "")


FORK_WITH_STREAM = """
import gc, os, sys
import splitarrow

stream = splitarrow.open(sys.argv[1], batch_rows=100)
taken = [next(stream) for _ in range(2)]
(channel,) = stream._reader.channels.values()
for way in ("close", "drop"):
    process = os.fork()
    if process:
        assert os.waitpid(process, 0)[1] == 0
        continue
    for use in (lambda: splitarrow.open(sys.argv[1]), channel.receive_some):
        try:
            use()
        except splitarrow.errors.SplitArrowError as error:
            print(error, flush=True)
    if way == "close":
        stream.close()
    del stream, taken, channel, use
    gc.collect()
    sys.exit(0)
rows = sum(batch.num_rows for batch in [*taken, *stream])
with splitarrow.open(sys.argv[1]) as again:
    assert again.read_all().num_rows == rows
"""


def test_a_forked_child_leaves_an_open_stream_to_its_parent(server: splitarrow.Server) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK_WITH_STREAM, server.uri("fill9")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("forked from one with open connections") == 2
    assert done.stdout.count("belongs to the process that this one was forked from") == 2


class Script:
    """A server that treats the first connection as a test states, and serves the others."""

    def __init__(self) -> None:
        self.table = make_table(8)
        self.late_frames: list[TaggedFrame] = []
        """Frames to send on the first connection as soon as there are any."""
        self.connections = 0
        address = DataUri.parse("ucx://127.0.0.1:0?want_data=0x10000000001")
        self._listener: Listener = find_transport(address).listen(
            address, ListenOptions(map_file=lambda file: None)
        )
        self.uri = str(self._listener.uri.replace(ticket=b"t"))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        channels: dict[int, Channel] = {}
        requests: dict[int, int] = {}
        while not self._stop.wait(0.001):
            channel = self._listener.accept()
            if channel is not None:
                channels[self.connections] = channel
                self.connections += 1
            for number, channel in list(channels.items()):
                try:
                    if number == 0 and self.late_frames:
                        blocking.send(channel, [self.late_frames.pop()], 10)
                    for _ in channel.receive_some():
                        requests[number] = requests.get(number, 0) + 1
                        if (number, requests[number]) == (0, 2):
                            raise ConnectionLostError("the script ends the first connection")
                        frames = list_frames(source_messages(self.table))
                        blocking.send(channel, frames, 10)
                except ConnectionLostError:
                    channels.pop(number).abort()
        for channel in channels.values():
            channel.abort()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._listener.close()


def test_a_connection_that_ends_at_its_second_request_is_replaced() -> None:
    with Script() as script:
        assert not read(script.uri, 8)
        assert len(IDLE_LINKS) == 1
        assert not read(script.uri, 8)  # the first attempt has failed
        assert script.connections == 2


def test_an_asynchronous_reader_replaces_it_too() -> None:
    async def read_once() -> bool:
        async with splitarrow.aio.open(script.uri) as stream:
            assert await stream.read_all() == make_table(8)
            return is_reused(stream)

    with Script() as script:
        assert not anyio.run(read_once)
        assert len(IDLE_LINKS) == 1
        assert not anyio.run(read_once)
        assert script.connections == 2


def test_what_arrives_after_the_end_reaches_no_other_stream() -> None:
    with Script() as script:
        assert not read(script.uri, 8)
        assert len(IDLE_LINKS) == 1
        body = bytes(8 * ROWS)
        script.late_frames.append(TaggedFrame(pack_body_tag(1), len(body), (body,)))
        wait_until(lambda: not IDLE_LINKS, "the end of the connection")
        assert not read(script.uri, 8)
        assert script.connections == 2


def test_a_server_without_a_handle_gets_a_connection_for_each_stream() -> None:
    address = "ucx://127.0.0.1:0?body=packed"
    with splitarrow.serve({"t": make_table(3)}, listen=[address]) as plain:
        assert not read(plain.uri("t"), 3)
        assert not read(plain.uri("t"), 3)
        assert not IDLE_LINKS


def test_a_request_may_arrive_before_the_server_knows_that_its_stream_has_ended() -> None:
    table = pa.table({"n": pa.array(range(1 << 14), pa.int64())})
    with splitarrow.serve({"t": table}, listen=LISTEN) as running:
        uri = DataUri.parse(f"{running.uri('t')}&body=packed")
        channel: Any = find_transport(uri).connect(uri, ConnectOptions())
        try:
            request = [TaggedFrame(uri.require_want_data(), 1, (b"t",))]
            blocking.send(channel, request, 10)
            worker = channel._worker

            def has_end() -> bool:
                """Make progress without matching the body, which the server waits for."""
                with worker.lock:
                    worker.progress()
                    return any(message[0] == 0 for message in worker.events.metadata)

            wait_until(has_end, "the end of the stream")
            blocking.send(channel, request, 10)
            (session,) = cast("Any", running)._daemon._sessions
            arrived = len(b"t") * 2
            wait_until(lambda: session._channel.bytes_received == arrived, "the second request")
            received: list[Any] = []
            wait_until(lambda: received.extend(channel.receive_some()) or len(received) >= 8)
            assert len(received) == 8  # two schemas, batches, bodies and ends
        finally:
            channel.abort()
        wait_until(lambda: not running.stats()["streams"], "the end of the streams")
        assert running.stats()["protocol_errors"] == 0
