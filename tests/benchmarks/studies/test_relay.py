"""The study of the relay: its figures, at a small size."""

from __future__ import annotations

import pytest

from splitarrow.benchmarks.studies.relay import count_belady, count_lru, measure


def test_the_optimum_and_lru() -> None:
    sizes = dict.fromkeys(range(3), 10)
    assert count_belady([0, 1, 2, 0, 1, 2], sizes, 20) == 40
    assert count_lru([0, 1, 2, 0, 1, 2], sizes, 20) == 60


@pytest.mark.slow
@pytest.mark.long
def test_a_relay_fetches_little_more_than_the_optimum() -> None:
    # A smaller cache than this would have many of its shards in use, by 8 readers.
    found = measure(shards=64, shares=[0.5], rows=20_000)
    runs = {figures["run"]: figures for figures in found["caches"]}
    assert runs["announced"]["upstream"] < 1.1 * runs["announced"]["belady"]
    assert runs["not announced"]["upstream"] > 1.2 * runs["announced"]["belady"]
