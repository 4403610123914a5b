"""The benchmark of Parquet runs, and a box reads few row groups."""

from __future__ import annotations

from splitarrow.benchmarks.studies.parquet import compare_plain, measure_box


def test_a_plain_file_is_read_by_both(tmp_path):
    assert compare_plain(tmp_path, 1000, 1).keys() == {"pyarrow", "splitarrow", "ratio"}


def test_a_box_of_one_percent_reads_less_than_five_percent(tmp_path):
    figures = measure_box(tmp_path, 8000)
    assert 0 < figures["rows in the box"] <= 0.011
    assert figures["bytes read"] < 0.05
