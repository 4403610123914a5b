"""The peer: pyarrow.flight, whose server, wire format and client are C++ over gRPC.

The server hands out a table over the mapped file. Of the ways to answer ``DoGet`` that is the
fastest: no Python runs for a batch. (A ``RecordBatchStream`` over a stream reader comes close;
a generator, or a reader made of one, is slower with small batches.)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pyarrow as pa

from ..consumer import Consumer
from ..dataset import Dataset

_TICKET = b"benchmark"


class Flight:
    """pyarrow.flight: ``DoGet`` of a table whose buffers are the mapped file."""

    name = "flight"
    summary = "pyarrow.flight, DoGet: C++ server and client over gRPC"
    in_process = False

    def unavailable(self) -> str | None:
        """Return why pyarrow.flight cannot be used here, or None if it can."""
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

    def read(self, address: str, consumer: Consumer, *, validate: str | None = None) -> None:
        """Read all batches; Flight does not validate them. See `Backend.read`."""
        from pyarrow import flight

        with flight.connect(address) as client:
            reader = client.do_get(flight.Ticket(_TICKET))
            if consumer.whole:
                consumer.table(reader.read_all())
            else:
                consumer.drain(chunk.data for chunk in reader)  # pyright: ignore[reportArgumentType]
