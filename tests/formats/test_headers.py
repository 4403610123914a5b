"""What a server reads of messages that it sends as they lie."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import InvalidDataError, ProtocolError
from splitarrow.formats.arrow.headers import HeaderProbe, read_header
from splitarrow.formats.arrow.message import HeaderType, encapsulate

from ..protocol.crafting import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    TENSOR,
    Crafter,
    empty_message,
    plain_batch,
)
from ..protocol.streams import cut, ipc_stream


def batches() -> list[pa.RecordBatch]:
    def batch(values: list[str], rows: int) -> pa.RecordBatch:
        indices = pa.array([0] * rows, pa.int8())
        array = pa.DictionaryArray.from_arrays(indices, pa.array(values))
        return pa.record_batch({"d": array, "n": pa.array(range(rows), pa.int64())})

    sizes = [3, 5, 0, 3, 3, 0, 0, 9]
    return [batch(["a"] * (1 + number // 3), rows) for number, rows in enumerate(sizes)]


def with_prefix(metadata: bytes, *, legacy: bool) -> bytes:
    message = encapsulate(metadata)
    return message[4:] if legacy else message


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_headers_say_what_the_batches_are(codec: str | None) -> None:
    sent = batches()
    messages = cut(ipc_stream(sent, sent[0].schema, compression=codec))
    headers = [read_header(message.metadata) for message in messages]
    rows = [header.rows for header in headers if header.header_type is HeaderType.RECORD_BATCH]
    assert rows == [batch.num_rows for batch in sent]
    assert {header.codec for header in headers[1:]} == {codec}
    assert headers[0][:6] == (HeaderType.SCHEMA, 0, 0, None, None, False)
    ids = [
        header.dictionary_id
        for header in headers
        if header.header_type is HeaderType.DICTIONARY_BATCH
    ]
    assert ids == [0, 0, 0]
    assert [header.body_length for header in headers] == [m.body_length for m in messages]


def test_deltas_are_told() -> None:
    sent = batches()
    options = {"emit_dictionary_deltas": True}
    headers = [read_header(m.metadata) for m in cut(ipc_stream(sent, sent[0].schema, **options))]
    deltas = [h.is_delta for h in headers if h.header_type is HeaderType.DICTIONARY_BATCH]
    assert deltas == [False, True, True]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_probe_reads_what_a_reader_of_headers_reads(legacy: bool) -> None:
    sent = batches() * 3
    probe = HeaderProbe()
    data = b""
    for message in cut(ipc_stream(sent, sent[0].schema)):
        at = len(data)
        prefixed = with_prefix(bytes(message.metadata), legacy=legacy)
        data += prefixed
        expected = read_header(message.metadata).rows
        assert probe.rows(data, at, len(prefixed), message.body_length) == expected


def test_a_probe_is_not_misled_by_other_messages_with_such_a_body() -> None:
    probe = HeaderProbe()
    batch = plain_batch(5, [(0, 0), (0, 64)], 64)
    crafter = Crafter()
    inner = crafter.batch(7, [(7, 0)], [(0, 0), (0, 64)])
    dictionary = crafter.message(DICTIONARY_BATCH, crafter.dictionary(3, inner), 64)
    empty = plain_batch(0, [(0, 0), (0, 64)], 64)
    for _ in range(3):
        for metadata, rows in ((batch, 5), (batch, 5), (dictionary, 0), (batch, 5), (empty, 0)):
            message = encapsulate(metadata)
            assert probe.rows(message, 0, len(message), 64) == rows


@pytest.mark.parametrize("times", [1, 2])
def test_a_body_of_another_length_than_expected_is_refused(times: int) -> None:
    message = encapsulate(plain_batch(5, [(0, 0), (0, 64)], 64))
    probe = HeaderProbe()
    for _ in range(times):
        assert probe.rows(message, 0, len(message), 64) == 5
    with pytest.raises(InvalidDataError, match="64 bytes, not 72 as expected"):
        probe.rows(message, 0, len(message), 72)


def test_messages_without_rows_have_none() -> None:
    assert read_header(empty_message(TENSOR, 64)).rows == 0
    assert read_header(empty_message(RECORD_BATCH)).rows == 0


def test_what_no_batch_may_say_is_refused() -> None:
    with pytest.raises(InvalidDataError, match="declares -3 rows"):
        read_header(plain_batch(-3, [], 0))
    crafter = Crafter()
    unknown = crafter.message(RECORD_BATCH, crafter.batch(1, [], [], codec=7))
    with pytest.raises(InvalidDataError, match="unknown codec 7"):
        read_header(unknown)
    with pytest.raises(InvalidDataError, match="no data"):
        read_header(empty_message(DICTIONARY_BATCH))


def test_the_compression_of_arrow_0_17_is_told() -> None:
    crafter = Crafter()
    pair = crafter.pair(crafter.text("ARROW:experimental_compression"), crafter.text("LZ4"))
    custom_metadata = crafter.vector([pair])
    batch = crafter.batch(1, [(1, 0)], [(0, 0), (0, 8)])
    metadata = crafter.message(RECORD_BATCH, batch, 8, custom_metadata=custom_metadata)
    assert read_header(metadata).codec == "lz4"


@given(st.binary(max_size=150), st.integers(0, 3))
def test_garbage_raises_protocol_errors_only(data: bytes, changes: int) -> None:
    metadata = bytearray(plain_batch(5, [(0, 0), (0, 64)], 64))
    for place, byte in zip(data[:changes], data[changes:], strict=False):
        metadata[place % len(metadata)] = byte
    probe = HeaderProbe()
    probe.rows(encapsulate(plain_batch(5, [(0, 0), (0, 64)], 64)), 0, 8 + len(metadata), 64)
    for garbage in (data, bytes(metadata)):
        for read in (
            lambda found=garbage: read_header(found),
            lambda found=garbage: probe.rows(found, 0, len(found), 64),
        ):
            try:
                read()
            except ProtocolError:
                pass
