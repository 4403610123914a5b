"""Received bodies: their alignment and the lifetime of their memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from splitarrow.protocol.frames import MessageRun
from splitarrow.protocol.memory import BodyPool, ReceivedBody


@pytest.mark.parametrize("headroom", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("nbytes", [0, 1, 64, 4097])
def test_a_payload_is_aligned_and_has_headroom(nbytes: int, headroom: int) -> None:
    body = BodyPool().allocate(nbytes, headroom)
    assert body.start >= headroom
    assert body.view.nbytes == body.start + nbytes
    assert body.payload().size == body.nbytes == nbytes
    assert body.payload().address % 64 == 0 or nbytes == 0
    assert not body.view.readonly


def test_no_more_memory_is_reserved_than_alignment_needs() -> None:
    for nbytes, headroom in [(0, 0), (1, 0), (64, 1), (65, 64), (4096, 65), (1 << 20, 128)]:
        padded = (-(-headroom // 64) * 64, -(-nbytes // 64) * 64)
        body = BodyPool().allocate(nbytes, headroom)
        assert (body.start, body.buffer.size) == (padded[0], padded[0] + nbytes)
        assert MessageRun.stride_of(nbytes, headroom) == sum(padded)
        buffer = pa.allocate_buffer(3 * sum(padded))
        run = MessageRun(7, b"m", nbytes, headroom, 3, buffer)
        assert (run.start, run.stride) == (padded[0], sum(padded))
        for index in range(3):
            one = run.body(index)
            assert (one.start, one.nbytes) == (padded[0], nbytes)
            assert one.buffer.address == buffer.address + index * sum(padded)
            assert len(one.view) == one.buffer.size == padded[0] + nbytes


@pytest.mark.parametrize("headroom", [0, 100])
@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 9])
def test_a_copy_contains_the_payload(payload: bytes, headroom: int) -> None:
    body = ReceivedBody.copy(payload, headroom)
    assert bytes(body) == payload
    assert body.payload().to_pybytes() == payload


def test_a_copy_of_wider_items_counts_bytes() -> None:
    assert ReceivedBody.copy(memoryview(b"abcdefgh").cast("I")).nbytes == 8


def test_wrapping_shares_the_memory() -> None:
    buffer = pa.py_buffer(b"abc")
    body = ReceivedBody.wrap(buffer)
    assert body.payload().address == buffer.address
    assert (bytes(body), body.nbytes, body.start) == (b"abc", 3, 0)


def test_the_payload_outlives_the_body() -> None:
    body = ReceivedBody.copy(b"abc" * 1000, 64)
    payload = body.payload()
    del body
    assert payload.to_pybytes() == b"abc" * 1000
