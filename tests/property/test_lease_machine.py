"""A server's ledger and a client's returns at random: nothing leaks or is freed twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from splitarrow.errors import LimitError
from splitarrow.protocol.lease_table import FreedOffsets, LeaseTable
from splitarrow.protocol.payloads import pack_offsets, pack_spans, parse_offsets, parse_spans

REGION = 64
SPANS = st.lists(st.integers(0, 7), max_size=6).map(
    lambda places: [(8 * place, 8) if place else (0, 0) for place in places]
)


class Leases(RuleBasedStateMachine):
    """`held` says what the client has; `pinned` what the server must keep in memory."""

    @initialize(tolerated=st.integers(0, 5))
    def begin(self, tolerated: int) -> None:
        self.connect(tolerated)

    @precondition(lambda self: not self.connected)
    @rule(tolerated=st.integers(0, 5))
    def connect_again(self, tolerated: int) -> None:
        self.connect(tolerated)

    def connect(self, tolerated: int) -> None:
        self.ledger = LeaseTable(bad_frees=tolerated)
        self.tolerated = tolerated
        self.returns = FreedOffsets()
        self.held: Counter[int] = Counter()
        self.noted: list[int] = []
        self.under_way: Counter[int] = Counter()
        self.pinned: set[int] = set()
        self.bad = 0
        self.connected = True

    def release(self, offsets: list[int]) -> None:
        """Memory goes back: each place must have been pinned, and only once."""
        for offset in offsets:
            assert offset in self.pinned, "freed twice, or never granted"
            self.pinned.remove(offset)

    @precondition(lambda self: self.connected)
    @rule(spans=SPANS)
    def deliver(self, spans: list[tuple[int, int]]) -> None:
        self.ledger.grant(spans)
        received = parse_spans(pack_spans(spans), region_size=REGION, expected=len(spans))
        for offset, length in received:
            if length:
                self.held[offset] += 1
                self.pinned.add(offset)

    @precondition(lambda self: self.connected and +self.held)
    @rule(data=st.data())
    def finish_with_one(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(+self.held)))
        self.held[offset] -= 1
        self.noted.append(offset)
        self.under_way[offset] += 1
        self.returns.add((offset,))

    @precondition(lambda self: self.connected)
    @rule(limit=st.integers(1, 4))
    def send_returns(self, limit: int) -> None:
        offsets = self.returns.take(limit)
        assert offsets == self.noted[:limit]
        del self.noted[:limit]
        self.under_way.subtract(offsets)
        if offsets:
            payload = pack_offsets(offsets)
            self.release(self.ledger.free(parse_offsets(payload, limit=limit)))

    @precondition(lambda self: self.connected)
    @rule(good=st.integers(0, 2), strange=st.integers(1, 3), data=st.data())
    def send_bad_frees(self, good: int, strange: int, data: st.DataObject) -> None:
        """Unknown places, mixed with good returns in one message."""
        offsets = self.returns.take(good)
        del self.noted[: len(offsets)]
        self.under_way.subtract(offsets)
        mixed = data.draw(st.permutations(offsets + [REGION + 8] * strange))
        self.bad += strange
        if self.bad <= self.tolerated:
            self.release(self.ledger.free(mixed))
        else:
            with pytest.raises(LimitError):
                self.ledger.free(mixed)
            self.disconnect()

    @precondition(lambda self: self.connected)
    @rule()
    def lose_the_connection(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        self.release(self.ledger.free_all())
        assert self.pinned == set(), "memory is left behind"
        assert self.ledger.held == 0
        assert self.ledger.free_all() == []
        self.connected = False

    @invariant()
    def both_sides_agree(self) -> None:
        if not self.connected:
            return
        outstanding = self.held + +self.under_way
        assert self.ledger.held == outstanding.total()
        assert self.pinned == set(+outstanding)
        assert self.ledger.held_bytes == 8 * outstanding.total()
        assert self.ledger.bad_frees == self.bad
        assert len(self.returns) == len(self.noted)

    def teardown(self) -> None:
        if getattr(self, "connected", False):
            self.disconnect()


Leases.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeases = Leases.TestCase
