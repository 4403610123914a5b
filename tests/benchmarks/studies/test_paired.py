"""The comparison of a commit with an earlier one, which continuous integration runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitarrow.benchmarks.studies import paired
from splitarrow.benchmarks.studies.paired import Outcome, compare, main

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("ratios", "is_slower"),
    [
        ([1.0, 1.1, 0.9], False),
        ([1.3, 1.3, 1.2], True),
        ([1.3, 1.0, 1.0], False),
    ],
)
def test_the_median_decides(ratios: list[float], is_slower: bool) -> None:
    outcome = Outcome("tcp", 4096, ratios)
    assert outcome.is_slower == is_slower
    assert ("SLOWER" in str(outcome)) == is_slower


def test_an_unknown_commit_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-commit"]) == 2
    assert "git has no commit 'no-such-commit'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.xdist_group("benchmark")
def test_a_checkout_is_as_fast_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "_BATCHES", 2000)
    outcomes = compare(ROOT, ROOT, 1)
    assert {(each.scheme, each.batch_bytes) for each in outcomes} == {
        ("tcp", 4 << 10),
        ("tcp", 1 << 20),
        ("shm", 4 << 10),
    }
    assert all(len(each.ratios) == 1 and each.ratios[0] > 0 for each in outcomes)
