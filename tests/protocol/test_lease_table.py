"""Leases are counted, freed exactly once, and checked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from splitarrow.errors import LimitError
from splitarrow.protocol.lease_table import FreedOffsets, LeaseTable


def test_a_span_delivered_k_times_is_freed_by_the_kth_free() -> None:
    ledger = LeaseTable()
    for _ in range(3):
        ledger.grant([(64, 10)])
    assert (ledger.held, ledger.held_bytes) == (3, 30)
    assert ledger.free([64]) == []
    assert ledger.free([64]) == []
    assert ledger.free([64]) == [64]
    assert (ledger.held, ledger.held_bytes, ledger.bad_frees) == (0, 0, 0)


def test_one_message_may_free_a_span_as_often_as_it_was_delivered() -> None:
    ledger = LeaseTable()
    ledger.grant([(64, 10), (128, 5), (64, 10)])
    assert ledger.free([64, 128, 64]) == [128, 64]


def test_empty_buffers_are_not_leased() -> None:
    ledger = LeaseTable()
    ledger.grant([(0, 0), (32, 0), (0, 8)])
    assert (ledger.held, ledger.held_bytes) == (1, 8)
    assert ledger.free([0]) == [0]
    assert ledger.bad_frees == 0


def test_unknown_and_surplus_frees_are_counted_and_change_nothing() -> None:
    ledger = LeaseTable(bad_frees=3)
    ledger.grant([(0, 8), (8, 8)])
    assert ledger.free([4, 0, 0]) == [0]
    assert ledger.bad_frees == 2
    assert ledger.held == 1
    assert ledger.free([(1 << 64) - 1]) == []
    assert ledger.bad_frees == 3


def test_after_the_limit_of_bad_frees_the_peer_is_refused() -> None:
    ledger = LeaseTable(bad_frees=2)
    ledger.free([1, 2])
    with pytest.raises(LimitError, match="freed 3 offsets that it did not hold"):
        ledger.free([3])
    with pytest.raises(LimitError):
        ledger.free([])


def test_leases_that_a_refused_call_freed_are_returned_once() -> None:
    ledger = LeaseTable(bad_frees=1)
    ledger.grant([(0, 8), (8, 8), (16, 8), (16, 8)])
    with pytest.raises(LimitError):
        ledger.free([8, 99, 0, 16, 98])
    assert (ledger.held, ledger.held_bytes, ledger.bad_frees) == (3, 24, 2)
    assert sorted(ledger.free_all()) == [0, 8, 16]
    assert ledger.free_all() == []


def test_the_oldest_of_several_deliveries_is_freed_first() -> None:
    ledger = LeaseTable()
    for length in (1, 20, 300):
        ledger.grant([(64, length)])
    sizes: list[int] = []
    for _ in range(3):
        ledger.free([64])
        sizes.append(ledger.held_bytes)
    assert sizes == [320, 300, 0]


def test_a_peer_may_send_a_thousand_bad_frees_by_default() -> None:
    ledger = LeaseTable()
    assert ledger.free(range(1000)) == []
    with pytest.raises(LimitError, match="freed 1001 offsets that it did not hold"):
        ledger.free([0])


def test_a_disconnect_frees_everything_once() -> None:
    ledger = LeaseTable()
    ledger.grant([(0, 8), (0, 8), (8, 8)])
    assert sorted(ledger.free_all()) == [0, 8]
    assert ledger.free_all() == []
    assert (ledger.held, ledger.held_bytes) == (0, 0)
    assert ledger.oldest is None


def test_a_freed_span_can_be_leased_again() -> None:
    ledger = LeaseTable()
    ledger.grant([(0, 8)])
    ledger.free([0])
    ledger.grant([(0, 16)])
    assert ledger.held_bytes == 16
    assert ledger.free([0]) == [0]


def test_returns_are_taken_in_order_and_once() -> None:
    returns = FreedOffsets()
    for offset in (3, 1, 2, 1):
        returns.add((offset,))
    assert len(returns) == 4
    assert returns.take(3) == [3, 1, 2]
    assert returns.take(3) == [1]
    assert returns.take(3) == []
    assert len(returns) == 0


def test_leases_returned_on_other_threads_are_not_lost() -> None:
    returns = FreedOffsets()
    each, givers = 2000, 4

    def give(start: int) -> None:
        for offset in range(start, start + each):
            returns.add((offset,))

    threads = [threading.Thread(target=give, args=(k * each,)) for k in range(givers)]
    for thread in threads:
        thread.start()
    taken: list[int] = []
    while any(thread.is_alive() for thread in threads):
        taken += returns.take(7)
    for thread in threads:
        thread.join()
    while more := returns.take(1000):
        taken += more
    assert sorted(taken) == list(range(each * givers))


class _ChangedOnce(dict[int, Any]):
    """A dict that another thread changes during the first iteration over its values."""

    interruptions = 1

    def values(self) -> Any:
        if self.interruptions:
            self.interruptions -= 1
            raise RuntimeError("dictionary changed size during iteration")
        return super().values()


def test_the_oldest_lease_is_found_while_another_thread_changes_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = LeaseTable()
    assert ledger.oldest is None
    ledger.grant([(64, 10)], now=3.0)
    ledger.grant([(128, 10)], now=4.0)
    changing = _ChangedOnce(ledger._leases)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(ledger, "_leases", changing)
    assert ledger.oldest == 3.0
    assert changing.interruptions == 0


@pytest.mark.parametrize("held", [[], [(8, 5)], [(104, 1), (104, 1)]])
@pytest.mark.parametrize(
    "offsets", [[range(0, 40, 10), range(100, 140, 10)], [[8, 8, 9], [8, 104, 200]], []]
)
def test_leases_on_a_run_are_those_on_its_messages(
    held: list[tuple[int, int]], offsets: list[list[int]]
) -> None:
    together, apart = LeaseTable(), LeaseTable()
    lengths = [3, 7][: len(offsets)]
    for ledger in (together, apart):
        ledger.grant(held, 1.0)
    together.grant_run(offsets, lengths, 2.0)
    for spans in zip(*offsets, strict=True):
        apart.grant(list(zip(spans, lengths, strict=True)), 2.0)
    assert (together.held, together.held_bytes) == (apart.held, apart.held_bytes)
    assert together.oldest == apart.oldest
    freed = [offset for column in offsets for offset in column]
    for number in range(3):  # more often than they were granted
        assert sorted(together.free(freed)) == sorted(apart.free(freed)), number
        assert (together.held, together.bad_frees) == (apart.held, apart.bad_frees)
