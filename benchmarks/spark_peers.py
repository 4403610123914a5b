"""What the Spark source is measured beside: data sources that read the same rows in other ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import flight
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ..pipeline.casting import Caster
from ..pipeline.types import arrow_schema, spark_schema


class FlightDataSource(ds.DataSource):
    """Reads a dataset with pyarrow.flight: one task for each endpoint."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format(...)`` calls it."""
        return "splitarrow_flight_peer"

    def _info(self) -> flight.FlightInfo:
        with flight.connect(self.options["uri"]) as client:
            descriptor = flight.FlightDescriptor.for_path(self.options["dataset"])
            return client.get_flight_info(descriptor)

    def schema(self) -> st.StructType:
        """Return the schema of the dataset."""
        return spark_schema(self._info().schema)

    def reader(self, schema: st.StructType) -> ds.DataSourceReader:
        """Return what reads it."""
        tickets = [endpoint.ticket.ticket for endpoint in self._info().endpoints]
        return _FlightReader(self.options["uri"], tickets, arrow_schema(schema))


class _FlightReader(ds.DataSourceReader):
    def __init__(self, uri: str, tickets: list[bytes], target: pa.Schema) -> None:
        self._uri = uri
        self._tickets = tickets
        self._target = target

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(ticket) for ticket in self._tickets]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        with flight.connect(self._uri) as client:
            stream = client.do_get(flight.Ticket(partition.value))
            caster = Caster(stream.schema, self._target)
            for chunk in stream:
                if chunk.data is not None:
                    yield caster.cast(chunk.data)


class FileDataSource(ds.DataSource):
    """Hands over the batches of mapped Arrow files: what Spark takes at most from Python."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format(...)`` calls it."""
        return "splitarrow_file_peer"

    def _files(self) -> list[str]:
        return sorted(str(path) for path in Path(self.options["path"]).glob("*.arrow"))

    def schema(self) -> st.StructType:
        """Return the schema of the files."""
        with pa.memory_map(self._files()[0]) as file:
            return spark_schema(pa.ipc.open_file(file).schema)

    def reader(self, schema: st.StructType) -> ds.DataSourceReader:
        """Return what reads them."""
        return _FileReader(self._files())


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
