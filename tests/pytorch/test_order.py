"""Each row of an epoch is in one batch of one rank, also after changes of ranks in mid-epoch."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import UsageError
from splitarrow.pytorch.order import (
    Division,
    EpochOrder,
    Even,
    Share,
    Spans,
    draw_permutation,
    remaining_rows,
)
from splitarrow.pytorch.plan import form_blocks
from splitarrow.pytorch.position import Order, Position

blocks = st.lists(st.integers(0, 40), max_size=12)
sizes = st.integers(1, 9)
stages = st.lists(st.tuples(sizes, sizes, sizes, st.integers(0, 12)), max_size=3)


def rows_of(order: EpochOrder, share: Share, numbers: range) -> list[tuple[int, int]]:
    """Return the block and the number of each row of some batches, in order."""
    return [
        (piece.block, row)
        for number in numbers
        for piece in order.locate(share.batch(number))
        for row in range(piece.begin, piece.end)
    ]


@given(blocks, stages, sizes, sizes, sizes, st.booleans())
def test_each_row_is_delivered_once_however_often_the_ranks_change(
    block_rows: list[int],
    earlier: list[tuple[int, int, int, int]],
    ranks: int,
    batch_rows: int,
    lanes: int,
    shuffle: bool,
) -> None:
    order = EpochOrder(block_rows, 7, 3, shuffle=shuffle)
    assert len(order) == sum(block_rows)
    rows = Spans([(0, len(order))])
    seen: Counter[tuple[int, int]] = Counter()
    for *fields, steps in (*earlier, (ranks, batch_rows, lanes, 10**6)):
        division = Division(*fields, even="uneven")  # pyright: ignore[reportArgumentType]
        for rank in range(division.world_size):
            share = Share(rows, division, rank)
            delivered = rows_of(order, share, range(min(steps, share.batches)))
            seen.update(delivered)
            if steps >= share.batches:
                assert share.batches == -(-len(delivered) // division.batch_rows)
        rows = remaining_rows(rows, division, steps, lambda rank, lanes: {})
    assert len(rows) == 0
    assert seen == {(block, row): 1 for block, n in enumerate(block_rows) for row in range(n)}


@given(blocks, sizes, sizes, sizes)
def test_ranks_have_as_many_rows_and_batches(
    block_rows: list[int], ranks: int, batch_rows: int, lanes: int
) -> None:
    total = sum(block_rows)
    rows = Spans([(0, total)])
    order = EpochOrder(block_rows, 0, 0, shuffle=True)

    def deliver(even: Even) -> list[list[tuple[int, int]]]:
        division = Division(ranks, batch_rows, lanes, even)
        shares = [Share(rows, division, rank) for rank in range(ranks)]
        return [rows_of(order, share, range(share.batches)) for share in shares]

    def count(even: Even) -> Counter[tuple[int, int]]:
        return Counter(row for share in deliver(even) for row in share)

    assert {len(share) for share in deliver("drop")} == {total // ranks}
    assert set(count("drop").values()) <= {1}
    assert {len(share) for share in deliver("pad")} == {-(-total // ranks)}
    padded = count("pad")
    assert len(padded) == total
    assert padded.total() - total < ranks
    uneven = [len(share) for share in deliver("uneven")]
    assert max(uneven) - min(uneven) <= 1
    assert count("uneven").total() == total


@given(blocks, sizes, sizes, st.integers(0, 60))
def test_a_position_that_pads_leaves_the_rest(
    block_rows: list[int], ranks: int, batch_rows: int, steps: int
) -> None:
    rows = Spans([(0, sum(block_rows))])
    division = Division(ranks, batch_rows, 3, "pad")
    order = EpochOrder(block_rows, 0, 0, shuffle=False)
    seen: set[tuple[int, int]] = set()
    for rank in range(ranks):
        share = Share(rows, division, rank)
        seen.update(rows_of(order, share, range(min(steps, share.batches))))
    rest = remaining_rows(rows, division, steps, lambda rank, lanes: {})
    left = [
        (piece.block, row)
        for piece in order.locate(rest.slice(0, len(rest)))
        for row in range(piece.begin, piece.end)
    ]
    assert len(set(left)) == len(left)
    assert seen | set(left) == {(b, row) for b, n in enumerate(block_rows) for row in range(n)}


def test_without_a_shuffle_the_order_is_that_of_the_dataset() -> None:
    order = EpochOrder([3, 0, 4], 1, 2, shuffle=False)
    share = Share(Spans([(0, 7)]), Division(1, 2, 1, "drop"), 0)
    rows = rows_of(order, share, range(share.batches))
    assert rows == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert order.permutation(0) is None


def test_a_permutation_depends_on_its_key_alone() -> None:
    numbers = draw_permutation(1000, 7, 0, "blocks").to_pylist()
    assert sorted(numbers) == list(range(1000))
    # The order must not change between versions: a checkpoint relies on it.
    assert draw_permutation(12, 7, 0, "blocks").to_pylist() == EXPECTED
    digest = hashlib.sha256(str(numbers).encode()).hexdigest()
    code = (
        "import hashlib; from splitarrow.pytorch.order import draw_permutation as draw;"
        "print(hashlib.sha256(str(draw(1000, 7, 0, 'blocks').to_pylist()).encode()).hexdigest())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == digest
    assert numbers != draw_permutation(1000, 7, 1, "blocks").to_pylist()
    assert numbers != draw_permutation(1000, 8, 0, "blocks").to_pylist()


EXPECTED = [0, 1, 4, 3, 8, 7, 11, 10, 6, 5, 2, 9]


def test_lanes_of_a_worker_are_its_own_if_the_workers_divide_them() -> None:
    share = Share(Spans([(0, 1000)]), Division(1, 10, 24, "drop"), 0)
    for workers in (1, 2, 3, 4, 6, 8, 12, 24):
        owners = {lane: set[int]() for lane in range(share.lanes)}
        for number in range(share.batches):
            owners[number % share.lanes].add(number % workers)
        assert {len(found) for found in owners.values()} == {1}


def test_batches_form_blocks_of_at_least_the_window() -> None:
    counts = {0: [3, 3, 0, 3, 1], 5: [0, 0], 6: [9, 9]}
    found = [(each.shard, each.first, each.end, each.rows) for each in form_blocks(counts, 5)]
    assert found == [(0, 0, 2, 6), (0, 2, 5, 4), (6, 0, 1, 9), (6, 1, 2, 9)]


def test_a_position_survives_its_encoding() -> None:
    one, two = Division(2, 5, 4, "drop"), Division(3, 7, 4, "pad")
    position = Position.start(9, one).after(4).divided(two).after(2)
    assert Position.decode(position.encode()) == position
    assert position.divided(two) is position
    assert Position.start(0, one).divided(two).stages == Position.start(0, two).stages
    assert len(position.remaining(1000)) == 1000 - 2 * 4 * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "b"}, "another dataset: dataset is 'a', and was 'b'"),
        ({"version": "2"}, "the dataset has changed since the state was saved: version is '1'"),
        ({"seed": 1}, "another seed"),
        ({"shuffle": False}, "another value of shuffle"),
        ({"layout": "y"}, "another filter or window_rows"),
        ({"format": 2}, "not that of a dataset of this version"),
    ],
)
def test_a_state_of_another_order_is_refused(changes: dict[str, Any], message: str) -> None:
    order = Order("a", "1", "x", 0, True)
    order.check(order.encode())
    with pytest.raises(UsageError, match=message):
        order.check({**order.encode(), **changes})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 1, 1, "drop"), "world_size is 0; expected 1 or more"),
        ((1, 0, 1, "drop"), "batch_rows is 0"),
        ((1, 1, 0, "drop"), "interleave is 0"),
        ((1, 1, 1, "some"), "even is 'some'; expected drop, pad, uneven"),
    ],
)
def test_a_division_is_valid_once_built(fields: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Division(*fields)
