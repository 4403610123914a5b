"""Our reader and a server that was made from the wire document alone."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from helpers import wire_reader as reader
from helpers.arrow_data import make_arrays_of_all_types
from helpers.wire_writer import Manners, Writer
from splitarrow.client.open import open as open_stream
from splitarrow.errors import (
    ConnectionLostError,
    ExhaustedError,
    NotAPeerError,
    NotFoundError,
    ProtocolError,
    SplitArrowError,
    StallError,
    TransportError,
)

ORDERS = ["metadata first", "bodies first", "all bodies first", "backwards"]


def table() -> pa.Table:
    arrays = make_arrays_of_all_types()
    names = ["int64", "string", "list", "dictionary by int8", "string_view", "struct"]
    batch = pa.record_batch([arrays[name] for name in names], names=names)
    large = pa.concat_tables([pa.table(batch)] * 3000).combine_chunks()
    return pa.concat_tables([pa.table(batch), large, pa.table(batch.slice(1, 3))])


def stream_of(table: pa.Table, compression: Any = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


TABLE = table()
PLAIN = stream_of(TABLE)


def small() -> bytes:
    return stream_of(pa.concat_tables([pa.table({"n": [k, k + 1]}) for k in range(3)]))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("order", ORDERS)
def test_our_reader_reads_from_it(order: str, compression: str | None) -> None:
    stream = stream_of(TABLE, compression)
    with Writer(stream, Manners(order=order)) as writer, open_stream(writer.uri) as opened:
        assert opened.schema == TABLE.schema
        assert opened.read_all() == TABLE
        assert writer.tickets == [b"a name"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("repeat", [2, 3])
def test_duplicates_change_nothing(order: str, repeat: int) -> None:
    manners = Manners(order=order, repeat=repeat)
    with Writer(PLAIN, manners) as writer, open_stream(writer.uri) as opened:
        assert opened.read_all() == TABLE


@pytest.mark.parametrize("chunk", [1, 13, 4096])
def test_chunks_change_nothing(chunk: int) -> None:
    with Writer(small(), Manners(chunk=chunk)) as writer, open_stream(writer.uri) as opened:
        assert opened.read_all().to_pydict() == {"n": [0, 1, 1, 2, 2, 3]}


@pytest.mark.parametrize("order", ORDERS)
def test_two_servers_share_a_stream(order: str) -> None:
    manners = Manners(order=order)
    with Writer(PLAIN, manners, "metadata") as one, Writer(PLAIN, manners, "body") as other:
        for uris in ([one.uri, other.uri], [other.uri, one.uri]):
            with open_stream(uris) as opened:
                assert opened.read_all() == TABLE


def test_the_same_server_serves_again() -> None:
    with Writer(small()) as writer:
        for _ in range(3):
            with open_stream(writer.uri) as opened:
                assert opened.read_all().num_rows == 6


def test_a_cut_at_any_place_raises() -> None:
    """Before the preface, in it, in headers, metadata, bodies, between frames, before the end."""
    with Writer(small()) as whole:
        length = len(whole.manners.preface + b"".join(whole.frames()))
    for cut in [*range(0, 60, 3), *range(60, length, 97), length - 30, length - 29, length - 1]:
        with Writer(small(), Manners(cut=cut)) as writer:
            with pytest.raises(TransportError) as caught:
                read_all(writer.uri)
            expected = NotAPeerError if cut < 8 else ConnectionLostError
            assert isinstance(caught.value, expected), cut


def read_all(uri: str, stall_timeout: float = 20.0) -> pa.Table:
    with open_stream(uri, stall_timeout=stall_timeout) as opened:
        return opened.read_all()


def refused(manners: Manners, expected: type[SplitArrowError], match: str) -> None:
    with Writer(small(), manners) as writer, pytest.raises(expected, match=match):
        read_all(writer.uri)


def test_a_wrong_count_raises() -> None:
    refused(Manners(count=3), ProtocolError, "counts 3")
    refused(Manners(count=5, cut=1 << 30), ConnectionLostError, "missing: message 4")


def test_an_end_that_does_not_come_raises() -> None:
    refused(Manners(end=False, cut=1 << 30), ConnectionLostError, "or the end of the stream")


def test_a_last_body_that_does_not_come_raises() -> None:
    refused(Manners(leave_out={3}, cut=1 << 30), ConnectionLostError, "the body of message 3")


def test_reserved_bits_raise() -> None:
    refused(Manners(reserved=1 << 40), ProtocolError, "reserved")


def test_a_failure_of_the_server_is_raised_with_its_words() -> None:
    refused(Manners(failure=("RESOURCE_EXHAUSTED", "too many")), ExhaustedError, "too many")
    refused(Manners(failure=("NOT_FOUND", "no 'a name'")), NotFoundError, "no 'a name'")


@pytest.mark.parametrize("preface", [b"HTTP/1.1 400 Bad Request\r\n", b"SPLTARW\x02" + bytes(64)])
def test_another_preface_is_not_a_peer(preface: bytes) -> None:
    refused(Manners(preface=preface), NotAPeerError, "does not speak splitarrow")


def test_a_silent_server_stalls() -> None:
    manners = Manners(cut=300, silent=True)
    with Writer(small(), manners) as writer, pytest.raises(StallError):
        read_all(writer.uri, stall_timeout=0.1)


@pytest.mark.parametrize("order", ORDERS)
def test_the_two_made_from_the_document_understand_each_other(order: str) -> None:
    with Writer(PLAIN, Manners(order=order, repeat=2)) as writer:
        pairs = reader.read(writer.uri)
    assert pa.ipc.open_stream(reader.ipc_stream(pairs)).read_all() == TABLE


def test_the_reader_made_from_the_document_refuses_what_it_must() -> None:
    for manners in (
        Manners(reserved=1 << 40),
        Manners(cut=200),
        Manners(end=False, cut=1 << 30),
        Manners(failure=("INTERNAL", "broke")),
        Manners(preface=b"SPLTARW\x02"),
        Manners(leave_out={3}, cut=1 << 30),
    ):
        with Writer(small(), manners) as writer, pytest.raises(reader.WireError):
            reader.read(writer.uri)
