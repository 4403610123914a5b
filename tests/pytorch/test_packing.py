"""Packers: each token once, no padding beyond the policy, the same packs after a resume."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import UsageError
from splitarrow.pytorch.mixing import (
    MixOrder,
    MixPosition,
    PartOrder,
    Places,
    RowFinder,
    Segment,
    make_schedule,
)
from splitarrow.pytorch.order import EpochOrder
from splitarrow.pytorch.packing import (
    Pack,
    Packer,
    PackPosition,
    PackSequence,
    Policy,
    check_policy,
    count_tokens,
)

documents = st.lists(st.integers(0, 40), max_size=60)
lengths = st.integers(1, 16)
policies = st.sampled_from(["fit", "split"])
windows = st.integers(1, 5)


def pack_all(sizes: list[int], length: int, policy: Policy, window: int) -> list[Pack]:
    packer = Packer(length, policy, window)
    packs: list[Pack] = []
    for number, size in enumerate(sizes):
        packs += packer.add(number, size)
        assert len(packer.open_packs) <= (window if policy == "fit" else 1)
    return [*packs, *packer.finish()]


@given(documents, lengths, policies, windows)
def test_each_token_is_in_one_pack(
    sizes: list[int], length: int, policy: Policy, window: int
) -> None:
    packs = pack_all(sizes, length, policy, window)
    tokens = [(n, t) for pack in packs for n, begin, end in pack for t in range(begin, end)]
    assert sorted(tokens) == [(n, t) for n, size in enumerate(sizes) for t in range(size)]
    assert all(0 < count_tokens(pack) <= length for pack in packs)
    if policy == "split":  # in order, and only the last pack is not full
        assert tokens == sorted(tokens)
        assert all(count_tokens(pack) == length for pack in packs[:-1])
        return
    for pack in packs:  # only documents that are longer than a pack are split
        for number, begin, end in pack:
            assert begin % length == 0
            assert end - begin == length or end == sizes[number]


@given(st.lists(st.integers(1, 8), max_size=60), windows)
def test_a_pack_is_closed_only_when_no_open_one_has_room(sizes: list[int], window: int) -> None:
    length, packer = 8, Packer(8, "fit", window)
    for number, size in enumerate(sizes):
        opened = packer.open_packs
        rooms = [length - count_tokens(pack) for pack in opened]
        for pack in packer.add(number, size):
            if count_tokens(pack) < length:
                assert len(opened) == window
                assert size > max(rooms)
                assert count_tokens(pack) == max(map(count_tokens, opened))


def make_sequence(
    position: PackPosition, sizes: list[int], length: int, policy: Policy, window: int
) -> PackSequence:
    blocks = [len(sizes[first : first + 7]) for first in range(0, len(sizes), 7)]
    epoch = EpochOrder(blocks, 1, 0, shuffle=False)
    order = MixOrder([len(sizes)], position.documents.segments, (1,), "all")
    finder = RowFinder(order, [len(sizes)], lambda part, turn: PartOrder(epoch, 3, 2))
    known = np.array(sizes, np.int64)

    def find_lengths(places: Places) -> np.ndarray:
        return known[places.positions]

    packer = Packer(length, policy, window, position.open_packs)
    return PackSequence(position, packer, finder, find_lengths)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), lengths, policies, windows, st.data())
def test_a_sequence_continues_from_any_step(
    sizes: list[int], length: int, policy: Policy, window: int, data: st.DataObject
) -> None:
    segment = Segment(0, 0, 1, "rows", make_schedule([1.0], None, 1))
    start = PackPosition(0, MixPosition(0, (segment,), 0))
    whole = make_sequence(start, sizes, length, policy, window)
    steps = []
    while packs := whole.take(3):
        for pack in packs:
            assert all(whole.place(part.document).part == 0 for part in pack)
        whole.forget()
        steps.append(packs)
    cut = data.draw(st.integers(0, len(steps)))
    first = make_sequence(start, sizes, length, policy, window)
    assert [first.take(3) for _ in range(cut)] == steps[:cut]
    saved = json.loads(json.dumps(first.position.encode()))
    assert PackPosition.decode(saved) == first.position
    rest = make_sequence(PackPosition.decode(saved), sizes, length, policy, window)
    assert [rest.take(3) for _ in steps[cut:]] == steps[cut:]
    assert rest.take(3) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "fit", 1), "length is 0"),
        ((1, "fit", 0), "window is 0"),
        ((1, "best", 1), "policy is 'best'; expected fit, split"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[int, str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_policy(*arguments)
