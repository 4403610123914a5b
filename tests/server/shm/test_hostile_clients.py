"""Clients that break the protocol of shared memory are disconnected and harm no other client."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import splitarrow
from helpers.files import write_file
from helpers.shm import has_no_leases, make_number_batches, make_table, open_memory
from helpers.shm_peers import PREFACE, RawClient, announcement, sealed_memory, tagged, untagged
from helpers.shm_servers import Serve
from helpers.waiting import wait_until

SENT = make_number_batches(20)


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> splitarrow.Server:
    path = write_file(tmp_path / "data.arrow", SENT)
    return serve({"data": SENT, "file": path})


def test_a_hand_written_client_frees_its_leases(server: splitarrow.Server) -> None:
    with RawClient(server.uri("data")) as client:
        client.request()
        descriptors, offsets = client.read_stream()
        assert (len(descriptors), len(offsets)) == (1, 20)
        assert server.stats()["leases"] == 20
        client.free(offsets[:5])
        wait_until(lambda: server.stats()["leases"] == 15)
        client.free(offsets[5:])
        wait_until(has_no_leases(server))
        client.request()  # on the same connection
        more, again = client.read_stream()
        assert again == offsets
        client.free(offsets)
        wait_until(has_no_leases(server))
        for descriptor in descriptors + more:
            os.close(descriptor)


BAD: dict[str, Callable[[random.Random, list[int]], list[int]]] = {
    "random": lambda draw, _: [draw.getrandbits(64) for _ in range(10_000)],
    "near by": lambda draw, held: [
        draw.choice(held) + draw.randrange(1, 64) for _ in range(10_000)
    ],
    "zero": lambda _, __: [0] * 10_000,
    "largest": lambda _, __: [(1 << 64) - 1] * 10_000,
    "surplus": lambda _, held: held * 500,
    "double": lambda _, held: held[:1] * 10_000,
}


@pytest.mark.parametrize("pieces", [1, 100])
@pytest.mark.parametrize("name", BAD)
def test_ten_thousand_bad_frees_close_the_connection(
    server: splitarrow.Server, name: str, pieces: int
) -> None:
    with splitarrow.open(server.uri("data")) as stream:
        batches = [next(stream) for _ in range(10)]
        with RawClient(server.uri("data")) as client:
            client.request()
            descriptors, held = client.read_stream()
            bad = BAD[name](random.Random(5), held)
            try:
                for k in range(pieces):
                    client.free(bad[k::pieces])
            except OSError:
                pass  # the server has closed the connection already
            assert client.is_closed()
            for descriptor in descriptors:
                os.close(descriptor)
        wait_until(lambda: server.stats()["connections"] == 1)
        assert server.stats()["leases"] == 20
        assert server.stats()["protocol_errors"] == 1
        batches += stream
        assert batches == SENT
        assert server.stats()["leases"] == 20
    del batches
    wait_until(has_no_leases(server))


def test_some_bad_frees_are_ignored(server: splitarrow.Server) -> None:
    with RawClient(server.uri("data")) as client:
        client.request()
        descriptors, held = client.read_stream()
        client.free([offset + 1 for offset in held] * 49)
        client.free([held[0]])
        wait_until(lambda: server.stats()["leases"] == 19)
        client.free(held)  # the first one is a surplus free
        wait_until(has_no_leases(server))
        client.request()
        more, _ = client.read_stream()
        for descriptor in descriptors + more:
            os.close(descriptor)
    assert server.stats()["protocol_errors"] == 0


@pytest.mark.parametrize("dataset", ["data", "file"])
def test_a_client_cannot_free_the_leases_of_another(
    server: splitarrow.Server, dataset: str
) -> None:
    """The clients hold the same offsets, but each connection has leases of its own."""
    with splitarrow.open(server.uri(dataset)) as stream:
        batches = list(stream)
        with RawClient(server.uri(dataset)) as spy, RawClient(server.uri(dataset)) as thief:
            spy.request()
            descriptors, offsets = spy.read_stream()
            thief.free(offsets * 10)
            thief.request()
            more, _ = thief.read_stream()
            for descriptor in descriptors + more:
                os.close(descriptor)
            assert server.stats()["leases"] == 60
        wait_until(lambda: server.stats()["leases"] == 20)
        assert batches == SENT


FRAMES: dict[str, bytes] = {
    "no frees": tagged((1 << 40) + 2, b""),
    "7 bytes": tagged((1 << 40) + 2, bytes(7)),
    "9 bytes": tagged((1 << 40) + 2, bytes(9)),
    "too many": tagged((1 << 40) + 2, bytes(8 * 65_537)),
    "largest frame": struct.pack("<B7xQQ", 1, (1 << 64) - 1, (1 << 40) + 2),
    "unknown kind": struct.pack("<B7xQQ", 7, 0, 0),
    "reserved byte": b"\1\1" + bytes(22),
    "untagged": untagged(b"\1\0\0\0\0"),
    "untagged with a tag": struct.pack("<B7xQQ", 0, 0, 5),
    "body": tagged(1, b"x"),
    "body of offsets": tagged(1 << 56 | 1, b"x" * 16),
    "region": announcement(1 << 20),
    "unknown tag": tagged((1 << 41) + 1, b""),
    "tag 0": tagged(0, b""),
    "preface again": PREFACE * 3,
    "garbage": random.Random(3).randbytes(5000),
}


@pytest.mark.parametrize("name", FRAMES)
def test_invalid_frames_close_the_connection(server: splitarrow.Server, name: str) -> None:
    with splitarrow.open(server.uri("data")) as stream:
        batches = [next(stream)]
        for streaming in (False, True):
            with RawClient(server.uri("data")) as client:
                descriptors: list[int] = []
                if streaming:
                    client.request()
                    descriptors, _ = client.read_stream()
                try:
                    client.send(FRAMES[name])
                except OSError:
                    pass  # the server has closed the connection already
                if name != "region":
                    assert client.is_closed()
                for descriptor in descriptors:
                    os.close(descriptor)
            wait_until(lambda: server.stats()["connections"] == 1)
        batches += stream
        assert batches == SENT
    assert server.stats()["protocol_errors"] == (0 if name == "region" else 2)


def test_descriptors_sent_to_the_server_are_closed(server: splitarrow.Server) -> None:
    before = open_memory()
    ours = sealed_memory(b"x")
    for count in (1, 2, 5, 40):
        with RawClient(server.uri("data")) as client:
            try:
                socket.send_fds(client.wire.sock, [b"\1"], [ours] * count)
                for _ in range(30):
                    socket.send_fds(client.wire.sock, [b"\0"], [ours])
            except OSError:
                pass  # the server has closed the connection already
    os.close(ours)
    wait_until(lambda: server.stats()["connections"] == 0)
    wait_until(lambda: open_memory() <= before)


def test_a_client_that_never_reads_leaves_no_leases(server: splitarrow.Server) -> None:
    """It sends a request and never reads. Its leases end when it leaves."""
    clients = [RawClient(server.uri("data")) for _ in range(10)]
    for client in clients:
        client.request()
    wait_until(lambda: server.stats()["leases"] == 200)
    for client in clients:
        client.close()
    wait_until(has_no_leases(server))


def assert_unwritable(descriptor: int, size: int) -> None:
    for change in (
        lambda: os.write(descriptor, b"x"),
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.ftruncate(descriptor, size + 1),
        lambda: mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_WRITE),
        lambda: mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: os.posix_fallocate(descriptor, 0, size + 4096),
    ):
        with pytest.raises(OSError, match=r"\[Errno"):
            change()


def test_readers_cannot_change_shared_memory(server: splitarrow.Server) -> None:
    with RawClient(server.uri("data")) as client:
        client.request()
        (descriptor,), _ = client.read_stream()
        size = os.fstat(descriptor).st_size
        before = os.pread(descriptor, size, 0)
        assert fcntl.fcntl(descriptor, 1034) == 15  # F_GET_SEALS: all of them
        assert_unwritable(descriptor, size)
        reopened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        assert_unwritable(reopened, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(reopened, 1033, 0)  # F_ADD_SEALS
        assert os.pread(descriptor, size, 0) == before
        os.close(reopened)
        os.close(descriptor)


def test_readers_cannot_change_a_shared_file(server: splitarrow.Server) -> None:
    with RawClient(server.uri("file")) as client:
        client.request()
        (descriptor, watch), _ = client.read_stream()
        size = os.fstat(descriptor).st_size
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        assert_unwritable(descriptor, size)
        with pytest.raises(BlockingIOError):  # even the owner of the file has to wait
            os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_NONBLOCK)
        os.close(descriptor)
        os.close(watch)


def test_shared_memory_has_no_name(server: splitarrow.Server) -> None:
    before = set(os.listdir("/dev/shm"))
    with splitarrow.open(server.uri("data")) as stream:
        assert make_table(stream) == make_table(SENT)
        assert set(os.listdir("/dev/shm")) <= before
