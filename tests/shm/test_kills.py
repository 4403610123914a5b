"""Readers and servers that are killed: what they held comes back, and what was read stays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import splitarrow
from splitarrow.errors import ConfigError, ConnectionLostError

from .conftest import DaemonProcess, Program, Serve
from .parts import filled, free_of_leases, numbers, read_table, table_of, wait_until, write_file

HOLD = """
import sys, splitarrow
stream = splitarrow.open(sys.argv[1])
batches = [next(stream) for _ in range(int(sys.argv[2]))]
print("holding", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("dataset", ["table", "file"])
def test_a_killed_reader_leaves_nothing(
    serve: Serve, program: Callable[..., Program], tmp_path: Path, dataset: str
) -> None:
    sent = filled(64, 64 << 10)
    server = serve({"table": sent, "file": write_file(tmp_path / "data.arrow", sent)})
    names = set(os.listdir("/dev/shm"))
    with splitarrow.open(server.uri(dataset)) as stream:
        batches = [next(stream)]
        readers = [program(HOLD, server.uri(dataset), str(count)) for count in (1, 17, 64)]
        for reader in readers:
            assert reader.line() == "holding"
        assert server.stats()["connections"] == 4
        assert server.stats()["leases"] > 64
        for reader in readers:
            reader.process.kill()
        begin = time.monotonic()
        wait_until(lambda: server.stats()["connections"] == 1, 1)
        assert time.monotonic() - begin < 1
        batches += stream
        assert batches == sent
        assert server.stats()["leases"] == 64
    del batches
    wait_until(free_of_leases(server), 1)
    assert set(os.listdir("/dev/shm")) <= names
    assert set(os.listdir(tmp_path)) == {"1.sock", "data.arrow"}
    assert read_table(server.uri(dataset)) == table_of(sent)


def test_the_file_of_a_killed_reader_can_be_changed(
    serve: Serve, program: Callable[..., Program], tmp_path: Path
) -> None:
    path = write_file(tmp_path / "data.arrow", numbers(8))
    server = serve({"data": path})
    reader = program(HOLD, server.uri("data"), "4")
    assert reader.line() == "holding"
    reader.process.kill()
    begin = time.monotonic()
    os.truncate(path, 10)
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize("copied", [False, True])
def test_a_killed_server_is_noticed_and_batches_stay(
    daemon: Callable[..., DaemonProcess], tmp_path: Path, copied: bool
) -> None:
    sent = numbers(20_000, 64)
    options = {"compression": "lz4"} if copied else {}
    path = write_file(tmp_path / "data.arrow", sent, **options)
    running = daemon(tmp_path / "data.sock", data=path)
    with splitarrow.open(running.uri("data")) as stream:
        batches = [next(stream) for _ in range(100)]
        running.process.send_signal(signal.SIGKILL)
        running.process.wait(10)
        begin = time.monotonic()
        with pytest.raises(ConnectionLostError):
            batches += stream
        assert time.monotonic() - begin < 2
    assert len(batches) >= 100
    for batch, whole in zip(batches, sent, strict=False):
        assert batch == whole


def test_the_socket_of_a_killed_server_is_replaced(
    daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    sent = numbers(4)
    path, sock = write_file(tmp_path / "data.arrow", sent), tmp_path / "data.sock"
    first = daemon(sock, data=path)
    with pytest.raises(ConfigError, match=r"data\.sock"):
        splitarrow.serve({"data": path}, listen=[f"shm://{sock}"])
    assert read_table(first.uri("data")) == table_of(sent)
    first.kill()
    assert sock.exists()
    with splitarrow.serve({"data": path}, listen=[f"shm://{sock}"]) as second:
        assert read_table(second.uri("data")) == table_of(sent)
    assert not sock.exists()


def test_a_stopped_server_leaves_no_socket(
    daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    sock = tmp_path / "data.sock"
    running = daemon(sock, data=write_file(tmp_path / "data.arrow", numbers(4)))
    stream = splitarrow.open(running.uri("data"))
    batches = list(stream)
    stream.close()
    running.process.terminate()
    assert running.process.wait(10) == 0
    assert not sock.exists()
    assert batches == numbers(4)
