"""The peer: pyarrow.flight, with server, client and wire format in C++ over gRPC.

The server returns a table over the mapped file. This is the fastest implementation of ``DoGet``,
because no Python code runs per batch. A ``RecordBatchStream`` over a stream reader comes close. A
generator of batches is slower with small batches.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pyarrow as pa

from ..consumer import Consumer
from ..dataset import Dataset
from ..options import Validate

_TICKET = b"benchmark"


class FlightBackend:
    """pyarrow.flight: ``DoGet`` of a table whose buffers are the mapped file."""

    name = "flight"
    summary = "pyarrow.flight, DoGet: C++ server and client over gRPC"
    in_process = False

    def unavailable_reason(self) -> str | None:
        """Return why pyarrow.flight cannot run, or None if it can."""
        try:
            import pyarrow.flight  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            return "this build of pyarrow has no Flight"
        return None

    @contextmanager
    def serve(self, dataset: Dataset) -> Generator[str]:
        """Serve the file; see `Backend.serve`."""
        from pyarrow import flight

        with pa.memory_map(dataset.path) as source:
            table = pa.ipc.open_file(source).read_all()

            class Server(flight.FlightServerBase):
                def do_get(
                    self, context: flight.ServerCallContext, ticket: flight.Ticket
                ) -> flight.FlightDataStream:
                    return flight.RecordBatchStream(table)

            with Server("grpc://127.0.0.1:0") as server:
                yield f"grpc://127.0.0.1:{server.port}"

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Read all batches. Flight does not validate them; see `Backend.read`."""
        from pyarrow import flight

        with flight.connect(address) as client:
            reader = client.do_get(flight.Ticket(_TICKET))
            if consumer.reads_table:
                consumer.consume_table(reader.read_all())
            else:
                batches = (chunk.data for chunk in reader)
                consumer.consume_batches(batches)  # pyright: ignore[reportArgumentType]
