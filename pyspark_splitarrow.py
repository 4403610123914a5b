"""The entry point of the data source: PySpark imports every module named ``pyspark_*``.

Spark 4.0 refuses to register what it has found so, and gives its tasks no other interpreter. There,
it finds nothing, and `splitarrow.pipeline.register` adds the data source.
"""

from pyspark import __version__

if not __version__.startswith("4.0."):
    from splitarrow.pipeline.datasource import SplitArrowDataSource as DefaultSource

    __all__ = ["DefaultSource"]
