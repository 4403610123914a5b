"""Re-encoding: groups are bounded, slow sources are not delayed, and limits stop the reading."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa
import pytest

from helpers.catalog import number_batches, read_source
from splitarrow.server.catalog.dataset import ENCODED_GROUP_BYTES, GeneratorSource
from splitarrow.server.catalog.messages.reencoding import Batches, encode_groups
from splitarrow.server.catalog.selection import Selection


def test_groups_are_bounded_and_the_schema_message_is_first() -> None:
    sent = number_batches(200, 1000)
    schema = sent[0].schema

    def batches() -> Batches:
        for batch in sent:
            yield batch, None

    result = read_source(
        GeneratorSource(encode_groups(Selection(schema), batches(), "test"), blocking=True)
    )
    assert len(result.groups[0]) == 1
    assert result.batches == sent
    total = sum(message.body_length for message in result.messages)
    assert len(result.groups) >= total // (2 * ENCODED_GROUP_BYTES)


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
