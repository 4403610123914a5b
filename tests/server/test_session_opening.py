"""When a connection gets its first bytes, and what readers get of a file that is its own region."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.wire_reader import HEADER, PREFACE, TAGGED
from splitarrow.errors import RemoteError
from splitarrow.protocol.payloads import pack_interval
from splitarrow.protocol.uri import DataUri

TABLE = pa.table({"n": range(1000)})


def send(uri: DataUri, *frames: tuple[int | None, bytes]) -> socket.socket:
    """Connect, and send a preface and tagged frames."""
    client = socket.create_connection((uri.host, uri.port or 0), timeout=30)
    client.sendall(
        PREFACE + b"".join(HEADER.pack(TAGGED, len(body), tag) + body for tag, body in frames)
    )
    return client


def test_a_preface_is_answered_before_any_request() -> None:
    with splitarrow.serve({"d": TABLE}, listen=["tcp://127.0.0.1:0"]) as server:
        uri = DataUri.parse(server.uri("d"))
        with send(uri) as client:
            assert client.recv(8, socket.MSG_WAITALL) == PREFACE
        with send(uri, (uri.keep_alive, pack_interval(5.0))) as client:
            assert client.recv(8, socket.MSG_WAITALL) == PREFACE


def test_a_preface_is_answered_before_a_dataset_that_takes_time_to_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from splitarrow.server.catalog.tables import TableDataset

    opened = threading.Event()
    original = TableDataset.open

    def wait(*arguments: object) -> object:
        assert opened.wait(60)
        return original(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(TableDataset, "open", wait)
    with splitarrow.serve({"d": TABLE}, listen=["tcp://127.0.0.1:0"]) as server:
        uri = DataUri.parse(server.uri("d"))
        with send(uri, (uri.want_data, uri.ticket or b"")) as client:
            assert client.recv(8, socket.MSG_WAITALL) == PREFACE
            opened.set()
            assert client.recv(1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.arrow"
    write_file(path, TABLE, batch_rows=10)
    return path


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_readers_get_each_state_of_a_file(scheme: str, file: Path, tmp_path: Path) -> None:
    listen = "tcp://127.0.0.1:0" if scheme == "tcp" else f"shm://{tmp_path}/socket"
    with splitarrow.serve({"d": str(file)}, listen=[listen]) as server:
        for count in (1000, 500, 200):
            write_file(tmp_path / "new.arrow", TABLE.slice(0, count), batch_rows=10)
            os.replace(tmp_path / "new.arrow", file)
            for _ in range(2):  # the first read inspects the file
                with splitarrow.open(server.uri("d"), stall_timeout=30) as stream:
                    assert stream.read_all() == TABLE.slice(0, count)


def test_a_region_without_batches_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "empty.arrow"
    write_file(path, TABLE.slice(0, 0))
    with splitarrow.serve({"d": str(path)}, listen=[f"shm://{tmp_path}/socket"]) as server:
        for _ in range(2):
            with splitarrow.open(server.uri("d"), stall_timeout=30) as stream:
                assert stream.read_all().num_rows == 0


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_a_file_that_is_mapped_for_writing_is_refused(
    scheme: str, file: Path, tmp_path: Path
) -> None:
    listen = "tcp://127.0.0.1:0" if scheme == "tcp" else f"shm://{tmp_path}/socket"
    with splitarrow.serve({"d": str(file)}, listen=[listen]) as server:
        uri = server.uri("d")
        with (
            open(file, "r+b") as writer,
            mmap.mmap(writer.fileno(), 0),
            pytest.raises(RemoteError, match="open for writing in this process, which maps it"),
        ):
            splitarrow.open(uri, stall_timeout=30)
        with splitarrow.open(uri, stall_timeout=30) as stream:
            assert stream.read_all() == TABLE
