"""Projected messages, without files: their metadata, and metadata at its limits."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.crafting import LZ4, RECORD_BATCH, V4, ZSTD, Crafter, empty_message
from helpers.streams import ipc_stream, split_messages
from splitarrow.errors import InvalidDataError
from splitarrow.fbs import arrow_generated as fbs
from splitarrow.formats.arrow.data_types import has_dictionaries
from splitarrow.formats.arrow.message import (
    encapsulate,
    read_batch_layout,
    read_custom_metadata,
    read_message_info,
)
from splitarrow.formats.arrow.projection import (
    ColumnCounts,
    Projector,
    find_column_counts,
)

ARRAYS = make_arrays_of_all_types()
VIEW, TEXT = pa.string_view(), pa.string()
INNER: Any = pa.dictionary(pa.int8(), TEXT)
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


def test_a_vector_that_ends_behind_the_metadata_is_refused() -> None:
    nodes = struct.pack("<I4q", 2, 1, 0, 1, 0)
    metadata = crafted(2, 4)
    assert metadata.endswith(nodes)
    longer = metadata[: -len(nodes)] + struct.pack("<I4q", 3, 1, 0, 1, 0)
    with pytest.raises(InvalidDataError, match="not an Arrow IPC batch"):
        Projector(INTS, [1]).project(longer)


def test_a_batch_without_columns_may_omit_its_vectors() -> None:
    projected = Projector(pa.schema([]), []).project(empty_message(RECORD_BATCH))
    assert (projected.rows, projected.body, projected.body_length) == (0, [], 0)
    with pytest.raises(InvalidDataError, match="do not match its schema"):
        Projector(INTS, [0]).project(empty_message(RECORD_BATCH))


def test_metadata_takes_no_more_bytes_than_that_of_arrow() -> None:
    batch = pa.record_batch({f"c{number}": [number] for number in range(50)})
    _, message = split_messages(ipc_stream([batch], batch.schema))
    projected = Projector(batch.schema, range(50)).project(bytes(message.metadata))
    assert len(projected.metadata) <= len(message.metadata)


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


def project(batch: pa.RecordBatch, columns: list[int], **options: object) -> pa.RecordBatch:
    """Return the columns of a batch, sent as a projected message."""
    *_, message = split_messages(ipc_stream([batch], batch.schema, **options))
    body = b"".join(bytes(part) for part in message.body or ())
    projected = Projector(batch.schema, columns).project(bytes(message.metadata))
    parts = [body[offset : offset + nbytes] + bytes(pad) for offset, nbytes, pad in projected.body]
    packed = b"".join(parts)
    assert len(packed) == projected.body_length
    assert projected.rows == batch.num_rows
    kept = pa.schema([batch.schema.field(column) for column in columns])
    schema, *_ = split_messages(ipc_stream([], kept))
    data = b"".join(
        encapsulate(metadata) + found
        for metadata, found in ((bytes(schema.metadata), b""), (projected.metadata, packed))
    )
    return pa.ipc.open_stream(data).read_next_batch()


@pytest.mark.parametrize("columns", [[0], [2], [2, 0], [1, 2]])
def test_projected_messages_decode_to_the_columns(columns: list[int]) -> None:
    batch = pa.record_batch({"n": [1, None, 3], "s": ["a", "bc", None], "f": [1.5, 2.5, 3.5]})
    assert project(batch, columns) == batch.select(columns)


@pytest.mark.parametrize("name", ARRAYS)
def test_columns_of_every_type_are_projected_and_passed_over(name: str) -> None:
    array: Any = ARRAYS[name]
    views = pa.array([f"a text that is not inlined {n}" for n in range(len(array))], VIEW)
    short = pa.array(["x"] * len(array), VIEW)
    ends = pa.array([None, *range(len(array) - 1)], pa.int32())
    batch = pa.RecordBatch.from_arrays([views, short, array, views, ends], list("abcde"))
    for columns in ([4], [3, 4], [0, 1], [2], [1, 2, 3]):
        if 2 not in columns or not has_dictionaries(array.type):
            for codec in (None, "zstd"):
                found = project(batch, columns, compression=codec)
                found.validate(full=True)
                assert found == batch.select(columns)


@pytest.mark.parametrize(
    ("data_type", "layout"),
    [
        (pa.null(), (1, 0, 0)),
        (pa.bool_(), (1, 2, 0)),
        (pa.decimal128(5, 2), (1, 2, 0)),
        (pa.binary(3), (1, 2, 0)),
        (TEXT, (1, 3, 0)),
        (pa.binary(), (1, 3, 0)),
        (pa.large_string(), (1, 3, 0)),
        (pa.large_binary(), (1, 3, 0)),
        (VIEW, (1, 2, 1)),
        (pa.binary_view(), (1, 2, 1)),
        (INNER, (1, 2, 0)),
        (pa.uuid(), (1, 2, 0)),
        (pa.json_(VIEW), (1, 2, 1)),
        (pa.list_(pa.int8()), (2, 4, 0)),
        (pa.large_list(TEXT), (2, 5, 0)),
        (pa.list_(TEXT, 3), (2, 4, 0)),
        (pa.list_view(VIEW), (2, 5, 1)),
        (pa.large_list_view(pa.int8()), (2, 5, 0)),
        (pa.map_(VIEW, VIEW), (4, 7, 2)),
        (pa.struct([]), (1, 1, 0)),
        (pa.struct([("a", TEXT), ("b", VIEW), ("c", pa.null())]), (4, 6, 1)),
        (pa.run_end_encoded(pa.int32(), TEXT), (3, 5, 0)),
        (pa.sparse_union([pa.field("a", TEXT), pa.field("b", VIEW)]), (3, 6, 1)),
        (pa.dense_union([pa.field("a", TEXT), pa.field("b", VIEW)]), (3, 7, 1)),
    ],
    ids=str,
)
def test_columns_have_the_buffers_of_the_columnar_format(
    data_type: pa.DataType, layout: tuple[int, int, int]
) -> None:
    assert find_column_counts(data_type) == ColumnCounts(*layout)


@pytest.mark.parametrize(
    "data_type",
    [
        INNER,
        pa.list_(INNER),
        pa.struct([("a", pa.int8()), ("b", pa.struct([("c", INNER)]))]),
        pa.run_end_encoded(pa.int32(), INNER),
        pa.opaque(INNER, "type", "vendor"),
    ],
    ids=str,
)
def test_dictionaries_are_found_at_any_depth(data_type: pa.DataType) -> None:
    assert has_dictionaries(data_type)
    assert not has_dictionaries(pa.run_end_encoded(pa.int32(), TEXT))
    assert not has_dictionaries(pa.struct([("a", pa.uuid()), ("b", pa.list_(TEXT))]))


def test_numbers_of_data_buffers_must_fit_the_views() -> None:
    views = pa.array(["a text that is not inlined"], VIEW)
    batch = pa.record_batch({"a": views, "b": views})
    _, message = split_messages(ipc_stream([batch], batch.schema))
    metadata = bytes(message.metadata)
    counts = struct.pack("<I2q", 2, 1, 1)
    assert metadata.count(counts) == 1
    for first, second in ((-1, 3), (3, -1)):
        wrong = metadata.replace(counts, struct.pack("<I2q", 2, first, second))
        with pytest.raises(InvalidDataError, match="not an Arrow IPC batch"):
            Projector(batch.schema, [0]).project(wrong)
    other = batch.schema.append(pa.field("c", VIEW))
    for schema, wrong in (
        (other, metadata),
        (batch.schema, metadata.replace(counts, struct.pack("<I2q", 1, 2, 0))),
        (batch.schema, metadata.replace(counts, struct.pack("<I2q", 2, 1, 0))),
    ):
        with pytest.raises(InvalidDataError, match="do not match its schema"):
            Projector(schema, [0]).project(wrong)


UNION: Any = pa.sparse_union([pa.field("a", pa.int64())])


@pytest.mark.parametrize(("codec", "method"), [(None, 0), (LZ4, 0), (ZSTD, 0), (ZSTD, 1)])
def test_properties_of_a_message_are_kept(codec: int | None, method: int) -> None:
    """A method that does not exist yet is kept too: its reader has to refuse it."""
    crafter = Crafter()
    pairs = [crafter.pair(crafter.text(key), crafter.text("v")) for key in ("k", "l")]
    batch = crafter.batch(9, [(9, 2), (9, 3)], [(0, 8)] * 4, codec, method)
    message = crafter.message(
        RECORD_BATCH, batch, 8, version=V4, custom_metadata=crafter.vector(pairs)
    )
    for _ in range(2):
        projected = Projector(INTS, [1]).project(message)
        assert len(projected.metadata) % 8 == 0
        assert read_custom_metadata(projected.metadata) == {b"k": b"v", b"l": b"v"}
        read: Any = fbs.Message.GetRootAs(projected.metadata, 0)
        assert (read.Version(), read.HeaderType()) == (V4, RECORD_BATCH)
        table: Any = fbs.RecordBatch()
        table.Init(read.Header().Bytes, read.Header().Pos)
        assert (table.Length(), table.NodesLength(), table.BuffersLength()) == (9, 1, 2)
        assert (table.Nodes(0).Length(), table.Nodes(0).NullCount()) == (9, 3)
        assert table.VariadicBufferCountsLength() == 0
        compression = table.Compression()
        assert (compression and compression.Codec()) == codec
        assert compression is None or compression.Method() == method


def test_messages_of_one_number_of_buffers_may_differ_in_all_else() -> None:
    """A template that was built for another shape would change a version, a codec or a pair."""
    projector = Projector(INTS, [0])
    for _ in range(2):
        for version in (V4, 4):
            for codec in (None, LZ4, ZSTD):
                crafter = Crafter()
                batch = crafter.batch(1, [(1, 0)] * 2, [(0, 8)] * 4, codec)
                message = crafter.message(RECORD_BATCH, batch, 8, version=version)
                read: Any = fbs.Message.GetRootAs(projector.project(message).metadata, 0)
                layout = read_batch_layout(projector.project(message).metadata)
                assert (read.Version(), layout.compressed) == (version, codec is not None)
                assert projector.project(message) == Projector(INTS, [0]).project(message)


def test_only_unions_need_the_present_version() -> None:
    for data_type, buffers in ((pa.int64(), 2), (UNION, 3)):
        crafter = Crafter()
        nodes = [(1, 0)] * (2 if data_type == UNION else 1)
        batch = crafter.batch(1, nodes, [(0, 8)] * buffers)
        projector = Projector(pa.schema([("x", data_type)]), [0])
        assert projector.project(crafter.message(RECORD_BATCH, batch, 8)).rows == 1
        crafter = Crafter()
        batch = crafter.batch(1, nodes, [(0, 8)] * buffers)
        old = crafter.message(RECORD_BATCH, batch, 8, version=V4)
        if data_type == UNION:
            with pytest.raises(InvalidDataError, match="unions of metadata versions before V5"):
                projector.project(old)
        else:
            assert projector.project(old).rows == 1


def test_every_prefix_of_a_batch_is_projected_or_refused() -> None:
    reasons: set[str] = set()
    metadata = crafted(2, 4)
    for length in range(len(metadata)):
        try:
            assert Projector(INTS, [1]).project(metadata[:length]).rows == 1
        except InvalidDataError as error:
            reasons.add(str(error))
    assert "the metadata is not an Arrow IPC batch" in reasons
