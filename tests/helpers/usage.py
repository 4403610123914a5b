"""Uses of limits that processes share."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from splitarrow.server.auth.tickets import ReplayCache
from splitarrow.server.usage import KeyedCounter, SharedCounter, SharedUsage, UsageTable


def fill(counts: KeyedCounter | SharedCounter, key: str, limit: int) -> int:
    """Take a key up to its limit; return how often that succeeded."""
    taken = 0
    while counts.take(key, limit):
        taken += 1
    return taken


def take_in_child(table: UsageTable, results: Connection) -> None:
    """Take a key up to its limit in a process of its own, and send what it got."""
    usage = SharedUsage(table, 1)
    results.send((fill(usage.streams, "a", 3), usage.make_number()))


def stop_with_the_lock(table: UsageTable | ReplayCache, results: Connection) -> None:
    """Use a table, and stop this process while it has the lock of the table."""
    if isinstance(table, UsageTable):
        SharedUsage(table, 1).streams.take("a", 3)
    with table._lock.take() as has_lock:
        results.send(has_lock)
        os.kill(os.getpid(), signal.SIGSTOP)
