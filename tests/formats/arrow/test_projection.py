"""Projected messages, without files: their metadata, and metadata at its limits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from helpers.crafting import RECORD_BATCH, Crafter
from helpers.streams import ipc_stream, split_messages
from splitarrow.errors import InvalidDataError
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
