"""Leases: counted, freed exactly once, never trusted."""

from __future__ import annotations

import threading

import pytest

from splitarrow.errors import LimitError
from splitarrow.protocol.leases import LeaseLedger, LeaseReturns


def test_a_place_delivered_k_times_is_freed_with_the_kth() -> None:
    ledger = LeaseLedger()
    for _ in range(3):
        ledger.grant([(64, 10)])
    assert (ledger.held, ledger.held_bytes) == (3, 30)
    assert ledger.free([64]) == []
    assert ledger.free([64]) == []
    assert ledger.free([64]) == [64]
    assert (ledger.held, ledger.held_bytes, ledger.bad_frees) == (0, 0, 0)


def test_one_message_may_free_a_place_as_often_as_it_was_delivered() -> None:
    ledger = LeaseLedger()
    ledger.grant([(64, 10), (128, 5), (64, 10)])
    assert ledger.free([64, 128, 64]) == [128, 64]


def test_empty_buffers_are_no_leases() -> None:
    ledger = LeaseLedger()
    ledger.grant([(0, 0), (32, 0), (0, 8)])
    assert (ledger.held, ledger.held_bytes) == (1, 8)
    assert ledger.free([0]) == [0]
    assert ledger.bad_frees == 0


def test_unknown_and_surplus_frees_are_counted_and_change_nothing() -> None:
    ledger = LeaseLedger(bad_frees=3)
    ledger.grant([(0, 8), (8, 8)])
    assert ledger.free([4, 0, 0]) == [0]
    assert ledger.bad_frees == 2
    assert ledger.held == 1
    assert ledger.free([(1 << 64) - 1]) == []
    assert ledger.bad_frees == 3


def test_after_the_limit_of_bad_frees_the_peer_is_refused() -> None:
    ledger = LeaseLedger(bad_frees=2)
    ledger.free([1, 2])
    with pytest.raises(LimitError, match="3 frees"):
        ledger.free([3])
    with pytest.raises(LimitError):
        ledger.free([])


def test_what_a_refused_call_took_back_is_still_returned_once() -> None:
    ledger = LeaseLedger(bad_frees=1)
    ledger.grant([(0, 8), (8, 8), (16, 8), (16, 8)])
    with pytest.raises(LimitError):
        ledger.free([8, 99, 0, 16, 98])
    assert sorted(ledger.free_all()) == [0, 8, 16]
    assert ledger.free_all() == []


def test_a_disconnect_frees_everything_once() -> None:
    ledger = LeaseLedger()
    ledger.grant([(0, 8), (0, 8), (8, 8)])
    assert sorted(ledger.free_all()) == [0, 8]
    assert ledger.free_all() == []
    assert ledger.held == 0


def test_a_place_may_be_leased_anew() -> None:
    ledger = LeaseLedger()
    ledger.grant([(0, 8)])
    ledger.free([0])
    ledger.grant([(0, 16)])
    assert ledger.held_bytes == 16
    assert ledger.free([0]) == [0]


def test_returns_are_taken_in_order_and_once() -> None:
    returns = LeaseReturns()
    for offset in (3, 1, 2, 1):
        returns.give_back((offset,))
    assert len(returns) == 4
    assert returns.take(3) == [3, 1, 2]
    assert returns.take(3) == [1]
    assert returns.take(3) == []
    assert len(returns) == 0


def test_nothing_given_back_on_other_threads_is_lost() -> None:
    returns = LeaseReturns()
    each, givers = 2000, 4

    def give(start: int) -> None:
        for offset in range(start, start + each):
            returns.give_back((offset,))

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
