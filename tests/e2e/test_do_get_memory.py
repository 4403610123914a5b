"""The memory that streams over DoGet take in the server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import flight

from helpers.batteries import anonymous_kib
from helpers.daemons import StartDaemon
from helpers.files import write_file

STREAMS = 50


def test_readers_that_do_not_read_share_little_memory(daemon: StartDaemon, tmp_path: Path) -> None:
    """Each stream holds two chunks of the size at the time when they began."""
    table = pa.table({"n": pa.array(np.arange(8_000_000))})
    path = write_file(tmp_path / "numbers.arrow", table, batch_rows=8192)
    server = daemon({"numbers": path}, control="grpc://127.0.0.1:0")
    location = server.control_uri.replace("grpc://", "grpc+tcp://")
    with flight.connect(location) as client:
        client.do_get(flight.Ticket(b"numbers")).read_all()
        before = anonymous_kib(server.pid)
        streams = [client.do_get(flight.Ticket(b"numbers")) for _ in range(STREAMS)]
        for stream in streams:
            assert stream.read_chunk().data is not None
        growth = anonymous_kib(server.pid) - before
        for stream in streams:
            stream.cancel()
    assert growth < 75 * 1000
