"""The server refuses messages of files that would take too much memory to decode."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.catalog import DEFAULTS
from splitarrow.errors import DatasetError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.files.file_types import open_file


def encode(new: Callable[..., Any], *batches: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with new(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
@pytest.mark.parametrize("fields", [{"limit": 1}, {"batch_rows": 1}, {"compression": "none"}])
def test_bombs_are_refused_before_they_are_decoded(
    tmp_path: Path, new: Callable[..., Any], fields: dict[str, Any]
) -> None:
    values = pa.Array.from_buffers(pa.int64(), 5000, [None, pa.py_buffer(bytes(40_000))])
    data = encode(new, pa.record_batch({"n": values}))
    size = struct.pack("<q", 40_000)
    assert data.count(size) > 0
    path = tmp_path / "x"
    path.write_bytes(data.replace(size, struct.pack("<q", 1 << 40)))
    dataset = open_file(path)
    reason = r"is corrupt at byte \d+: the body of \d+ bytes decodes to 1099511627776 bytes"
    source = dataset.open(Request("x", **fields), DEFAULTS)
    with closing(source), pytest.raises(DatasetError, match=reason):
        list(source)


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
def test_bombs_in_dictionaries_are_refused(tmp_path: Path, new: Callable[..., Any]) -> None:
    words = pa.array([f"{number:05}" * 20 for number in range(400)])
    column = pa.DictionaryArray.from_arrays(pa.array([1, 2, 3], pa.int16()), words)
    data = encode(new, pa.record_batch({"w": column}))
    size = struct.pack("<q", 40_000)
    assert data.count(size) == 1
    path = tmp_path / "x"
    path.write_bytes(data.replace(size, struct.pack("<q", 1 << 40)))
    source = open_file(path).open(Request("x", limit=1), DEFAULTS)
    with closing(source), pytest.raises(DatasetError, match="is corrupt at byte"):
        list(source)
