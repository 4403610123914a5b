"""What works where gRPC cannot be imported, as with free-threaded Python."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        found = (finder.find_spec(name, path, target) for finder in finders)
        return None if name.partition(".")[0] == "grpc" else next(filter(None, found), None)

finders, sys.meta_path = sys.meta_path, [Finder()]

import pyarrow as pa
from pyarrow import flight
import splitarrow
import splitarrow.cli
import splitarrow.errors
import splitarrow.pytorch

table = pa.table({"n": range(1000)})
with splitarrow.serve({"d": table}, control="grpc://127.0.0.1:0") as server:
    assert server.control_uri is not None
    for scheme in ("tcp", "shm"):
        with splitarrow.open(server.uri("d", scheme)) as stream:
            assert stream.read_all() == table
    with flight.connect(server.control_uri) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("d"))
        assert client.do_get(info.endpoints[0].ticket).read_all() == table
    try:
        splitarrow.open(server.control_uri, "d")
    except splitarrow.errors.SplitArrowError as error:
        print(error)
"""


def test_servers_and_data_transports_need_no_grpc() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "a control plane needs the package grpcio\n"
