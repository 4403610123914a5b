"""The peers of the Spark benchmark: data sources in Python that read the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import flight
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ...pipeline.casting import Caster
from ...pipeline.types import arrow_schema, spark_schema


class FlightDataSource(ds.DataSource):
    """Reads a dataset with pyarrow.flight, with one task per endpoint."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format(...)``."""
        return "splitarrow_flight_peer"

    def schema(self) -> st.StructType:
        """Return the schema of the dataset."""
        return spark_schema(self._info().schema)

    def reader(self, schema: st.StructType) -> ds.DataSourceReader:
        """Return the reader."""
        tickets = [endpoint.ticket.ticket for endpoint in self._info().endpoints]
        return _FlightReader(self.options["uri"], tickets, arrow_schema(schema))

    def _info(self) -> flight.FlightInfo:
        with flight.connect(self.options["uri"]) as client:
            descriptor = flight.FlightDescriptor.for_path(self.options["dataset"])
            return client.get_flight_info(descriptor)


class _FlightReader(ds.DataSourceReader):
    def __init__(self, uri: str, tickets: list[bytes], schema: pa.Schema) -> None:
        self._uri = uri
        self._tickets = tickets
        self._schema = schema

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(ticket) for ticket in self._tickets]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        with flight.connect(self._uri) as client:
            stream = client.do_get(flight.Ticket(partition.value))
            caster = Caster(stream.schema, self._schema)
            for chunk in stream:
                if chunk.data is not None:
                    yield caster.cast(chunk.data)


class FileDataSource(ds.DataSource):
    """Returns the batches of mapped Arrow files: the ceiling of a data source in Python."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format(...)``."""
        return "splitarrow_file_peer"

    def schema(self) -> st.StructType:
        """Return the schema of the files."""
        with pa.memory_map(self._files()[0]) as file:
            return spark_schema(pa.ipc.open_file(file).schema)

    def reader(self, schema: st.StructType) -> ds.DataSourceReader:
        """Return the reader."""
        return _FileReader(self._files())

    def _files(self) -> list[str]:
        return sorted(str(path) for path in Path(self.options["path"]).glob("*.arrow"))


class _FileReader(ds.DataSourceReader):
    def __init__(self, files: list[str]) -> None:
        self._files = files

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(file) for file in self._files]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file:
            reader = pa.ipc.open_file(file)
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)
