"""Keep-alives show that a server works. They bring nothing new, and their number is bounded."""

from __future__ import annotations

import pytest

from helpers.streams import FORMATS, feed_frames, receive_frames, small_stream
from splitarrow.errors import LimitError, ProtocolError
from splitarrow.protocol.frames import IncomingFrame, ReceivedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message
from splitarrow.protocol.payloads import (
    KEEP_ALIVES_PER_TIMEOUT,
    MIN_INTERVAL,
    pack_interval,
    parse_interval,
)
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.splitter import Splitter
from splitarrow.protocol.uri import DataUri, Streams

TAG = 0x10000000003
KEEP_ALIVE = ReceivedFrame(TAG, ReceivedBody.copy(b""))


def make_reassembler(limits: Limits = DEFAULT_LIMITS) -> Reassembler:
    return Reassembler(FORMATS, limits, keep_alive_tags={TAG})


def frames_with_keep_alives(streams: Streams) -> list[IncomingFrame]:
    """Return the frames of a stream over one connection, with keep-alives between them."""
    splitter = Splitter(streams)
    frames: list[IncomingFrame] = [KEEP_ALIVE]
    for message in small_stream():
        for frame in receive_frames(splitter.split([message])):
            frames += [frame, KEEP_ALIVE]
    return frames + receive_frames(splitter.end())


def test_keep_alives_are_counted_and_ignored() -> None:
    reassembler, ready = make_reassembler(), list[Message]()
    feed_frames(reassembler, frames_with_keep_alives(Streams.BOTH), ready)
    assert reassembler.finished
    assert [message.sequence for message in ready] == [0, 1, 2, 3]
    assert (reassembler.keep_alives.total, reassembler.duplicates) == (8, 0)


def test_each_of_two_connections_has_keep_alives() -> None:
    reassembler, ready = make_reassembler(), list[Message]()
    feed_frames(reassembler, frames_with_keep_alives(Streams.BODY), ready, Streams.BODY)
    feed_frames(reassembler, frames_with_keep_alives(Streams.METADATA), ready, Streams.METADATA)
    assert reassembler.finished
    assert len(ready) == 4
    assert reassembler.keep_alives.total == 9


@pytest.mark.parametrize("streams", Streams)
def test_keep_alives_in_succession_are_bounded(streams: Streams) -> None:
    reassembler = make_reassembler(Limits(duplicates=3))
    feed_frames(reassembler, [KEEP_ALIVE] * 3, [], streams)
    with pytest.raises(LimitError, match="4 keep-alives arrived in succession; the limit is 3"):
        feed_frames(reassembler, [KEEP_ALIVE], [], streams)


def test_a_keep_alive_is_no_progress() -> None:
    reassembler = make_reassembler()
    before = reassembler.position
    feed_frames(reassembler, [KEEP_ALIVE], [])
    assert reassembler.position == before


@pytest.mark.parametrize("streams", Streams)
def test_every_other_frame_is_progress(streams: Streams) -> None:
    reassembler = make_reassembler()
    for frame in frames_with_keep_alives(streams):
        before = reassembler.position
        feed_frames(reassembler, [frame], [], streams)
        assert (reassembler.position == before) is (frame == KEEP_ALIVE)


def test_a_reader_without_the_tag_refuses_keep_alives() -> None:
    with pytest.raises(ProtocolError, match="reserved bits"):
        feed_frames(Reassembler(FORMATS), [KEEP_ALIVE], [])


def test_the_interval_is_milliseconds() -> None:
    assert pack_interval(10) == (10_000).to_bytes(4, "little")
    assert parse_interval(pack_interval(2.5)) == 2.5
    assert parse_interval(pack_interval(0)) == MIN_INTERVAL
    assert parse_interval(pack_interval(1e12)) == pytest.approx((2**32 - 1) / 1000)


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0, 1), (-5, 1), (0.0014, 1), (0.002, 2), (4294967.294, 2**32 - 2), (1e12, 2**32 - 1)],
)
def test_an_interval_is_sent_within_its_32_bits(seconds: float, milliseconds: int) -> None:
    assert int.from_bytes(pack_interval(seconds), "little") == milliseconds


@pytest.mark.parametrize(("milliseconds", "seconds"), [(0, 0.1), (100, 0.1), (101, 0.101)])
def test_a_server_sends_ten_keep_alives_a_second_at_most(milliseconds: int, seconds: float) -> None:
    assert parse_interval(milliseconds.to_bytes(4, "little")) == seconds


def test_a_reader_may_miss_two_of_three_keep_alives() -> None:
    assert KEEP_ALIVES_PER_TIMEOUT == 3


@pytest.mark.parametrize("payload", [b"", b"\1\0\0", b"\1\0\0\0\0"])
def test_an_interval_of_another_size_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"has {len(payload)} bytes; expected 4"):
        parse_interval(payload)


def test_a_uri_names_the_tag() -> None:
    text = "tcp://host:1?want_data=0x10000000001&keep_alive=0x10000000003"
    assert DataUri.parse(text).keep_alive == 0x10000000003
    assert str(DataUri.parse(text)) == text
