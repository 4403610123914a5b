"""The options of a run: defaults, and errors for wrong values."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitarrow import errors
from splitarrow.benchmarks import Options
from splitarrow.benchmarks.statistics import Statistics

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_bytes": ()}, "no batch size"),
        ({"batch_bytes": (100,)}, "multiple of 32"),
        ({"total_bytes": 4 * KIB}, "at least the largest batch size"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"clients": ()}, "no number of clients"),
        ({"clients": (8, 0)}, "clients is 0; it must be from 1 to 256"),
        ({"backends": ()}, "no backend"),
        ({"consume": ("eat",)}, "must be one of count, sum"),
        ({"read": "half"}, "must be one of iterate, all"),
        ({"validate": "twice"}, "must be one of strict, full, cheap, off"),
        ({"timeout": 0}, "must be more than 0"),
        ({"directory": Path("/nowhere")}, "the folder /nowhere does not exist"),
    ],
)
def test_a_wrong_value_is_an_error(change: dict[str, object], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        Options(**change)  # type: ignore[arg-type]


def test_a_read_has_the_default_size_but_not_too_many_batches() -> None:
    assert Options().batches(MIB) == 1024
    assert Options().batches(KIB) == 1 << 16
    assert Options().batches(MIB, concurrent=True) == 256
    assert Options(total_bytes=1 << 30).batches(KIB) == 1 << 20


def test_statistics_ignore_unknown_values() -> None:
    assert Statistics.of([None, 4.0, 1.0, 2.0]) == (2.0, 1.0, 4.0)
    assert Statistics.of([None]) is None
