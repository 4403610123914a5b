"""The daemon as a process: ready file, signals, workers, silence, and a reader that dies."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.waiting import wait_until
from splitarrow.errors import (
    ConnectionLostError,
    StallError,
    TransportError,
    UnavailableError,
)


@pytest.fixture
def big(tmp_path: Path) -> tuple[Path, int]:
    """An Arrow file of 256 MiB that a socket's buffers cannot hold; its path and rows."""
    path = tmp_path / "big.arrow"
    batch = pa.record_batch([pa.array(range(131_072), pa.int64())], names=["n"])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        for _ in range(256):
            writer.write_batch(batch)
    return path, 256 * batch.num_rows


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, pa.Table]:
    """A small Arrow file and its table."""
    path = tmp_path / "small.arrow"
    table = pa.table({"n": list(range(1000)), "s": [f"s{n}" for n in range(1000)]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return path, table


def test_ready_file_says_where_everything_is(
    daemon: StartDaemon, small: tuple[Path, pa.Table]
) -> None:
    path, table = small
    running = daemon({"small": path})
    ready = running.ready
    assert ready["pid"] == running.pid
    assert ready["control"] is None
    assert len(ready["listen"]) == 1
    assert ready["listen"][0].startswith("tcp://127.0.0.1:")
    with splitarrow.open(ready["datasets"]["small"]["tcp"]) as stream:
        assert stream.read_all().equals(table)


def test_separate_streams_from_one_server_and_from_two(
    daemon: StartDaemon, small: tuple[Path, pa.Table]
) -> None:
    path, table = small
    metadata, body = "tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body"
    one = daemon({"small": path}, listen=[metadata, body])
    with splitarrow.open(one.ready["listen"], ticket="small") as stream:
        assert stream.read_all().equals(table)
    first = daemon({"small": path}, listen=[metadata])
    second = daemon({"small": path}, listen=[body])
    with splitarrow.open([first.uri("small"), second.uri("small")]) as stream:
        assert stream.read_all().equals(table)


def test_sigterm_drains(daemon: StartDaemon, big: tuple[Path, int]) -> None:
    path, rows = big
    running = daemon({"big": path})
    uri = running.uri("big")
    with splitarrow.open(uri) as stream, splitarrow.open(uri) as idle:
        count = next(stream).num_rows
        list(idle)
        running.send_signal()
        assert_refused(uri)
        count += sum(batch.num_rows for batch in stream)
    assert count == rows
    assert running.wait() == 0
    assert not running.ready_file.exists()


def assert_refused(uri: str) -> None:
    """Wait until no new stream is accepted."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            splitarrow.open(uri, connect_timeout=5).close()
        except (TransportError, UnavailableError):
            return
    pytest.fail("new streams are still accepted")


def test_second_signal_cuts(daemon: StartDaemon, big: tuple[Path, int]) -> None:
    path, _ = big
    running = daemon({"big": path})
    with splitarrow.open(running.uri("big")) as stream:
        next(stream)
        running.send_signal()
        assert_refused(running.uri("big"))
        running.send_signal()
        assert running.wait() == 0
        with pytest.raises(ConnectionLostError, match="missing: "):
            list(stream)


def test_drain_seconds_bound_the_drain(daemon: StartDaemon, big: tuple[Path, int]) -> None:
    path, _ = big
    running = daemon({"big": path}, drain_seconds=0.3)
    with splitarrow.open(running.uri("big")) as stream:
        next(stream)
        running.send_signal()
        assert running.wait(10) == 0
        with pytest.raises(ConnectionLostError):
            list(stream)


@pytest.mark.slow
def test_workers_share_the_port(daemon: StartDaemon, small: tuple[Path, pa.Table]) -> None:
    path, table = small
    running = daemon({"small": path}, workers=2)
    for _ in range(20):
        with splitarrow.open(running.uri("small")) as stream:
            assert stream.read_all().equals(table)
    tasks = Path(f"/proc/{running.pid}/task")
    workers = [
        int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()
    ]
    assert len(workers) >= 2
    running.send_signal()
    assert running.wait() == 0
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the end of the workers"
    )


def test_killed_server_is_noticed(daemon: StartDaemon, big: tuple[Path, int]) -> None:
    path, _ = big
    running = daemon({"big": path}, workers=1)
    with splitarrow.open(running.uri("big")) as stream:
        next(stream)
        running.send_signal(signal.SIGKILL)
        running.wait()
        begin = time.monotonic()
        with pytest.raises(ConnectionLostError):
            list(stream)
        assert time.monotonic() - begin < 2


def test_stopped_server_is_noticed(daemon: StartDaemon, big: tuple[Path, int]) -> None:
    path, _ = big
    running = daemon({"big": path}, workers=1)
    with splitarrow.open(running.uri("big"), stall_timeout=1.0) as stream:
        next(stream)
        running.send_signal(signal.SIGSTOP)
        last = [time.monotonic()]

        def drain() -> None:
            for _ in stream:
                last[0] = time.monotonic()

        with pytest.raises(StallError, match="silent for 1 s"):
            drain()
        assert 0.8 <= time.monotonic() - last[0] <= 5
        running.send_signal(signal.SIGCONT)


def test_killed_reader_leaves_nothing(daemon: StartDaemon, big: tuple[Path, int]) -> None:
    path, rows = big
    running = daemon({"big": path}, workers=1)
    program = (
        "import splitarrow, sys; stream = splitarrow.open(sys.argv[1]); next(stream);"
        "print('reading', flush=True); sys.stdin.read()"
    )
    descriptors = Path(f"/proc/{running.pid}/fd")
    before = len(list(descriptors.iterdir()))
    reader = subprocess.Popen(
        [sys.executable, "-c", program, running.uri("big")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        assert len(list(descriptors.iterdir())) > before
        reader.kill()
    wait_until(
        lambda: len(list(descriptors.iterdir())) <= before, "the end of the connection and the file"
    )
    with splitarrow.open(running.uri("big")) as stream:
        assert sum(batch.num_rows for batch in stream) == rows


def test_garbage_is_closed_and_others_notice_nothing(
    daemon: StartDaemon, big: tuple[Path, int]
) -> None:
    path, rows = big
    running = daemon({"big": path})
    host, port = running.ready["listen"][0].split("//")[1].split("?")[0].split(":")
    draw = random.Random(7)
    with splitarrow.open(running.uri("big")) as stream:
        count = next(stream).num_rows
        for index in range(50):
            garbage = draw.randbytes(draw.randrange(1, 4096))
            if index % 2:
                garbage = b"SPLTARW\x01" + garbage
            with socket.create_connection((host, int(port))) as sock:
                sock.settimeout(10)
                try:
                    sock.sendall(garbage)
                    sock.shutdown(socket.SHUT_WR)
                    answer = b""
                    while piece := sock.recv(4096):
                        answer += piece
                except OSError:  # the server has reset the connection
                    answer = b""
                assert answer in (b"", b"SPLTARW\x01")
        count += sum(batch.num_rows for batch in stream)
    assert count == rows


def test_configuration_file_and_environment(
    daemon: StartDaemon, small: tuple[Path, pa.Table], tmp_path: Path
) -> None:
    path, table = small
    config = tmp_path / "splitarrow.toml"
    config.write_text(
        f'listen = ["tcp://127.0.0.1:0"]\nbatch_rows = 10\n[datasets]\nsmall = "{path}"\n'
    )
    running = daemon(listen=(), config=config, environment={"SPLITARROW_COMPRESSION": "zstd"})
    with splitarrow.open(running.uri("small")) as stream:
        batches = list(stream)
    assert max(batch.num_rows for batch in batches) == 10
    assert pa.Table.from_batches(batches).equals(table)
    assert json.loads(running.ready_file.read_text())["pid"] == running.pid


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dataset(daemon: StartDaemon, tmp_path: Path) -> None:
    """A file of 1 GiB, mostly a hole, passes through; anonymous memory stays small."""
    path = tmp_path / "wide.arrow"
    rows = 8 << 20
    batch = pa.record_batch([pa.array(range(rows), pa.int64())], names=["n"])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        for _ in range(16):
            writer.write_batch(batch)
    running = daemon({"wide": path})
    peak = [0]
    done = threading.Event()

    def watch() -> None:
        status = Path(f"/proc/{running.pid}/status")
        while not done.wait(0.005):
            line = next(x for x in status.read_text().splitlines() if x.startswith("RssAnon"))
            peak[0] = max(peak[0], int(line.split()[1]) >> 10)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with splitarrow.open(running.uri("wide")) as stream:
            total = sum(batch.num_rows for batch in stream)
    finally:
        done.set()
        watcher.join()
    assert total == 16 * rows
    assert 0 < peak[0] < 300, f"{peak[0]} MiB of anonymous memory"


def test_many_readers_get_their_own_data(daemon: StartDaemon, tmp_path: Path) -> None:
    """64 streams at once, each of a dataset with its own fill; no byte is mixed up."""
    datasets: dict[str, Path] = {}
    for fill in range(64):
        path = tmp_path / f"fill{fill}.arrow"
        batch = pa.record_batch([pa.array([fill] * 50_000, pa.int64())], names=["n"])
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            for _ in range(4):
                writer.write_batch(batch)
        datasets[f"fill{fill}"] = path
    running = daemon(datasets)
    streams = [splitarrow.open(running.uri(f"fill{fill}")) for fill in range(64)]
    try:
        for _ in range(4):
            for fill, stream in enumerate(streams):
                values = next(stream).column("n").unique().to_pylist()
                assert values == [fill]
        for stream in streams:
            with pytest.raises(StopIteration):
                next(stream)
    finally:
        for stream in streams:
            stream.close()
    assert os.path.exists(f"/proc/{running.pid}")
