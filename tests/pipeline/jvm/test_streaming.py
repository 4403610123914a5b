"""Answers about streaming queries: where they start, and which shards a micro-batch has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.publication import numbers, publish
from splitarrow.errors import UsageError
from splitarrow.pipeline.jvm.planner import answer
from splitarrow.publication.version_store import VersionStore

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Ask about a folder with three versions, to each of which a shard was added."""
    store = VersionStore(tmp_path / "set")
    for index in range(3):
        publish(store, f"job-{index}", numbers(10 * index), append=True)

    def ask(operation: str, values: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        options = {"path": store.location, **options}
        packing = {"parallelism": 1, "max_bytes": 1 << 20, "open_bytes": 0}
        return answer({"operation": operation, "options": options, **packing, **(values or {})})

    return ask


def count_new_shards(ask: Ask, start: str) -> int:
    end = ask("stream_latest")["offset"]
    plan = ask("stream_plan", {"start": start, "end": end})
    return sum(map(len, plan["partitions"]))


@pytest.mark.parametrize(
    ("version", "shards"),
    [(None, 3), ("1", 3), ("2", 2), ("3", 1), ("4", 0), ("latest", 0), ("Latest", 0)],
)
def test_a_query_starts_with_the_new_shards_of_a_version(ask: Ask, version, shards):
    start = ask("stream_start", startingVersion=version)["offset"]
    assert count_new_shards(ask, start) == shards


@pytest.mark.parametrize("version", ["0", "first", "-1", "1.5"])
def test_a_version_to_start_at_has_a_number(ask: Ask, version):
    with pytest.raises(UsageError, match="it must be latest, or the number or name"):
        ask("stream_start", startingVersion=version)


def test_a_version_to_start_at_exists(ask: Ask):
    with pytest.raises(UsageError, match="has no version 4"):
        ask("stream_start", startingVersion="5")


def test_an_offset_that_does_not_change_keeps_its_text(ask: Ask):
    end = ask("stream_latest")["offset"]
    spaced = json.dumps(json.loads(end), indent=1)
    values = {"start": spaced, "last": None, "limited": True}
    assert ask("stream_latest", values)["offset"] == spaced


def test_rates_apply_if_the_limit_is_that_of_the_options(ask: Ask):
    start = ask("stream_start")["offset"]
    for limited, shards in ((True, 2), (False, 3)):
        values = {"start": start, "last": None, "limited": limited}
        end = ask("stream_latest", values, maxShardsPerTrigger="2")["offset"]
        assert json.loads(end)["shards"] == shards


@pytest.mark.parametrize("name", ["limit", "version"])
def test_options_of_batch_queries_are_errors(ask: Ask, name):
    with pytest.raises(UsageError, match=f"does not support the option '{name}'"):
        ask("stream_latest", **{name: "1"})


def test_options_of_streams_are_errors_in_batch_queries(ask: Ask):
    with pytest.raises(UsageError, match=r"is for spark\.readStream only"):
        ask("plan", {"version": "3"}, maxBytesPerTrigger="1MiB")
