"""The benchmark of the checker measures every table."""

from __future__ import annotations

import pytest

from splitarrow.benchmarks.studies import checker


@pytest.mark.slow
def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"_BATCHES": 3, "_CHECKS": 2, "ROUNDS": 1}.items():
        monkeypatch.setattr(checker, name, number)
    costs = checker.measure()
    assert [cost.table for cost in costs] == list(checker.make_tables())
    assert all(cost.check > 0 and cost.transfer > 0 for cost in costs)
    _, _, *rows = checker.format_table(costs).splitlines()
    assert len(rows) == len(costs)


def test_a_share_is_a_fraction_of_the_transfer() -> None:
    table = checker.format_table([checker.Cost("t", 10e-6, 400e-6)])
    assert table.splitlines()[-1] == "| t | 10.0 | 400 | 2.5% |"
