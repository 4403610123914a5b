"""The measurement of the memory of open streams."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from splitarrow.benchmarks.datasets import make_dataset
from splitarrow.benchmarks.studies.paired import Side
from splitarrow.benchmarks.studies.stream_memory import CLIENT, main, measure

ROOT = Path(__file__).resolve().parent.parent.parent


def test_an_unknown_commit_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-commit"]) == 2
    assert "git has no commit 'no-such-commit'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_a_stream_takes_a_bounded_part_of_both_processes(scheme: str, tmp_path: Path) -> None:
    data = make_dataset(tmp_path / "data.arrow", 1 << 20, 16)
    with ExitStack() as stack:
        side = Side(stack, ROOT, tmp_path / "side", Path(data.path), CLIENT)
        server, client = measure(side, scheme, streams=20)
    assert -(1 << 20) < server < 8 << 20
    assert -(1 << 20) < client < 16 << 20
