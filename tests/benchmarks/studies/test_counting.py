"""The comparison of groups that are counted with others."""

from __future__ import annotations

import pytest

from splitarrow.benchmarks.studies import counting
from splitarrow.server.data_stream import DataStream
from splitarrow.server.streams import ReaderWaits


def test_groups_are_compared_and_the_server_is_restored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counting, "_FILE_BYTES", 4 << 20)
    originals = DataStream._count, DataStream._send_group, ReaderWaits.begin
    assert counting.main(["--seconds", "0"]) == 0
    assert (DataStream._count, DataStream._send_group, ReaderWaits.begin) == originals
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines[1:-1]] == [
        f"{scheme}, batches of {size}" for scheme in ("tcp", "shm") for size in ("4 KiB", "1 MiB")
    ]


def test_what_counting_adds_has_an_interval() -> None:
    compared = counting.Comparison([110, 112, 108] * 100, [100, 102, 98] * 100, 600 * 100)
    added = compared.addition()
    assert added.mean == pytest.approx(10, abs=0.1)
    assert 0 < added.margin < 1
    assert compared.total_time == pytest.approx(200, abs=0.1)
