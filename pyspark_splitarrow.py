"""The entry point of the data source: PySpark imports every module named ``pyspark_*``."""

from splitarrow.pipeline.datasource import SplitArrowDataSource as DefaultSource

__all__ = ["DefaultSource"]
