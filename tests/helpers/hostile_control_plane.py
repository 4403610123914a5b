"""A control plane whose answers do not end: prints its URI, and serves until it is killed.

python -m helpers.hostile_control_plane
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pyarrow as pa
from pyarrow import flight

LARGE = bytes(1 << 20)
RESULT = b"\x0a\x80\x80\x40" + LARGE
"""A ``Result`` of the Flight protocol: field 1 has 1 MiB."""


def list_flights() -> Iterator[bytes]:
    for number in itertools.count():
        descriptor = flight.FlightDescriptor.for_path(f"d{number}")
        endpoints = [flight.FlightEndpoint(LARGE, [])]
        schema = pa.schema([("n", pa.int64())])
        yield flight.FlightInfo(schema, descriptor, endpoints, -1, -1).serialize()


METHODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "ListActions": lambda: iter(()),
    "ListFlights": list_flights,
    "DoAction": lambda: itertools.repeat(RESULT),
}


class Handler(grpc.GenericRpcHandler):
    """Answers any request to one of the methods."""

    def service(self, handler_call_details: Any) -> Any:
        answer = METHODS[handler_call_details.method.rpartition("/")[2]]
        return grpc.unary_stream_rpc_method_handler(lambda *_: answer())


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"grpc://127.0.0.1:{port}", flush=True)
    server.wait_for_termination()
