"""A file over message buffers, which pyarrow reads without a copy."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from helpers.streams import ipc_stream, split_messages
from splitarrow.formats.arrow.decoding import BufferFile
from splitarrow.formats.arrow.message import encapsulate

METADATA = bytes(range(16))
BODY = pa.py_buffer(b"0123456789")


def test_reads_never_cross_the_end_of_a_buffer_and_are_not_copies() -> None:
    file = BufferFile()
    file.add(METADATA, BODY)
    file.add(METADATA, None)
    file.add(METADATA, pa.py_buffer(b""))
    file.add(METADATA, BODY)
    prefixed = encapsulate(METADATA)
    read: list[bytes] = []
    for nbytes in (8, 16, 4, 100, 24, 24, 25, 10):
        before = file.tell()
        piece = file.read(nbytes)
        assert file.tell() == before + piece.size
        read.append(piece.to_pybytes())
        if read[-1] in (b"0123", b"0123456789"):
            assert piece.address == BODY.address
    whole = [prefixed[:8], METADATA, b"0123", b"456789"]
    assert read == [*whole, prefixed, prefixed, prefixed, b"0123456789"]
    assert file.read(1).size == 0
    assert file.tell() == 24 + 10 + 3 * 24 + 10


def test_a_file_may_only_be_read_in_order() -> None:
    file = BufferFile()
    assert (file.closed, file.readable(), file.seekable(), file.writable(), file.tell()) == (
        *(False, True, False, False),
        0,
    )


def test_pyarrow_reads_messages_that_arrive_one_by_one_in_place() -> None:
    batch = pa.record_batch({"n": list(range(100))})
    schema, message = split_messages(ipc_stream([batch], batch.schema))
    file = BufferFile()
    file.add(bytes(schema.metadata), None)
    with pa.ipc.open_stream(pa.PythonFile(cast(Any, file), mode="r")) as reader:
        for _ in range(2):
            body = pa.py_buffer(b"".join(bytes(part) for part in message.body or ()))
            file.add(bytes(message.metadata), body)
            received = reader.read_next_batch()
            assert received == batch
            column: Any = received.column(0)
            assert column.buffers()[1].address == body.address


def test_a_closed_file_releases_its_buffers() -> None:
    file = BufferFile()
    file.add(METADATA, BODY)
    file.close()
    assert file.read(100).size == 0
