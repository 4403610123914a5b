"""The study of scans: each row is complete, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitarrow.benchmarks.studies.scans import compare_filters, compare_row_groups

MIB = 1 << 20


@pytest.mark.slow
def test_both_servers_read_all_row_groups(tmp_path: Path) -> None:
    found = compare_row_groups(tmp_path, MIB // 16, 4 * MIB, 1)
    assert found.rows == 4 * MIB // 32
    assert [len(each) for each in found.seconds] == [1, 1]
    assert "row groups of 64 KiB / Flight" in str(found)


@pytest.mark.slow
def test_both_filters_select_the_same_rows(tmp_path: Path) -> None:
    found = list(compare_filters(tmp_path, 2 * MIB, 1))
    assert [each.label for each in found] == [
        "1% of arrow rows / dataset",
        "50% of arrow rows / dataset",
        "1% of parquet rows / dataset",
        "50% of parquet rows / dataset",
    ]
    assert all(each.rows == 2 * MIB // 32 for each in found)
