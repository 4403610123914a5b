"""Messages in another form: pyarrow reads them, and they are what they were."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.arrow_data import draw_batches, make_arrays_of_all_types, make_batches
from helpers.streams import ipc_stream
from splitarrow.errors import InvalidDataError, LimitError, UsageError
from splitarrow.fbs import arrow_generated as fbs
from splitarrow.formats.arrow.batch_rewriter import BatchRewriter, read_layout
from splitarrow.formats.arrow.conversion import MessageConverter
from splitarrow.formats.arrow.file_writer import (
    FileAssembler,
    ReplacedDictionaryError,
    StreamAssembler,
)
from splitarrow.formats.arrow.form import Form
from splitarrow.formats.arrow.message import read_batch_layout, read_endianness
from splitarrow.formats.arrow.schema import Feature, find_schema, read_features
from splitarrow.formats.arrow.schema_rewriter import rewrite_schema

ARRAYS = make_arrays_of_all_types()
SWAPPED = Form("big")
OLD = Form("little", "v4")
OLD_SWAPPED = Form("big", "v4")
COMPRESSED = Form("big", compression="zstd")
# pyarrow refuses to swap the bytes of these.
NOT_SWAPPED_BY_PYARROW = {
    name
    for name in ARRAYS
    if name in ("string_view", "binary_view") or name.startswith("run_end_encoded")
}


def messages(stream: bytes) -> Iterator[tuple[bytes, memoryview]]:
    reader = pa.BufferReader(stream)
    while True:
        try:
            message = pa.ipc.read_message(reader)
        except EOFError:
            return
        body = memoryview(b"") if message.body is None else memoryview(message.body)
        yield message.metadata.to_pybytes(), body


def convert(stream: bytes, form: Form, *, file: bool = False, legacy: bool = False) -> bytes:
    (schema, _), *rest = messages(stream)
    converter = MessageConverter(schema, form)
    assembler = FileAssembler(legacy=legacy) if file else StreamAssembler(legacy=legacy)
    written = bytearray(assembler.begin(converter.schema_metadata))
    for metadata, body in rest:
        changed = converter.convert(metadata, body)
        written += assembler.add(changed.metadata, changed.body_length)
        written += b"".join(changed.body)
        assert len(written) % 8 == 0
    return bytes(written + assembler.end())


def read(data: bytes) -> pa.Table:
    if data.startswith(b"ARROW1"):
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    return pa.ipc.open_stream(pa.BufferReader(data)).read_all()


@pytest.mark.parametrize("name", sorted(ARRAYS))
@pytest.mark.parametrize("form", [SWAPPED, OLD, OLD_SWAPPED, COMPRESSED], ids=str)
def test_every_type_is_what_it_was(name: str, form: Form) -> None:
    array = ARRAYS[name]
    batches = make_batches(array)
    stream = ipc_stream(batches, batches[0].schema)
    changed = convert(stream, form)
    expected = read(stream)
    if form.endianness != "big" or name not in NOT_SWAPPED_BY_PYARROW:
        assert read(changed).equals(expected)
        assert read(convert(changed, Form(), legacy=True)).equals(expected)
    back = convert(changed, Form("little", "v5", "none"))
    assert read(back).equals(expected)


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("legacy", [False, True])
def test_pyarrow_reads_every_framing(*, file: bool, legacy: bool) -> None:
    batch = pa.record_batch({"n": [1, 2, None], "s": ["a", None, "ccc"]})
    stream = ipc_stream([batch, batch], batch.schema)
    written = convert(stream, OLD_SWAPPED, file=file, legacy=legacy)
    assert read(written).equals(read(stream))
    assert (b"\xff\xff\xff\xff" in written[:16]) is not legacy


@given(draw_batches(), st.sampled_from([SWAPPED, OLD, OLD_SWAPPED, COMPRESSED]))
def test_drawn_batches_return_from_any_form(
    drawn: tuple[pa.Schema, list[pa.RecordBatch]], form: Form
) -> None:
    schema, batches = drawn
    stream = ipc_stream(batches, schema)
    back = convert(convert(stream, form), Form("little", "v5", "none"))
    assert read(back).equals(read(stream))


@pytest.mark.parametrize("batch", range(6))
def test_golden_files_return_and_pyarrow_reads_them(arrow_test_data: Path, batch: int) -> None:
    folder = arrow_test_data / "arrow-ipc-stream" / "integration"
    paths = sorted(folder.glob("*/*.stream"))[batch::6]
    for path, form in itertools.product(paths, [SWAPPED, OLD_SWAPPED]):
        stream = path.read_bytes()
        expected, changed = read(stream), convert(stream, form)
        assert read(changed).equals(expected), (path, form)
        assert read(convert(changed, Form("little", "v5"))).equals(expected), (path, form)


def test_big_endian_golden_files_have_the_form_that_we_write(arrow_test_data: Path) -> None:
    """The files of both byte orders have the same data, and so the same buffers in one order."""
    folder = arrow_test_data / "arrow-ipc-stream" / "integration"
    pairs = [
        (path, folder / "1.0.0-littleendian" / path.name)
        for path in sorted((folder / "1.0.0-bigendian").glob("generated_*.stream"))
    ]
    if not pairs:
        pytest.skip("no big-endian streams")
    for big, little in pairs:
        stored = [bytes(body) for _, body in messages(big.read_bytes())]
        written = [bytes(body) for _, body in messages(convert(little.read_bytes(), SWAPPED))]
        assert [body.rstrip(b"\0") for body in written] == [body.rstrip(b"\0") for body in stored]


def test_a_form_that_data_has_already_changes_nothing() -> None:
    batch = pa.record_batch({"n": [1, 2, 3]})
    (schema, _), *_ = messages(ipc_stream([batch], batch.schema))
    for form in (Form(), Form("little"), Form("little", "v5")):
        converter = MessageConverter(schema, form)
        assert not converter.changes_bodies
        assert converter.schema_metadata == schema


def test_a_buffer_that_does_not_shrink_is_stored_as_it_is() -> None:
    noise = bytes(range(256))
    batch = pa.record_batch({"noise": [noise], "zeros": [bytes(4096)]})
    stream = ipc_stream([batch], batch.schema)
    changed = convert(stream, Form(compression="lz4"))
    (metadata, body) = list(messages(changed))[1]
    layout = read_batch_layout(metadata)
    assert layout.compressed
    stored = [
        (struct.unpack_from("<q", body, offset)[0], length)
        for offset, length in layout.buffers
        if length
    ]
    assert (-1, 256 + 8) in stored
    assert any(size == 4096 and length < 100 for size, length in stored)
    assert read(changed).equals(read(stream))


def test_features_declare_compression() -> None:
    batch = pa.record_batch({"n": [1, 2, 3]})
    stream = ipc_stream([batch], batch.schema)
    compressed = convert(stream, Form(compression="zstd"))
    (schema, _), *_ = messages(compressed)
    assert read_features(find_schema(schema)) == (Feature.COMPRESSED_BODY,)
    for form in (Form(compression="none"), Form(version="v4")):
        (schema, _), *_ = messages(convert(compressed, form))
        assert read_features(find_schema(schema)) == ()


def test_v4_excludes_compression() -> None:
    with pytest.raises(UsageError, match="know no compression"):
        Form(version="v4", compression="lz4")


def test_metadata_and_dictionary_ids_stay() -> None:
    field = pa.field("n", pa.int8(), nullable=False, metadata={"unit": "µm"})
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    schema = pa.schema([field, pa.field("w", words.type)], {"origin": "here"})
    batch = pa.record_batch([pa.array([1, 2, 3], pa.int8()), words], schema=schema)
    changed = convert(ipc_stream([batch], schema), OLD_SWAPPED)
    assert read(changed).schema.equals(schema, check_metadata=True)
    (metadata, _), *_ = messages(changed)
    assert read_endianness(metadata) == "big"
    message = fbs.Message.GetRootAs(metadata, 0)
    assert message.Version() == fbs.MetadataVersion.V4


def test_a_file_refuses_a_replaced_dictionary() -> None:
    batches = [
        pa.record_batch([pa.array(words).dictionary_encode()], names=["w"])
        for words in (["a"], ["b"])
    ]
    stream = ipc_stream(batches, batches[0].schema)
    with pytest.raises(ReplacedDictionaryError, match="the dictionary 0 is replaced"):
        convert(stream, Form(), file=True)


def test_nulls_of_a_union_before_v5_are_refused() -> None:
    kinds = pa.array([0, 0], pa.int8())
    array = pa.UnionArray.from_sparse(kinds, [pa.array([1, 2])])
    batch = pa.record_batch([array], names=["u"])
    (schema, _), (metadata, body) = messages(convert(ipc_stream([batch], batch.schema), OLD))
    root = fbs.Message.GetRootAs(metadata, 0)
    table = root.Header()
    assert table is not None
    header = fbs.RecordBatch()
    header.Init(table.Bytes, table.Pos)
    node = header.Nodes(0)
    damaged = bytearray(metadata)
    struct.pack_into("<q", damaged, node._tab.Pos + 8, 1)  # pyright: ignore
    converter = MessageConverter(schema, Form(version="v5"))
    with pytest.raises(InvalidDataError, match="nulls of its own"):
        converter.convert(bytes(damaged), body)


def test_buffers_must_fit_the_body_the_schema_and_the_limit() -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "z": [bytes(10_000)] * 3})
    (schema, _), (metadata, body) = messages(ipc_stream([batch], batch.schema))
    converter = MessageConverter(schema, SWAPPED)
    with pytest.raises(InvalidDataError, match="outside its body"):
        converter.convert(metadata, body[:8])
    wrong = MessageConverter(rewrite_schema(schema, columns=[0]), SWAPPED)
    with pytest.raises(InvalidDataError, match="do not fit the schema"):
        wrong.convert(metadata, body)
    stream = ipc_stream([batch], batch.schema, compression="zstd")
    (schema, _), (metadata, body) = messages(stream)
    layout = read_layout(find_schema(schema))
    rewriter = BatchRewriter(layout, compression="none", max_bytes=20_000)
    with pytest.raises(LimitError, match="more than 20000 bytes"):
        rewriter.rewrite(metadata, body)


def test_a_schema_with_an_unknown_feature_is_refused() -> None:
    batch = pa.record_batch({"n": [1]})
    (schema, _), *_ = messages(ipc_stream([batch], batch.schema))
    from splitarrow.formats.arrow.schema import read_schema

    assert read_schema(rewrite_schema(schema, features=[1, 2])).equals(batch.schema)
    newer = rewrite_schema(schema, features=[2, 77])
    with pytest.raises(InvalidDataError, match=r"unknown feature 77; known are 1 \("):
        read_schema(newer)
    many = rewrite_schema(schema, features=range(100))
    with pytest.raises(InvalidDataError, match="declares 100 features"):
        read_schema(many)
