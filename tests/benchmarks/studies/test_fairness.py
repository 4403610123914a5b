"""The study of fairness: its figures, at a small size."""

from __future__ import annotations

import pytest

from splitarrow.benchmarks.studies.fairness import measure


@pytest.mark.slow
def test_the_study_measures_reads_alone_and_beside_others() -> None:
    figures = measure(streams=2, rounds=2, rows=10_000)
    assert set(figures) == {"alone", "beside", "ratios"}
    assert 0 < figures["beside"]["median"] <= figures["beside"]["worst"]
