"""The data source ``splitarrow``, as PySpark knows it."""

from __future__ import annotations

from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from .options import Options
from .sink import OPTIONS as SINK_OPTIONS
from .sink import ShardSink, shard_plan
from .source import OPTIONS, ShardReader, origin_of, schema_of
from .streaming import VersionStream


class SplitArrowDataSource(ds.DataSource):
    """Reads datasets from daemons, and writes shards that daemons serve."""

    _version: str | None = None

    @classmethod
    def name(cls) -> str:
        """Return what ``format(...)`` calls it."""
        return "splitarrow"

    def _options(self) -> Options:
        return Options(self.options, OPTIONS)

    def schema(self) -> st.StructType:
        """Return the schema of the dataset; from here on its version is settled."""
        options = self._options()
        info = origin_of(options).info(options.text("version"))
        self._version = info.version
        return schema_of(info, options.names("columns"))

    def reader(self, schema: st.StructType) -> ds.DataSourceReader:
        """Return what plans a read."""
        return ShardReader(self._options(), schema, self._version)

    def streamReader(self, schema: st.StructType) -> ds.DataSourceStreamReader:
        """Return what follows the versions of a dataset."""
        return VersionStream(self._options(), schema)

    def writer(self, schema: st.StructType, overwrite: bool) -> ds.DataSourceWriter:
        """Return what writes."""
        return ShardSink(shard_plan(Options(self.options, SINK_OPTIONS), schema), overwrite)
