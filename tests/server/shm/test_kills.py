"""Killed readers and servers: leases end, and batches that were read stay valid."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.shm import (
    has_no_leases,
    make_filled_batches,
    make_number_batches,
    make_table,
    read_table,
)
from helpers.shm_servers import Program, Serve
from helpers.waiting import wait_until
from splitarrow.errors import ConfigError, ConnectionLostError

HOLD = """
import sys, splitarrow
stream = splitarrow.open(sys.argv[1])
batches = [next(stream) for _ in range(int(sys.argv[2]))]
print("holding", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("dataset", ["table", "file"])
def test_a_killed_reader_leaves_no_leases(
    serve: Serve, program: Callable[..., Program], tmp_path: Path, dataset: str
) -> None:
    sent = make_filled_batches(64, 64 << 10)
    server = serve({"table": sent, "file": write_file(tmp_path / "data.arrow", sent)})
    names = set(os.listdir("/dev/shm"))
    with splitarrow.open(server.uri(dataset)) as stream:
        batches = [next(stream)]
        readers = [program(HOLD, server.uri(dataset), str(count)) for count in (1, 17, 64)]
        for reader in readers:
            assert reader.read_line() == "holding"
        assert server.stats()["connections"] == 4
        assert server.stats()["leases"] > 64
        for reader in readers:
            reader.process.kill()
        begin = time.monotonic()
        wait_until(lambda: server.stats()["connections"] == 1, seconds=1)
        assert time.monotonic() - begin < 1
        batches += stream
        assert batches == sent
        assert server.stats()["leases"] == 64
    del batches
    wait_until(has_no_leases(server), seconds=1)
    assert set(os.listdir("/dev/shm")) <= names
    assert set(os.listdir(tmp_path)) == {"1.sock", "data.arrow"}
    assert read_table(server.uri(dataset)) == make_table(sent)


def test_the_file_of_a_killed_reader_can_be_changed(
    serve: Serve, program: Callable[..., Program], tmp_path: Path
) -> None:
    path = write_file(tmp_path / "data.arrow", make_number_batches(8))
    server = serve({"data": path})
    reader = program(HOLD, server.uri("data"), "4")
    assert reader.read_line() == "holding"
    reader.process.kill()
    begin = time.monotonic()
    os.truncate(path, 10)
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize("copied", [False, True])
def test_readers_notice_a_killed_server_and_keep_their_batches(
    daemon: StartDaemon, tmp_path: Path, copied: bool
) -> None:
    sent = make_number_batches(20_000, 64)
    options: dict[str, Any] = {"compression": "lz4"} if copied else {}
    path = write_file(tmp_path / "data.arrow", sent, **options)
    running = daemon({"data": path}, listen=[f"shm://{tmp_path}/data.sock"], workers=1)
    with splitarrow.open(running.uri("data")) as stream:
        batches = [next(stream) for _ in range(100)]
        running.kill()
        begin = time.monotonic()
        with pytest.raises(ConnectionLostError):
            batches += stream
        assert time.monotonic() - begin < 2
    assert len(batches) >= 100
    for batch, whole in zip(batches, sent, strict=False):
        assert batch == whole


def test_the_socket_of_a_killed_server_is_replaced(daemon: StartDaemon, tmp_path: Path) -> None:
    sent = make_number_batches(4)
    path, sock = write_file(tmp_path / "data.arrow", sent), tmp_path / "data.sock"
    first = daemon({"data": path}, listen=[f"shm://{sock}"], workers=1)
    with pytest.raises(ConfigError, match=r"data\.sock"):
        splitarrow.serve({"data": path}, listen=[f"shm://{sock}"])
    assert read_table(first.uri("data")) == make_table(sent)
    first.kill()
    assert sock.exists()
    with splitarrow.serve({"data": path}, listen=[f"shm://{sock}"]) as second:
        assert read_table(second.uri("data")) == make_table(sent)
    assert not sock.exists()


def test_a_stopped_server_leaves_no_socket(daemon: StartDaemon, tmp_path: Path) -> None:
    sock = tmp_path / "data.sock"
    path = write_file(tmp_path / "data.arrow", make_number_batches(4))
    running = daemon({"data": path}, listen=[f"shm://{sock}"], workers=1)
    stream = splitarrow.open(running.uri("data"))
    batches = list(stream)
    stream.close()
    assert running.stop() == 0
    assert not sock.exists()
    assert batches == make_number_batches(4)
