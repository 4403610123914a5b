"""`open` keeps the client of a server on another host for a while."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest

import splitarrow
from helpers.waiting import wait_until
from splitarrow.client.dataset.client import Client
from splitarrow.client.dataset.dataset import DatasetStream
from splitarrow.client.kept_clients import KEPT_CLIENTS, KeptClients
from splitarrow.client.uris import parse_control_uri
from splitarrow.errors import ClosedError, ConnectError, NotFoundError

TABLE = pa.table({"n": [1, 2, 3]})
HOST = "0.0.0.0"
"""An address of this host that passes for another one."""


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with splitarrow.serve({"d": TABLE}, control="grpc://127.0.0.1:0") as server:
        yield (server.control_uri or "").replace("127.0.0.1", HOST)


def read(client: Client) -> DatasetStream:
    return client.read("d")


class Opener:
    """Opens streams with kept clients, and counts the clients that it makes."""

    def __init__(self, seconds: float) -> None:
        self.kept = KeptClients(seconds)
        self.made: list[Client] = []

    def connect(self, uri: str) -> Client:
        self.made.append(Client(parse_control_uri(uri), check=False))
        return self.made[-1]

    def read(self, uri: str) -> pa.Table:
        keep = "127.0.0.1" not in uri
        stream, release = self.kept.open(uri, lambda: self.connect(uri), 5.0, read, keep=keep)
        with stream:
            table = stream.read_all()
        release()
        return table


def is_closed(client: Client) -> bool:
    try:
        client.info("d")
    except ClosedError:
        return True
    return False


def test_a_client_is_used_again_until_it_was_idle_for_long(uri: str) -> None:
    opener = Opener(30)
    assert [opener.read(uri), opener.read(uri)] == [TABLE, TABLE]
    assert len(opener.made) == 1
    opener.kept.close_idle()
    assert is_closed(opener.made[0])
    brief = Opener(0.05)
    brief.read(uri)
    wait_until(lambda: is_closed(brief.made[0]))
    assert brief.read(uri) == TABLE
    assert len(brief.made) == 2
    brief.kept.close_idle()


def test_a_client_that_is_not_kept_is_closed_at_once(uri: str) -> None:
    opener = Opener(30)
    opener.read(uri.replace(HOST, "127.0.0.1"))
    assert is_closed(opener.made[0])


def test_a_borrowed_client_is_shared_and_kept(uri: str) -> None:
    opener = Opener(30)
    connect = partial(opener.connect, uri)
    with opener.kept.borrow(uri, connect) as first, opener.kept.borrow(uri, connect) as second:
        assert first is second
    with opener.kept.borrow(uri, connect) as third:
        assert third is first
        opener.kept.close_idle()
        assert not is_closed(opener.made[0])
    opener.kept.close_idle()
    assert is_closed(opener.made[0])
    assert len(opener.made) == 1


def test_clients_that_two_threads_made_at_once_become_one(uri: str) -> None:
    opener, both = Opener(30), threading.Barrier(2)

    def connect() -> Client:
        both.wait(10)
        return opener.connect(uri)

    def borrow(_: int) -> Client:
        with opener.kept.borrow(uri, connect) as client:
            both.wait(10)
            assert isinstance(client, Client)
            return client

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(borrow, range(2))
    assert first is second
    assert sorted(map(is_closed, opener.made)) == [False, True]
    opener.kept.close_idle()


def test_a_stream_in_use_keeps_its_client(uri: str) -> None:
    opener = Opener(30)
    stream, release = opener.kept.open(uri, lambda: opener.connect(uri), 5.0, read)
    opener.read(uri)
    opener.kept.close_idle()
    assert not is_closed(opener.made[0])
    assert stream.read_all() == TABLE
    release()
    opener.kept.close_idle()
    assert is_closed(opener.made[0])


def test_too_many_idle_clients_are_closed_the_oldest_first(uri: str) -> None:
    opener = Opener(30)
    for number in range(18):
        _, release = opener.kept.open(number, lambda: opener.connect(uri), 5.0, Client.datasets)
        release()
    assert [is_closed(client) for client in opener.made] == [True] * 2 + [False] * 16
    opener.kept.close_idle()


def test_a_server_that_is_silent_or_absent_has_the_error_of_connect() -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectError, match=r"no response within 0\.2|does not respond"):
            splitarrow.open(f"grpc://{HOST}:{port}/d", connect_timeout=0.2)
    for _ in range(2):
        with pytest.raises(ConnectError, match="the connection was refused; check that the server"):
            splitarrow.open(f"grpc://{HOST}:{port}/d")


def test_an_error_of_the_read_is_not_one_of_the_client(uri: str) -> None:
    for _ in range(2):
        with pytest.raises(NotFoundError):
            splitarrow.open(f"{uri}/e")
    KEPT_CLIENTS.close_idle()


def test_a_stream_that_nobody_closes_releases_its_client(uri: str) -> None:
    stream = splitarrow.open(f"{uri}/d", transport="flight")
    (kept,) = [each for each in KEPT_CLIENTS._clients.values() if each.users]
    del stream
    wait_until(lambda: not kept.users)
    KEPT_CLIENTS.close_idle()


@pytest.mark.slow
def test_a_process_that_is_forked_opens_its_own(uri: str) -> None:
    script = """
import os, sys, splitarrow
def read():
    return splitarrow.open(sys.argv[1] + "/d").read_all().num_rows
assert read() == 3
child = os.fork()
if not child:
    from splitarrow.transport.grpc_usage import GRPC_USAGE
    os._exit(read() + 10 * GRPC_USAGE.is_blocked)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert read() == 3
"""
    done = subprocess.run([sys.executable, "-c", script, uri], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
