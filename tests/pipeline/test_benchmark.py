"""The benchmark of Spark, with few rows, in the session that all tests share."""

from __future__ import annotations

import json

import pytest

from splitarrow.benchmarks.studies.spark_run import READS, WRITES, SparkRun
from splitarrow.pipeline import register


@pytest.mark.long
def test_a_short_run_saves_every_figure(spark, tmp_path):
    register(spark, jvm_reader=True)
    (tmp_path / "data").mkdir()
    report = tmp_path / "run.json"
    SparkRun(20_000, 2, 1, "local[2]", tmp_path / "data", report, wide_rows=50_000).measure(spark)
    figures = json.loads(report.read_text())
    assert figures["seconds"].keys() == figures["cpu_seconds"].keys() == {*READS, *WRITES}
    count, column = figures["bytes"]["count"], figures["bytes"]["one column"]
    assert count["data"] == 0
    assert 0 < count["control"] < 50_000
    assert column["column"] <= column["data"] + column["control"] < 1.2 * column["column"]
    assert 0 < figures["memory"]["task_peak_bytes"] < 1 << 20  # a batch of 350 kB
