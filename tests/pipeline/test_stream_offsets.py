"""Micro-batches cover each shard of each version once, whatever their size."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.client.rpc.info import DatasetInfo, Endpoint
from splitarrow.errors import RemoteError, remote_error
from splitarrow.pipeline.stream_offsets import (
    INITIAL_OFFSET,
    Offset,
    end_offset,
    find_new_shards,
    has_prefix,
    next_offset,
)

BYTES = 10


class Dataset:
    """The versions of a dataset at a server, each a list of shards."""

    def __init__(self) -> None:
        self.versions: list[list[str]] = []
        self.removed: set[int] = set()
        self._names = count()

    def publish(self, shards: int, append: bool) -> list[str]:
        new = [f"shard {next(self._names)}" for _ in range(shards)]
        self.versions.append([*(self.versions[-1] if append and self.versions else []), *new])
        return new

    def describe(self, version: str | None = None) -> DatasetInfo:
        number = len(self.versions) if version is None else int(version)
        if not 0 < number <= len(self.versions) or number in self.removed:
            raise remote_error("FAILED_PRECONDITION", "no such version")
        shards = self.versions[number - 1]
        endpoints = [
            Endpoint(b"", (), ordinal=ordinal, sha256=name, nbytes=BYTES)
            for ordinal, name in enumerate(shards)
        ]
        return DatasetInfo(
            "set",
            None,
            None,
            pa.schema([]),
            "published dataset",
            str(number),
            tuple(endpoints) or (Endpoint(b"", ()),),  # as a daemon describes an empty version
            shards_total=len(shards),
        )

    def read(self, start: Offset, end: Offset) -> list[str]:
        info, ordinals = find_new_shards(self.describe, start, end)
        return [info.endpoints[ordinal].sha256 for ordinal in ordinals]


def drain(dataset: Dataset, start: Offset, **rates: Any) -> tuple[Offset, list[list[str]]]:
    """Read micro-batches until there is nothing new."""
    rates = {"last": None, "max_shards": None, "max_bytes": None, **rates}
    batches: list[list[str]] = []
    while (end := next_offset(dataset.describe, start, **rates)) is not start:
        batches.append(dataset.read(start, end))
        start = end
    return start, batches


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("read"), st.integers(1, 3)),
    ),
    max_size=12,
)


@given(EVENTS)
def test_appended_shards_are_read_once_and_in_order(events):
    dataset, start, seen = Dataset(), INITIAL_OFFSET, []
    dataset.publish(1, append=True)
    for event in events:
        if event[0] == "publish":
            dataset.publish(event[1], append=True)
            continue
        end = next_offset(dataset.describe, start, None, event[1], None)
        new = dataset.read(start, end)
        assert len(new) <= event[1]
        seen += new
        start = end
    _, rest = drain(dataset, start, max_shards=2)
    assert [*seen, *(shard for batch in rest for shard in batch)] == dataset.versions[-1]


@given(EVENTS)
def test_a_version_is_read_whole_or_not_at_all(events):
    dataset, start, seen = Dataset(), INITIAL_OFFSET, []
    groups = [dataset.publish(2, append=False)]
    for event in events:
        if event[0] == "publish":
            groups.append(dataset.publish(event[1], append=event[2]))
            continue
        end = next_offset(dataset.describe, start, None, event[1], None)
        seen += dataset.read(start, end)
        start = end
    _, rest = drain(dataset, start, max_shards=1)
    seen += [shard for batch in rest for shard in batch]
    assert len(seen) == len(set(seen))
    assert set(dataset.versions[-1]) <= set(seen)
    for group in groups:
        assert len(set(group) & set(seen)) in (0, len(group))


def test_rates_count_shards_and_bytes():
    dataset = Dataset()
    names = dataset.publish(5, append=True)
    for rates, sizes in [
        ({}, [5]),
        ({"max_shards": 2}, [2, 2, 1]),
        ({"max_bytes": 3 * BYTES - 1}, [2, 2, 1]),
        ({"max_bytes": 1}, [1, 1, 1, 1, 1]),
        ({"max_bytes": 3 * BYTES, "max_shards": 4}, [3, 2]),
    ]:
        _, batches = drain(dataset, INITIAL_OFFSET, **rates)
        assert [len(batch) for batch in batches] == sizes
        assert [name for batch in batches for name in batch] == names


def test_the_last_offset_stays_while_versions_come():
    dataset = Dataset()
    names = dataset.publish(3, append=True)
    last = end_offset(dataset.describe())
    dataset.publish(2, append=True)
    end, batches = drain(dataset, INITIAL_OFFSET, last=last, max_shards=2)
    assert batches == [names[:2], names[2:]]
    dataset.publish(1, append=False)
    assert drain(dataset, INITIAL_OFFSET, last=last)[1] == [names]
    assert drain(dataset, end, last=last)[1] == []


def test_a_version_that_is_gone_is_an_error_only_if_it_was_read_in_part():
    dataset = Dataset()
    dataset.publish(3, append=True)
    part = next_offset(dataset.describe, INITIAL_OFFSET, None, 2, None)
    whole = next_offset(dataset.describe, part, None, 2, None)
    new = dataset.publish(1, append=False)
    dataset.removed = {1}
    with pytest.raises(RemoteError, match="overwritten before the query read its version 1"):
        next_offset(dataset.describe, part, None, None, None)
    with pytest.raises(RemoteError, match="overwritten before the query read its version 1"):
        dataset.read(part, whole)
    assert drain(dataset, whole)[1] == [new]


def test_an_offset_has_the_keys_that_checkpoints_contain():
    dataset = Dataset()
    dataset.publish(2, append=True)
    whole = end_offset(dataset.describe())
    assert list(whole) == ["shards", "digest", "version"]
    digest = hashlib.sha256(b"shard 0").hexdigest()
    part = {"shards": 1, "digest": digest, "version": "1", "partial": True}
    assert end_offset(dataset.describe(), 1) == part
    assert has_prefix(dataset.describe(), whole)
