"""Projected messages, without files: their metadata, and metadata at its limits."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.crafting import RECORD_BATCH, Crafter
from helpers.streams import ipc_stream, split_messages
from splitarrow.errors import InvalidDataError
from splitarrow.formats.arrow.message import (
    read_batch_layout,
    read_custom_metadata,
    read_message_info,
)
from splitarrow.formats.arrow.projection import Projector

INTS = pa.schema([("a", pa.int64()), ("b", pa.int64())])


def crafted(nodes: int, buffers: int) -> bytes:
    """Return a record batch whose vectors end where its metadata ends."""
    crafter = Crafter()
    spans = [(64 * index, 8) for index in range(buffers)]
    return crafter.message(RECORD_BATCH, crafter.batch(1, [(1, 0)] * nodes, spans), 64 * buffers)


def test_a_vector_may_end_where_the_metadata_ends() -> None:
    projected = Projector(INTS, [1]).project(crafted(2, 4))
    assert projected.rows == 1
    assert [part[:2] for part in projected.body] == [(128, 72)]  # two buffers, and a small gap


def test_a_column_without_buffers_has_an_empty_vector() -> None:
    schema = pa.schema([("n", pa.null())])
    projected = Projector(schema, [0]).project(crafted(1, 0))
    assert (projected.rows, projected.body, projected.body_length) == (1, [], 0)


@pytest.mark.parametrize(("nodes", "buffers"), [(1, 4), (2, 3), (0, 0)])
def test_a_batch_that_lacks_columns_is_refused(nodes: int, buffers: int) -> None:
    with pytest.raises(InvalidDataError):
        Projector(INTS, [1]).project(crafted(nodes, buffers))


@pytest.mark.parametrize(
    ("buffers", "body", "spans"),
    [
        ([(0, 8), (8, 8)], [(0, 16, 0)], [(0, 8), (8, 8)]),
        ([(0, 3), (8, 8)], [(0, 16, 0)], [(0, 3), (8, 8)]),
        ([(0, 8), (64, 8)], [(0, 72, 0)], [(0, 8), (64, 8)]),
        ([(0, 8), (72, 8)], [(0, 8, 0), (72, 8, 0)], [(0, 8), (8, 8)]),
        ([(0, 8), (12, 8)], [(0, 8, 0), (12, 8, 0)], [(0, 8), (8, 8)]),
        ([(3, 8), (11, 5)], [(3, 13, 3)], [(0, 8), (8, 5)]),
        ([(8, 8), (0, 8)], [(8, 8, 0), (0, 8, 0)], [(0, 8), (8, 8)]),
        ([(0, 16), (8, 8)], [(0, 16, 0), (8, 8, 0)], [(0, 16), (16, 8)]),
        ([(0, 0), (120, 8)], [(120, 8, 0)], [(0, 0), (0, 8)]),
        ([(0, 3), (0, 0)], [(0, 3, 5)], [(0, 3), (8, 0)]),
        ([(0, 0), (128, 0)], [], [(0, 0), (0, 0)]),
    ],
)
def test_buffers_with_small_gaps_are_one_range(
    buffers: list[tuple[int, int]], body: list[Any], spans: list[tuple[int, int]]
) -> None:
    crafter = Crafter()
    batch = crafter.batch(1, [(1, 0)] * 2, [(0, 9), (16, 0), *buffers])
    projected = Projector(INTS, [1]).project(crafter.message(RECORD_BATCH, batch, 128))
    assert projected.body == body
    layout = read_batch_layout(projected.metadata)
    assert [(span.offset, span.length) for span in layout.buffers] == spans
    assert projected.body_length == sum(nbytes + pad for _, nbytes, pad in body)
    assert read_message_info(projected.metadata).body_length == projected.body_length


def test_an_empty_buffer_does_not_split_a_range() -> None:
    crafter = Crafter()
    batch = crafter.batch(1, [(1, 0)] * 2, [(0, 8), (64, 0), (8, 8), (16, 8)])
    message = crafter.message(RECORD_BATCH, batch, 128)
    assert Projector(INTS, [0, 1]).project(message).body == [(0, 24, 0)]
    assert Projector(INTS, [1, 0]).project(message).body == [(8, 16, 0), (0, 8, 0)]


@pytest.mark.parametrize("buffer", [(0, -1), (-8, 8), (121, 8), (129, 0), (0, 129), (-1, 0)])
def test_a_buffer_outside_its_body_is_refused(buffer: tuple[int, int]) -> None:
    crafter = Crafter()
    batch = crafter.batch(1, [(1, 0)] * 2, [(0, 8), (8, 8), (16, 8), buffer])
    message = crafter.message(RECORD_BATCH, batch, 128)
    assert Projector(INTS, [0]).project(message).body == [(0, 16, 0)]
    with pytest.raises(InvalidDataError, match="is outside its body of 128 bytes"):
        Projector(INTS, [1]).project(message)


def test_the_metadata_of_few_shapes_is_kept() -> None:
    projector = Projector(INTS, [1])
    for number in range(20):
        crafter = Crafter()
        pairs = crafter.vector([crafter.pair(crafter.text("k"), crafter.text(f"{number}"))])
        batch = crafter.batch(number, [(number, 0)] * 2, [(0, 0)] * 4)
        message = crafter.message(RECORD_BATCH, batch, custom_metadata=pairs)
        assert projector.project(message) == projector.project(message)
        assert read_custom_metadata(projector.project(message).metadata) == {b"k": b"%d" % number}
        assert len(projector._templates) == number % 16 + 1


@pytest.mark.parametrize("columns", [[0], [2], [2, 0], [1, 2]])
def test_projected_messages_decode_to_the_columns(columns: list[int]) -> None:
    batch = pa.record_batch({"n": [1, None, 3], "s": ["a", "bc", None], "f": [1.5, 2.5, 3.5]})
    _, message = split_messages(ipc_stream([batch], batch.schema))
    body = b"".join(bytes(part) for part in message.body or ())
    projected = Projector(batch.schema, columns).project(bytes(message.metadata))
    parts = [body[offset : offset + nbytes] + bytes(pad) for offset, nbytes, pad in projected.body]
    packed = b"".join(parts)
    assert len(packed) == projected.body_length
    expected = batch.select(columns)
    schema, *_ = split_messages(ipc_stream([expected], expected.schema))
    data = b"".join(
        b"\xff\xff\xff\xff" + len(metadata).to_bytes(4, "little") + metadata + found
        for metadata, found in ((bytes(schema.metadata), b""), (projected.metadata, packed))
    )
    assert pa.ipc.open_stream(data).read_next_batch() == expected
