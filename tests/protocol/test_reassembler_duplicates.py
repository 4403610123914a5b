"""Duplicates are bounded in succession and counted in all."""

from __future__ import annotations

import pytest

from splitarrow.errors import LimitError
from splitarrow.protocol.reassembler import DuplicateCounter


@pytest.mark.parametrize("position", [None, 0, (1, 2, True)])
def test_as_many_duplicates_as_the_limit_may_arrive_in_succession(position: object) -> None:
    counter = DuplicateCounter(2)
    counter.count(position)
    counter.count(position)
    for number in (3, 4):
        with pytest.raises(LimitError, match=rf"^{number} duplicates arrived .* the limit is 2$"):
            counter.count(position)
    assert counter.total == 4


def test_a_new_frame_begins_another_succession() -> None:
    counter = DuplicateCounter(1, "keep-alives")
    for position in (0, 1, 0, 2):
        counter.count(position)
    with pytest.raises(LimitError, match=r"^2 keep-alives arrived in succession"):
        counter.count(2)
    assert counter.total == 5
