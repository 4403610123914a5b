"""The data source ``splitarrow``: the class that PySpark instantiates for reads and writes.

Spark has data sources in Python from version 4.0 on.
"""

from __future__ import annotations

from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ..errors import UsageError
from .batch_queries import DatasetReader, ShardWriter
from .options import SparkOptions
from .reader import READERS, RemoteDataset, dataset_schema, read_options
from .streaming_queries import (
    STREAM_WRITE_OPTIONS,
    DatasetStreamReader,
    StreamShardWriter,
    require_stream_writer,
)
from .types import check_exportable
from .workers import Portable, one_line_errors
from .writer import WRITE_OPTIONS, plan_write


class SplitArrowDataSource(Portable, ds.DataSource):
    """Reads datasets from daemons, and writes shards for daemons to serve.

    PySpark calls these methods on the driver. It pickles the reader or writer that they return,
    and sends it to the tasks.
    """

    _version: str | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format(...)``."""
        return "splitarrow"

    @one_line_errors
    def schema(self) -> st.StructType:
        """Return the schema of the dataset's current version, which `reader` will read."""
        options = self._read_options()
        info = RemoteDataset.from_options(options).info(options.text("version"))
        self._version = info.version
        return dataset_schema(info, options.names("columns"))

    @one_line_errors
    def reader(self, schema: st.StructType) -> ds.DataSourceReader:
        """Return the reader of a batch query."""
        options = self._read_options()
        if options.choice("reader", READERS, "auto") == "jvm":
            raise UsageError(
                "option 'reader' is 'jvm', but the session has not loaded the reader in the JVM; "
                "call splitarrow.pipeline.register(spark, jvm_reader=True)"
            )
        return DatasetReader(options, schema, self._version)

    # PySpark raises another error while it handles one of this method, and needs the traceback to
    # show both.
    def streamReader(self, schema: st.StructType) -> ds.DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return DatasetStreamReader(self._read_options(), schema)

    @one_line_errors
    def writer(self, schema: st.StructType, overwrite: bool) -> ds.DataSourceWriter:
        """Return the writer of a DataFrame."""
        check_exportable(schema)
        return ShardWriter(plan_write(SparkOptions(self.options, WRITE_OPTIONS), schema), overwrite)

    @one_line_errors
    def streamWriter(self, schema: st.StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        require_stream_writer()
        check_exportable(schema)
        plan = plan_write(SparkOptions(self.options, STREAM_WRITE_OPTIONS), schema)
        return StreamShardWriter(plan, overwrite)

    def _read_options(self) -> SparkOptions:
        return read_options(self.options)
