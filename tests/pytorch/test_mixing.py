"""The order of a mixture, against a slow description of each policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import UsageError
from splitarrow.pytorch.mixing import (
    MixOrder,
    MixPosition,
    PartOrder,
    RowFinder,
    Segment,
    Stop,
    Unit,
    divide_step,
    make_schedule,
)
from splitarrow.pytorch.order import EpochOrder, Even

part_rows = st.lists(st.integers(1, 1500), min_size=1, max_size=4)
stops = st.sampled_from(["first", "all", "repeat"])


def weights_for(parts: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.sampled_from([0.1, 0.3, 1.0, 2.5]), min_size=parts, max_size=parts)


def start(weights: Sequence[float], step_rows: int = 8, unit: Unit = "rows", schedule: Any = None):
    segment = Segment(0, 0, step_rows, unit, make_schedule(weights, schedule, len(weights)))
    return MixPosition(0, (segment,), 0)


def draw(rows: Sequence[int], position: MixPosition, stop: Stop, seed: int = 1) -> MixOrder:
    return MixOrder(rows, position.segments, (seed, position.epoch), stop)


def listed(order: MixOrder, begin: int = 0, end: int = 10**9) -> list[tuple[int, int]]:
    parts, numbers = order.rows(begin, end)
    return list(zip(parts.tolist(), numbers.tolist(), strict=True))


@given(part_rows.flatmap(lambda rows: st.tuples(st.just(rows), weights_for(len(rows)))), stops)
def test_a_mixture_ends_as_its_policy_states(
    drawn: tuple[list[int], list[float]], stop: Stop
) -> None:
    rows, weights = drawn
    order = draw(rows, start(weights), stop)
    sequence = listed(order)
    assert len(sequence) == len(order)
    assert sequence == listed(draw(rows, start(weights), stop))
    counts = Counter(part for part, _ in sequence)
    for part in range(len(rows)):  # the rows of a part arrive in its order, without a gap
        assert [number for each, number in sequence if each == part] == list(range(counts[part]))
    delivered = [counts[part] for part in range(len(rows))]
    if stop == "first":
        assert all(count <= most for count, most in zip(delivered, rows, strict=True))
        assert delivered[0] == rows[0] or any(map(int.__eq__, delivered, rows))
    elif stop == "all":
        assert delivered == rows
    else:
        assert all(count >= most for count, most in zip(delivered, rows, strict=True))
        last, number = sequence[-1]
        assert number == rows[last] - 1  # it ends with the first pass of the slowest part
    assert order.taken(len(sequence)) == delivered
    assert order.taken(10**9) == delivered
    if stop != "all":
        shares = [weight / sum(weights) for weight in weights]
        for count, share in zip(delivered, shares, strict=True):
            assert abs(count - share * len(sequence)) <= 110  # three deviations in a chunk


@given(
    st.lists(st.integers(50, 1500), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 60)), max_size=3),
    stops,
)
def test_other_ranks_do_not_change_the_order(
    rows: list[int], resumes: list[tuple[int, int]], stop: Stop
) -> None:
    weights = [1.0, 2.0, 3.0][: len(rows)]
    position = start(weights)
    expected = listed(draw(rows, position, stop))
    for step_rows, steps in resumes:
        position = position.after(position.steps + steps)
        position = MixPosition.decode(position.encode())
        position = position.continued(step_rows, "rows", position.segments[-1].schedule)
    order = draw(rows, position, stop)
    assert listed(order) == expected
    for row in (0, 1, position.rows, 1023, 1024, 1025):
        assert listed(order, row, row + 7) == expected[row : row + 7]
        before = Counter(part for part, _ in expected[:row])
        assert order.taken(row) == [before[part] for part in range(len(rows))]


def test_changed_weights_apply_from_the_step_of_the_resume() -> None:
    rows = [10_000, 10_000]
    before = start([1.0, 1.0], step_rows=100, unit="steps").after(13)
    after = before.continued(50, "steps", make_schedule([0.0, 1.0], None, 2))
    order = draw(rows, after, "first")
    assert listed(order, 0, 1300) == listed(draw(rows, before, "first"), 0, 1300)
    assert {part for part, _ in listed(order, 1300, 3000)} == {1}
    numbers = [number for part, number in listed(order, 0, 3000) if part == 1]
    assert numbers == list(range(len(numbers)))
    assert after.after(15).rows == 1300 + 2 * 50


def test_a_schedule_in_steps_begins_at_its_steps_whatever_their_size() -> None:
    schedule = {10: [0.0, 1.0], 20: [1.0, 0.0]}
    position = start([1.0, 0.0], 32, "steps", schedule)
    order = draw([5000, 5000], position, "first")
    parts = [part for part, _ in listed(order, 0, 960)]
    assert parts == [0] * 320 + [1] * 320 + [0] * 320
    position = position.after(5).continued(64, "steps", make_schedule([1.0, 0.0], schedule, 2))
    parts = [part for part, _ in listed(draw([5000, 5000], position, "first"), 0, 1440)]
    assert parts == [0] * (160 + 320) + [1] * 640 + [0] * 320


def test_with_all_the_next_weights_apply_when_no_weighted_part_has_rows() -> None:
    position = start([1.0, 0.0], 10, "rows", [(5000, [0.0, 1.0])])
    sequence = listed(draw([30, 40], position, "all"))
    assert [part for part, _ in sequence] == [0] * 30 + [1] * 40


def test_with_repeat_a_part_that_loses_its_weight_is_not_waited_for() -> None:
    order = draw([20, 1000], start([1.0, 1.0], schedule=[(100, [1.0, 0.0])]), "repeat")
    counts = Counter(part for part, _ in listed(order, 0, 5000))
    assert counts[0] > 20  # in several passes, before the last weights apply
    assert sum(counts.values()) == len(order) == 100


def test_with_repeat_a_part_that_has_a_weight_later_is_delivered() -> None:
    position = start([1.0, 0.0], 10, "rows", [(30, [0.0, 1.0])])
    sequence = listed(draw([30, 40], position, "repeat"))
    assert [part for part, _ in sequence] == [0] * 30 + [1] * 40


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(1, 5),
)
def test_each_row_of_a_part_has_one_place(blocks: list[int], lanes: int, cell_rows: int) -> None:
    epoch = EpochOrder(blocks, 1, 2, shuffle=True)
    order = PartOrder(epoch, lanes, cell_rows)
    found, positions = order.place(np.arange(len(epoch)))
    assert sorted(positions.tolist()) == list(range(len(epoch)))
    for lane in range(order.lanes):  # a lane is a contiguous share, in order
        share = positions[found == lane].tolist()
        assert share == list(range(share[0], share[-1] + 1)) if share else not len(epoch)


@given(
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(0, 39),
    st.sampled_from(["drop", "pad", "uneven"]),
)
def test_the_ranks_divide_a_step(ranks: int, batch_rows: int, missing: int, even: Even) -> None:
    step_rows = ranks * batch_rows
    count = max(0, step_rows - missing)
    fractions = np.random.default_rng(1).random(count)
    shares = [divide_step(fractions, step_rows, ranks, even, r).tolist() for r in range(ranks)]
    rows = Counter(row for share in shares for row in share)
    sizes = [len(share) for share in shares]
    assert all(share == sorted(share) for share in shares)
    if even == "drop":
        assert set(sizes) == {count // ranks}
        assert max(rows.values(), default=1) == 1
    elif even == "pad":
        assert set(sizes) == {-(-count // ranks)}
        assert set(rows) == set(range(count))
    else:
        assert sorted(rows.elements()) == list(range(count))
        assert max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=30),
    st.integers(1, 9),
    st.integers(1, 12),
    st.data(),
)
def test_blocks_are_listed_in_the_order_in_which_rows_need_them(
    blocks: list[int], lanes: int, cell_rows: int, data: st.DataObject
) -> None:
    order = PartOrder(EpochOrder(blocks, 1, 0, shuffle=True), lanes, cell_rows)
    cuts = data.draw(st.lists(st.integers(0, sum(blocks)), min_size=4, max_size=4))
    first, end, begin, last = sorted(cuts)
    spans = [(first, end), (begin, last)]
    places, positions = order.place(np.concatenate([np.arange(*span) for span in spans]))
    found, _ = order.order.find(positions)
    needed = dict.fromkeys(zip(places.tolist(), found.tolist(), strict=True))
    assert order.list_blocks(spans) == [block for _, block in needed]
    rank = data.draw(st.integers(0, 2))
    mine = {lane for lane in range(order.lanes) if rank <= lane / order.lanes * 3 < rank + 1}
    listed = order.list_blocks(spans, rank, 3)
    assert Counter(block for lane, block in needed if lane in mine) <= Counter(listed)


def test_ranks_read_lanes_of_their_own() -> None:
    blocks = [1000] * 48
    epoch = EpochOrder(blocks, 1, 0, shuffle=True)
    position = start([1.0], 4 * 32)
    order = draw([len(epoch)], position, "all")
    finder = RowFinder(order, [len(epoch)], lambda part, turn: PartOrder(epoch, 24, 1))
    lanes: list[set[int]] = [set() for _ in range(4)]
    for step in range(100):
        places, fractions = finder.place(step * 128, step * 128 + 128)
        for rank, found in enumerate(lanes):
            chosen = places.take(divide_step(fractions, 128, 4, "drop", rank))
            found.update(chosen.lanes.tolist())
            groups, back = chosen.group()
            rows = [row for group in groups for row in range(group.begin, group.end)]
            assert [rows[index] for index in back] == chosen.positions.tolist()
    assert max(map(len, lanes)) <= 24 // 4 + 2


@pytest.mark.parametrize(
    ("weights", "schedule", "message"),
    [
        ([1.0, -1.0], None, "expected positive numbers"),
        ([0.0, 0.0], None, "expected positive numbers"),
        ([1.0, float("nan")], None, "expected positive numbers"),
        (["many", 1.0], None, "expected numbers"),
        ([1.0], None, "1 weights for 2 datasets"),
        ([1.0, 1.0], {5: [1.0]}, "1 weights for 2 datasets"),
        ([1.0, 1.0], {-1: [1.0, 1.0]}, "a start in schedule is -1"),
        ([1.0, 1.0], [0.5, 0.5], "expected pairs"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, schedule: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_schedule(weights, schedule, 2)
