"""A file that is larger than any buffer: offsets beyond 32 bits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from helpers.batteries import Battery, watch_memory
from helpers.cli import COMMAND
from helpers.reader_process import Checksum
from helpers.readers import ReaderPool, source

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

BODY = 64 << 20
TRANSPORTS = ["tcp", "shm", "ucx", "flight"]


class SparseFile:
    """A file for `pyarrow.PythonFile` that leaves the middle of large buffers as a hole."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if len(view) < BODY:
            return self._file.write(view)
        self._file.write(view[:8])
        self._file.seek(len(view) - 16, os.SEEK_CUR)
        return 8 + self._file.write(view[-8:])

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def write_sparse(path: Path, batches: int) -> str:
    """Write batches that are zero but for the first and the last row; return their checksum."""
    checksum = Checksum()
    file = SparseFile(path)
    data = bytearray(BODY)
    schema = pa.schema({"n": pa.int64()})
    with pa.ipc.new_file(pa.PythonFile(cast(Any, file), mode="w"), schema) as writer:
        for number in range(1, batches + 1):
            data[:8] = data[-8:] = number.to_bytes(8, "little")
            column = pa.Array.from_buffers(pa.int64(), BODY // 8, [None, pa.py_buffer(data)])
            batch = pa.record_batch([column], schema=schema)
            checksum.add(batch)
            writer.write_batch(batch)
    file.close()
    return str(checksum)


def test_large_file(battery: Battery, server, readers: ReaderPool, tmp_path: Path) -> None:
    """Every byte arrives over every transport, and the server's memory stays small."""
    path = tmp_path / "large.arrow"
    batches = battery.count(6 * 16, 2)
    checksum = write_sparse(path, batches)
    size = path.stat().st_size
    assert size > batches * BODY
    seconds: dict[str, float] = {}
    try:
        running = server({"large": path})
        with watch_memory(running.pid) as peak:
            for transport in TRANSPORTS:
                reader = readers.start("read", **source(running, "large", transport))
                result = reader.result(1800)
                assert result["outcome"] == "complete", result
                assert result["checksum"] == checksum
                seconds[transport] = round(result["seconds"], 1)
            assert fetch_checksum(running.uri("large", "tcp")) == checksum
    finally:
        path.unlink()
    battery.record(file_bytes=size, seconds_each=seconds, server_peak_mib=peak.kib >> 10)
    assert peak.kib < 400 << 10


def fetch_checksum(uri: str) -> str:
    """Return the checksum of what ``fetch`` writes to standard output."""
    checksum = Checksum()
    command = [*COMMAND, "fetch", "--quiet", uri, "-o", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        with pa.ipc.open_stream(cast(Any, process.stdout)) as reader:
            for batch in reader:
                checksum.add(batch)
        assert process.wait() == 0
    return str(checksum)
