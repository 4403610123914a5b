"""Memory of devices is kept for readers that still have it open."""

from __future__ import annotations

import socket
import time
import weakref

import pytest

from helpers.waiting import wait_until
from splitarrow.server.shm import exports
from splitarrow.server.shm.exports import KEEPER


class Export:
    """What a reader has open."""


def test_memory_ends_some_time_after_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    grace = 0.5  # more than the keeper waits between two looks
    monkeypatch.setattr(exports, "_GRACE_SECONDS", grace)
    reader, connection = socket.socketpair()
    export = Export()
    alive = weakref.ref(export)
    KEEPER.keep(connection, [export], "a reader")
    del export
    reader.send(b"a late message")
    closed_at = time.monotonic()
    reader.close()
    wait_until(lambda: connection.fileno() < 0, "the end of the connection")
    wait_until(lambda: alive() is None, "the end of the memory")
    assert time.monotonic() - closed_at >= grace


def test_a_reader_that_keeps_memory_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exports, "WARN_SECONDS", 0.05)
    monkeypatch.setattr(exports, "_GRACE_SECONDS", 0.3)
    reader, connection = socket.socketpair()
    export = Export()
    alive = weakref.ref(export)
    KEEPER.keep(connection, [export], "process 17")
    del export
    wait_until(lambda: caplog.records, "the message")
    reader.close()
    wait_until(lambda: alive() is None, "the end of the memory")
    (record,) = caplog.records
    assert "memory of a device is kept: a reader still has it open" in record.getMessage()
    assert vars(record)["peer"] == "process 17"
