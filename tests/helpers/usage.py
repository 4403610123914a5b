"""Uses of limits that processes share."""

from __future__ import annotations

from multiprocessing.connection import Connection

from splitarrow.server.usage import KeyedCounter, SharedCounter, SharedUsage, UsageTable


def fill(counts: KeyedCounter | SharedCounter, key: str, limit: int) -> int:
    """Take a key up to its limit; return how often that succeeded."""
    taken = 0
    while counts.take(key, limit):
        taken += 1
    return taken


def take_in_child(table: UsageTable, results: Connection) -> None:
    """Take a key up to its limit in a process of its own, and send what it got."""
    results.send((fill(SharedUsage(table, 1).streams, "a", 3), table.make_number()))
