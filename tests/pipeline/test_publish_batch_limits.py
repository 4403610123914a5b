"""The limits of the batches that Spark passes to Python."""

from __future__ import annotations

from typing import Any

import pytest

from splitarrow.pipeline.publish import batch_limits
from splitarrow.pipeline.spark_session import BATCH_BYTES, BATCH_ROWS, DEFAULTS
from splitarrow.publication.version_store import VersionStore


@pytest.mark.parametrize(("width", "by_bytes"), [(10, False), (100_000, True)])
def test_wide_rows_are_limited_by_bytes_and_narrow_ones_by_rows(spark, width, by_bytes):
    frame = spark.createDataFrame([(1, "x" * width)], "id int, text string")
    with batch_limits(spark, frame):
        assert (int(spark.conf.get(BATCH_BYTES)) < 1 << 30) == by_bytes
        assert (int(spark.conf.get(BATCH_ROWS)) > 1000) == (not by_bytes)
    for name in (BATCH_BYTES, BATCH_ROWS):
        assert spark.conf.get(name) == DEFAULTS[name]


def test_a_limit_that_the_user_set_stays(spark):
    frame = spark.createDataFrame([(1, "x" * 100_000)], "id int, text string")
    spark.conf.set(BATCH_BYTES, "12345678")
    try:
        with batch_limits(spark, frame):
            assert spark.conf.get(BATCH_BYTES) == "12345678"
    finally:
        spark.conf.set(BATCH_BYTES, DEFAULTS[BATCH_BYTES])


def test_the_default_limit_suits_wide_rows(spark, tmp_path):
    frame = spark.range(0, 2000, numPartitions=2).selectExpr("id", "repeat('x', 300000) as image")
    frame.write.format("splitarrow").mode("append").save(str(tmp_path / "images"))
    manifest: Any = VersionStore(str(tmp_path / "images")).load()
    assert sum(shard.rows for shard in manifest.shards) == 2000
