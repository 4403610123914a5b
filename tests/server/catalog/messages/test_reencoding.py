"""Re-encoding: groups are bounded, slow sources are not delayed, and limits stop the reading."""

from __future__ import annotations

import math
from collections.abc import Generator

import pyarrow as pa
import pytest

from helpers.catalog import number_batches, read_source
from splitarrow.server.catalog.dataset import (
    ENCODED_GROUP_BYTES,
    GROUP_BYTES,
    Budget,
    GeneratorSource,
)
from splitarrow.server.catalog.messages.reencoding import Batches, encode_groups
from splitarrow.server.catalog.selection import Selection


@pytest.mark.parametrize("room", [0, 1 << 20, math.inf])
def test_groups_grow_to_their_bound_and_the_schema_message_is_first(
    monkeypatch: pytest.MonkeyPatch, room: float
) -> None:
    monkeypatch.setattr(f"{encode_groups.__module__}._MAX_GROUP_SECONDS", 60)
    sent = number_batches(1, 2000) * 400
    schema = sent[0].schema

    def batches() -> Batches:
        for batch in sent:
            yield batch, None

    selection = Selection(schema, budget=Budget(find_batch_bytes=lambda: room))
    source = GeneratorSource(encode_groups(selection, batches(), "test"), blocking=True)
    result = read_source(source)
    assert len(result.groups[0]) == 1
    assert result.batches == sent
    sizes = [sum(message.body_length for message in group) for group in result.groups]
    bound = max(min(room, ENCODED_GROUP_BYTES), GROUP_BYTES)
    assert sizes[1] <= GROUP_BYTES
    assert bound / 2 < max(sizes) <= bound


def test_batches_of_a_slow_source_are_sent_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(
        "splitarrow.server.catalog.messages.reencoding.time.monotonic", lambda: next(clock)
    )
    sent = number_batches(3)

    def batches() -> Batches:
        for batch in sent:
            yield batch, None

    groups = list(encode_groups(Selection(sent[0].schema), batches(), "test"))
    assert len(groups) == 1 + 3


def test_no_batch_after_the_limit_is_read() -> None:
    read: list[int] = []

    def batches() -> Generator[tuple[pa.RecordBatch, None]]:
        for number, batch in enumerate(number_batches(10)):
            read.append(number)
            yield batch, None

    for limit, number in ((0, 0), (1, 1), (100, 1), (101, 2)):
        read.clear()
        selection = Selection(number_batches(1)[0].schema, limit=limit)
        groups = list(encode_groups(selection, batches(), "test"))
        assert sum(message.rows for group in groups for message in group) == limit
        assert len(read) == number
