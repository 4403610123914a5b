"""Our control plane as clients of Flight see it: ``DoGet`` to a client of pyarrow.flight."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ... import serve
from ..consumer import Consumer
from ..dataset import Dataset
from ..options import Validate
from .flight import FlightBackend, read_flight


class DoGetBackend:
    """splitarrow's control plane, and a client of pyarrow.flight that plans and reads."""

    name = "splitarrow-do-get"
    summary = "splitarrow's control plane, DoGet: the client of pyarrow.flight"
    in_process = False
    baseline: str | None = "flight"

    def unavailable_reason(self) -> str | None:
        """Return why pyarrow.flight cannot run, or None if it can."""
        return FlightBackend().unavailable_reason()

    @contextmanager
    def serve(self, dataset: Dataset) -> Generator[str]:
        """Serve the file; see `Backend.serve`."""
        with serve({"benchmark": dataset.path}, control="grpc://127.0.0.1:0") as server:
            yield str(server.control_uri)

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Read all batches. Flight does not validate them; see `Backend.read`."""
        read_flight(address, consumer, ticket=None)
