"""The reader of Spark that is written in Java: its sources, and the jar built from them."""

from __future__ import annotations

from pathlib import Path

JAR = Path(__file__).with_name("splitarrow-spark.jar")
"""The jar. `make jar` builds it."""
FORMAT = "splitarrow"
"""The name of the data source, in Java as in Python."""
SOURCE_CLASS = "io.splitarrow.spark.SplitArrowSource"
"""The class of the data source."""
SPARK_VERSIONS = ("3.5", "4.0", "4.1", "4.2", "4.3")
"""The versions of Spark that the jar works with, without their last number."""
MEMORY_LIMIT = 1 << 30
"""The default of the option ``memory_limit``, in bytes."""
