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
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import (
    MetadataType,
    pack_failure,
    pack_metadata,
    parse_failure,
    parse_metadata_prefix,
)
from splitarrow.protocol.tags import MAX_SEQUENCE


@pytest.mark.parametrize("kind", list(MetadataType))
@pytest.mark.parametrize("sequence", [0, 1, MAX_SEQUENCE])
def test_a_prefix_round_trips(kind: MetadataType, sequence: int) -> None:
    payload = b"" if kind is MetadataType.END_OF_STREAM else b"abc"
    assert parse_metadata_prefix(pack_metadata(kind, sequence, payload)) == (kind, sequence)


def test_the_layout_of_a_message() -> None:
    assert pack_metadata(MetadataType.ARROW, 0x0403_0201, b"xy") == b"\x01\x01\x02\x03\x04xy"


def test_an_end_of_stream_has_exactly_5_bytes() -> None:
    end = pack_metadata(MetadataType.END_OF_STREAM, 4)
    assert end == b"\0\x04\0\0\0"
    with pytest.raises(ProtocolError, match="has 4 bytes; expected at least 5"):
        parse_metadata_prefix(end[:4])
    with pytest.raises(ProtocolError, match="end of stream has 6 bytes; expected 5"):
        parse_metadata_prefix(end + b"\0")


def test_a_message_shorter_than_its_prefix_is_refused() -> None:
    for length in range(5):
        with pytest.raises(ProtocolError, match=f"has {length} bytes; expected at least 5"):
            parse_metadata_prefix(bytes([1]) * length)


def test_each_unknown_type_is_refused() -> None:
    for kind in range(4, 256):
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
    error = parse_failure(
        pack_failure(code, "no 'flihgts' – did you mean…"), DEFAULT_LIMITS, stream="s"
    )
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
        parse_failure(payload, DEFAULT_LIMITS)


def test_a_failure_is_bounded() -> None:
    padding = b" " * (DEFAULT_LIMITS.failure_bytes - len(pack_failure("X", "y")))
    assert parse_failure(pack_failure("X", "y") + padding, DEFAULT_LIMITS).message == "y"
    with pytest.raises(LimitError, match="failure message"):
        parse_failure(pack_failure("X", "y") + padding + b" ", DEFAULT_LIMITS)


def test_a_long_reason_is_truncated_to_the_limit_of_readers() -> None:
    error = parse_failure(pack_failure("INTERNAL", "\U0001f600" * 100_000), DEFAULT_LIMITS)
    assert error.message == "\U0001f600" * 4000


def test_a_reason_with_half_a_surrogate_pair_becomes_text() -> None:
    """Python represents file names that are not UTF-8 like this, and JSON can encode them."""
    assert (
        parse_failure(pack_failure("X", "no file a\udcff"), DEFAULT_LIMITS).message == "no file a?"
    )
    sent = json.dumps({"code": "X\ud800", "message": "a\udcff"}).encode()
    error = parse_failure(sent, DEFAULT_LIMITS)
    assert (error.code, error.message) == ("X?", "a?")
