"""A process that is stopped while it changes what the processes of a server share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

import psutil
import pytest

from helpers.usage import fill, stop_with_the_lock
from helpers.waiting import wait_until
from splitarrow.errors import UnavailableError
from splitarrow.protocol.uri import Streams
from splitarrow.server.auth.tickets import ReplayCache
from splitarrow.server.usage import SharedUsage, UsageTable


@contextmanager
def stopped_with_the_lock(table: UsageTable | ReplayCache) -> Generator[None]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=stop_with_the_lock, args=(table, theirs))
    child.start()
    try:
        assert ours.recv() is True
        process = psutil.Process(child.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the stop of a process")
        yield
    finally:
        child.kill()
        child.join()
        child.close()
        ours.close()
        theirs.close()


def test_the_others_count_on_and_wait_once() -> None:
    table = UsageTable(2)
    usage = SharedUsage(table, 0)
    with stopped_with_the_lock(table):
        assert fill(usage.streams, "a", 3) == 2  # the process that is stopped has one
        usage.streams.release("a")
        assert usage.streams.take("a", 3)
        begin = monotonic()
        assert fill(usage.streams, "b", 1000) == 1000
        assert monotonic() - begin < 25  # 0.05 s each would take 50 s
    table.clear(1)
    assert fill(usage.streams, "a", 3) == 1


def test_no_ticket_is_used_meanwhile() -> None:
    cache = ReplayCache(64)
    assert cache.add(bytes(16), Streams.BOTH, 2, 1)
    with stopped_with_the_lock(cache):
        for nonce in (bytes(16), b"n" * 16):
            with pytest.raises(UnavailableError, match="is stopped while it records a ticket"):
                cache.add(nonce, Streams.BOTH, 2, 1)
    assert not cache.add(bytes(16), Streams.BOTH, 2, 1)
    assert cache.add(b"n" * 16, Streams.BOTH, 2, 1)
    cache.close()
