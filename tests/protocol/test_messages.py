"""Messages of the metadata stream, and the payload of failures."""

from __future__ import annotations

import json

import pytest

from splitarrow.errors import (
    DeniedError,
    ExhaustedError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    ProtocolError,
    RemoteError,
    UnavailableError,
)
from splitarrow.protocol.messages import (
    FAILURE_BYTES,
    MetadataType,
    failure_payload,
    metadata_message,
    parse_failure,
    parse_metadata_prefix,
)
from splitarrow.protocol.sequence import LAST


@pytest.mark.parametrize("kind", list(MetadataType))
@pytest.mark.parametrize("sequence", [0, 1, LAST])
def test_the_prefix_gives_back_what_it_was_made_of(kind: MetadataType, sequence: int) -> None:
    payload = b"" if kind is MetadataType.END_OF_STREAM else b"abc"
    assert parse_metadata_prefix(metadata_message(kind, sequence, payload)) == (kind, sequence)


def test_the_layout_of_a_message() -> None:
    assert metadata_message(MetadataType.MESSAGE, 0x0403_0201, b"xy") == b"\x01\x01\x02\x03\x04xy"


def test_an_end_of_stream_has_exactly_5_bytes() -> None:
    end = metadata_message(MetadataType.END_OF_STREAM, 4)
    assert end == b"\0\x04\0\0\0"
    with pytest.raises(ProtocolError, match="4 bytes is too short"):
        parse_metadata_prefix(end[:4])
    with pytest.raises(ProtocolError, match="end of stream of 6 bytes"):
        parse_metadata_prefix(end + b"\0")


@pytest.mark.parametrize("length", range(5))
def test_a_message_shorter_than_its_prefix_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="too short"):
        parse_metadata_prefix(bytes([1]) * length)


@pytest.mark.parametrize("kind", range(4, 256))
def test_each_unknown_type_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown metadata type {kind}") as caught:
        parse_metadata_prefix(bytes([kind, 7, 0, 0, 0, 1]))
    assert caught.value.sequence == 7


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("NOT_FOUND", NotFoundError),
        ("INVALID_ARGUMENT", InvalidRequestError),
        ("UNAUTHENTICATED", DeniedError),
        ("PERMISSION_DENIED", DeniedError),
        ("RESOURCE_EXHAUSTED", ExhaustedError),
        ("UNAVAILABLE", UnavailableError),
        ("DATA_LOSS", RemoteError),
        ("a code of the future", RemoteError),
    ],
)
def test_a_failure_arrives_as_the_error_of_its_code(code: str, expected: type) -> None:
    error = parse_failure(failure_payload(code, "no 'flihgts' – did you mean…"), stream="s")
    assert type(error) is expected
    assert (error.code, error.message, error.stream) == (code, "no 'flihgts' – did you mean…", "s")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"code"',
        b"17",
        b'{"code": "X"}',
        b'{"message": "X"}',
        b'{"code": 5, "message": "X"}',
        b'{"code": "X", "message": null}',
        b"\xff\xfe",
        b"[" * 5000,
        b'{"code": "X", "message": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_malformed_failure_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="failure message"):
        parse_failure(payload)


def test_a_failure_is_bounded() -> None:
    padding = b" " * (FAILURE_BYTES - len(failure_payload("X", "y")))
    assert parse_failure(failure_payload("X", "y") + padding).message == "y"
    with pytest.raises(LimitError, match="failure message"):
        parse_failure(failure_payload("X", "y") + padding + b" ")


def test_a_long_reason_is_cut_so_that_the_reader_takes_it() -> None:
    error = parse_failure(failure_payload("INTERNAL", "\U0001f600" * 100_000))
    assert set(error.message) == {"\U0001f600"}


def test_a_reason_with_half_a_surrogate_pair_becomes_text() -> None:
    """File names that are not UTF-8 look so in Python, and JSON can spell them."""
    assert parse_failure(failure_payload("X", "no file a\udcff")).message == "no file a?"
    sent = json.dumps({"code": "X\ud800", "message": "a\udcff"}).encode()
    error = parse_failure(sent)
    assert (error.code, error.message) == ("X?", "a?")
