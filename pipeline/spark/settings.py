"""The Spark settings that `session` applies unless the caller overrides them."""

from __future__ import annotations

FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Whether Spark offers filters to data sources that are written in Python."""
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The maximum number of rows in a record batch that Spark passes to Python."""
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""The approximate maximum size of such a record batch, in bytes."""
UNLIMITED_BYTES = "2147483647"
"""The value of `BATCH_BYTES` that disables the limit."""

DEFAULTS = {
    FILTER_PUSHDOWN: "true",
    # With a byte limit, Spark computes the size of the batch again after each row. A small row
    # limit bounds the memory as well: two concurrent tasks can process rows of half a megabyte
    # in the smallest Java heap.
    BATCH_ROWS: "512",
    BATCH_BYTES: UNLIMITED_BYTES,
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
}
"""Setting names and values."""
