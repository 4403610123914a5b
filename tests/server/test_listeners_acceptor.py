"""Accepting connections when the process has no room for them."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.waiting import wait_until
from splitarrow.errors import ConnectError, ConnectionLostError, ExhaustedError
from splitarrow.protocol.uri import DataUri
from splitarrow.server.config import load_settings
from splitarrow.server.listeners import Acceptor
from splitarrow.server.metrics import Metrics
from splitarrow.server.refusals import RefusalLog
from splitarrow.server.usage import Usage
from splitarrow.transport.base import Channel, Listener

TABLE = pa.table({"n": [1, 2, 3]})


class FullListener:
    """A listener whose clients can be accepted only while a descriptor is free."""

    uri = DataUri.parse("tcp://127.0.0.1:1")

    def __init__(self, has_descriptor: Callable[[], bool]) -> None:
        self._has_descriptor = has_descriptor
        self._readable = os.eventfd(1)
        self.waiting = 3
        self.attempts = 0

    def fileno(self) -> int:
        return self._readable

    def accept(self) -> Any:
        self.attempts += 1
        if not self._has_descriptor():
            raise OSError(errno.EMFILE, "Too many open files")
        self.waiting -= 1
        return f"client {self.waiting}"

    def reject(self) -> bool:
        raise AssertionError

    def close(self) -> None:
        os.close(self._readable)


class Context:
    """The part of a server's state that an acceptor uses."""

    def __init__(self) -> None:
        self.settings = load_settings(listen=("tcp://127.0.0.1:1",))
        self.refusals = RefusalLog(Metrics(), ())
        self.usage = Usage()


def test_without_descriptors_one_client_at_a_time_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served: list[tuple[Any, bool]] = []

    async def serve(channel: Channel, source: Listener, has_room: bool) -> None:
        assert acceptor.spare is None
        served.append((channel, has_room))
        await anyio.sleep(0.01)

    async def run() -> None:
        with anyio.move_on_after(0.5):
            async with anyio.create_task_group() as sessions:
                await acceptor.run(sessions)

    listener: Any = FullListener(lambda: acceptor.spare is None)
    context: Any = Context()
    acceptor = Acceptor([listener], context, serve)
    with caplog.at_level(logging.ERROR, "splitarrow"):
        anyio.run(run)
    listener.close()
    assert served[0] == ("client 2", False)
    assert 2 <= len(served) <= 8
    assert listener.attempts < 20  # it pauses
    assert [record.msg for record in caplog.records] == ["cannot accept connections"]
    assert acceptor.spare is None


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_connections_beyond_the_limit_are_refused_and_then_closed_at_once(limit: str) -> None:
    # A connection of tcp counts as 3 descriptors, so that 12 can wait for their refusal.
    settings: dict[str, Any] = {limit: 1}
    with splitarrow.serve({"a": TABLE}, handshake_seconds=30, **settings) as server:
        uri = server.uri("a")
        with splitarrow.open(uri) as first:
            with pytest.raises(ExhaustedError, match="limit of connections"):
                splitarrow.open(uri)
            address = DataUri.parse(uri)
            with ExitStack() as silent:
                for _ in range(12):
                    with suppress(ConnectionResetError):
                        client = socket.create_connection((address.host, address.port or 0))
                        silent.enter_context(client)
                # The reset may come before connecting has returned.
                with pytest.raises((ConnectError, ConnectionLostError), match="reset"):
                    splitarrow.open(uri)
            assert first.read_all() == TABLE


def test_a_refused_connection_gives_its_descriptors_back() -> None:
    """Otherwise only the first refused readers learn the reason."""
    with splitarrow.serve({"a": TABLE}, max_connections=1) as server:
        uri = server.uri("a")
        with splitarrow.open(uri):
            for _ in range(40):
                with pytest.raises(ExhaustedError, match="limit of connections"):
                    splitarrow.open(uri)
                wait_until(lambda: server.stats()["connections"] == 1)


def test_an_admitted_connection_gives_its_descriptors_back() -> None:
    with splitarrow.serve({"a": TABLE}) as server:
        acceptor: Any = server._daemon._acceptor  # pyright: ignore[reportPrivateUsage]
        shares = (acceptor._connection_shares, acceptor._descriptor_shares)
        before = [each.room(0, 100) for each in shares]
        with splitarrow.open(server.uri("a")):
            used = [left - each.room(0, 100) for left, each in zip(before, shares, strict=True)]
            assert used == [1, 3]
        wait_until(lambda: [each.room(0, 100) for each in shares] == before, seconds=10)


@pytest.mark.parametrize("transport", ["shm", "flight"])
def test_a_lack_of_descriptors_is_reported_as_such(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    listen, control = ["tcp://127.0.0.1:0", "shm://"], "grpc://127.0.0.1:0"
    with splitarrow.serve({"a": TABLE}, listen=listen, control=control) as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            client.read("a", transport=transport).read_all()
            if transport == "shm":
                server.remove("a")
                server.add("a", TABLE)  # the copy in shared memory is made again
                monkeypatch.setattr(os, "memfd_create", fail)
            else:
                monkeypatch.setattr("splitarrow.server.catalog.tables.TableDataset.open", fail)
            with pytest.raises(ExhaustedError, match="out of resources"):
                client.read("a", transport=transport, resume_attempts=0).read_all()


def test_connections_of_one_address_are_limited() -> None:
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with splitarrow.serve({"a": TABLE}, listen=listen, max_connections_per_address=2) as server:
        uri = server.uri("a", "tcp")
        with splitarrow.open(uri), splitarrow.open(uri):
            with pytest.raises(ExhaustedError, match="limit of connections"):
                splitarrow.open(uri)
            with splitarrow.open(server.uri("a", "shm")) as stream:
                assert stream.read_all() == TABLE
        wait_until(lambda: server.stats()["connections"] == 0, "the end of the connections")
        with splitarrow.open(uri) as stream:
            assert stream.read_all() == TABLE


def test_streams_of_one_principal_are_limited(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        "".join(
            f'[[tokens]]\nname = "{name}"\ntoken = "the-secret-token-of-{name}"\ndatasets = ["*"]\n'
            for name in ("anna", "bob")
        )
    )
    tokens.chmod(0o600)
    big = pa.table({"n": pa.array(np.arange(4_000_000))})
    settings: dict[str, Any] = {"token_file": tokens, "max_streams_per_principal": 1}
    with splitarrow.serve({"big": big}, control="grpc://127.0.0.1:0", **settings) as server:
        uri = server.control_uri
        assert uri is not None
        with (
            splitarrow.connect(uri, "the-secret-token-of-anna") as anna,
            splitarrow.connect(uri, "the-secret-token-of-bob") as bob,
            anna.read("big", transport="tcp", batch_rows=1000) as stream,
        ):
            next(iter(stream))
            for transport in ("tcp", "flight"):
                with pytest.raises(ExhaustedError, match="'anna' has reached its limit of 1"):
                    anna.read("big", transport=transport, resume_attempts=0).read_all()
            assert bob.read("big", transport="tcp").read_all() == big
