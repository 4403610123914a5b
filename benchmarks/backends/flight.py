"""The peer: pyarrow.flight, with server, client and wire format in C++ over gRPC.

The server returns a table over the mapped file. This is the fastest implementation of ``DoGet``,
because no Python code runs per batch. A ``RecordBatchStream`` over a stream reader comes close. A
generator of batches is slower with small batches.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..consumer import Consumer
from ..dataset import Dataset
from ..options import Validate
from .certificates import CA_MARK, make_certificates, missing_package
from .parquet_file import write_parquet

_TICKET = b"benchmark"


class FlightBackend:
    """pyarrow.flight: ``DoGet`` of a table whose buffers are the mapped file."""

    in_process = False
    baseline: str | None = None

    def __init__(self, name: str = "flight", *, tls: bool = False, parquet: bool = False) -> None:
        self.name = name
        self._tls = tls
        self._parquet = parquet
        self.summary = "pyarrow.flight, DoGet: C++ server and client over gRPC"
        if tls:
            self.summary += " with TLS"
        if parquet:
            self.summary += ", of a Parquet file"

    def unavailable_reason(self) -> str | None:
        """Return why pyarrow.flight cannot run, or None if it can."""
        try:
            import pyarrow.flight  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            return "this build of pyarrow has no Flight"
        return missing_package() if self._tls else None

    @contextmanager
    def serve(self, dataset: Dataset) -> Generator[str]:
        """Serve the file; see `Backend.serve`."""
        from pyarrow import flight

        location, mark = "grpc://localhost", ""
        security: dict[str, Any] = {}
        if self._tls:
            paths = make_certificates(Path(dataset.path).parent, self.name)
            certificate = (paths.chain.read_bytes(), paths.key.read_bytes())
            security = {"tls_certificates": [certificate]}
            location, mark = "grpc+tls://localhost", f"{CA_MARK}{paths.authority}"
        open_stream = self._open_parquet if self._parquet else self._open_table
        with open_stream(dataset) as make_stream:

            class Server(flight.FlightServerBase):
                def do_get(
                    self, context: flight.ServerCallContext, ticket: flight.Ticket
                ) -> flight.FlightDataStream:
                    return make_stream()

            with Server(f"{location}:0", **security) as server:
                yield f"{location}:{server.port}{mark}"

    @contextmanager
    def _open_table(self, dataset: Dataset) -> Generator[Any]:
        from pyarrow import flight

        with pa.memory_map(dataset.path) as source:
            table = pa.ipc.open_file(source).read_all()
            yield lambda: flight.RecordBatchStream(table)

    @contextmanager
    def _open_parquet(self, dataset: Dataset) -> Generator[Any]:
        from pyarrow import dataset as datasets
        from pyarrow import flight

        rows = datasets.dataset(write_parquet(dataset, self.name))
        yield lambda: flight.RecordBatchStream(
            rows.scanner(batch_size=dataset.batch_rows).to_reader()
        )

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Read all batches. Flight does not validate them; see `Backend.read`."""
        read_flight(address, consumer, _TICKET)


def read_flight(address: str, consumer: Consumer, ticket: bytes | None) -> None:
    """Read all batches with a client of pyarrow.flight.

    `address`: After ``#ca=``, it has the path of the authority's certificate. `ticket`: Without it,
    the client asks the server for those of its first dataset.
    """
    from pyarrow import flight

    uri, _, authority = address.partition(CA_MARK)
    security: dict[str, Any] = {}
    if authority:
        security = {"tls_root_certs": Path(authority).read_bytes()}
    with flight.connect(uri, **security) as client:
        if ticket is None:
            (info, *_) = client.list_flights()
            ticket = info.endpoints[0].ticket.ticket
        reader = client.do_get(flight.Ticket(ticket))
        if consumer.reads_table:
            consumer.consume_table(reader.read_all())
        else:
            batches = (chunk.data for chunk in reader)
            consumer.consume_batches(batches)  # pyright: ignore[reportArgumentType]
