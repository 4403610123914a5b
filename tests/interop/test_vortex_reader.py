"""Our Vortex messages, and a reader that was made from docs/vortex-messages.md alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers import vortex_reader, wire_reader
from helpers.vortex_messages import encode_arrow, make_columns, write_stream
from helpers.vortex_reader import PTYPES, read_array, read_message, read_stream, read_type
from splitarrow.formats.vortex.dtype import read_dtype
from splitarrow.formats.vortex.message import MessageKind, build_message

COLUMNS = make_columns()


def expected_values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.to_pylist()


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in ("decimal",)])
def test_values_of_a_stream_that_we_write(name: str) -> None:
    column = COLUMNS[name].slice(0, 100)
    dtype, message = encode_arrow(column, compress=False)
    # The constructor of the library may choose other encodings; ours writes what it returns.
    first, second = read_stream(write_stream(dtype, message))
    found = read_type(vortex_reader.Table(first.body))
    values = vortex_reader.read_values(read_array(second), found, second.rows)
    assert values == expected_values(column)


def test_headers_types_and_nodes_of_compressed_arrays() -> None:
    for column in COLUMNS.values():
        dtype, message = encode_arrow(column)
        buffer = build_message(MessageKind.BUFFER, [b"abc"])
        first, second, third = read_stream(write_stream(dtype, message, buffer))
        assert (first.kind, second.kind, third.kind, third.body) == (3, 1, 2, b"abc")
        assert (second.rows, second.encodings) == (len(column), list(message.header.encodings))
        ours = read_dtype(dtype.join_body())
        theirs = read_type(vortex_reader.Table(first.body))
        assert (theirs.kind, theirs.names) == (ours.kind, list(ours.names))
        if ours.ptype is not None:
            assert PTYPES[theirs.ptype] == ours.ptype.name.lower()
        assert read_array(second).encoding in second.encodings


def test_messages_on_the_wire() -> None:
    generator = np.random.default_rng(0)
    numbers = pa.array(generator.integers(0, 1 << 63, 5000))  # nothing makes them smaller
    table = pa.table({"a": numbers, "b": pa.array(generator.integers(0, 1 << 32, 5000, np.uint32))})
    with splitarrow.serve({"t": table}, listen=["tcp://127.0.0.1:0"], control=None) as server:
        uri = server.uri("t", scheme="tcp")
        ticket = "ticket=%7B%22dataset%22:%22t%22,%22format%22:%22vortex%22%7D"
        pairs = wire_reader.read(uri.replace("ticket=t", ticket))
    (_, none), (dtype_header, dtype_body), *arrays = pairs
    assert none is None
    assert dtype_body is not None
    dtype = read_type(vortex_reader.Table(read_message(dtype_header, dtype_body).body))
    assert dtype.names == ["a", "b"]
    rows: list[Any] = []
    for header, body in arrays:
        assert body is not None
        message = read_message(header, body)
        rows += vortex_reader.read_values(read_array(message), dtype, message.rows)
    assert rows == table.to_pylist()
