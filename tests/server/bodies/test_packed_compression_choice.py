"""The choice of a compression: pure decisions from figures."""

from __future__ import annotations

import pytest

from splitarrow.server.bodies.packed import WINDOW_BYTES, CodecSample, CompressionChoice

LZ4 = CodecSample("lz4", ratio=0.4, bytes_per_second=600e6)
ZSTD = CodecSample("zstd", ratio=0.25, bytes_per_second=300e6)
NOISE = [CodecSample("lz4", 1.0, 900e6), CodecSample("zstd", 1.0, 500e6)]


class Link:
    """A link of some speed, and a reader that takes data at some rate."""

    def __init__(self, rate: float, reader: float = 1e12, samples: list[CodecSample] | None = None):
        self.rate, self.reader = rate, reader
        self.samples = [LZ4, ZSTD] if samples is None else samples
        self.choice = CompressionChoice()
        self.plain = self.seconds = 0.0
        self.history: list[str | None] = []

    def send(self, windows: int) -> None:
        """Send windows of data, and measure what a server would."""
        for _ in range(windows):
            codec = self.choice.codec
            sample = next((each for each in self.samples if each.codec == codec), None)
            ratio = 1.0 if sample is None else sample.ratio
            compressing = 0.0 if sample is None else WINDOW_BYTES / sample.bytes_per_second
            sending = WINDOW_BYTES * ratio / self.rate
            seconds = max(compressing + sending, WINDOW_BYTES / self.reader)
            if sample is not None:
                seconds = max(seconds, WINDOW_BYTES / self.reader * 1.5)  # it decompresses
            waits = seconds - compressing
            self.choice.record(WINDOW_BYTES, int(WINDOW_BYTES * ratio), waits, seconds)
            self.plain += max(WINDOW_BYTES / self.rate, WINDOW_BYTES / self.reader)
            self.seconds += seconds
            self.history.append(codec)
            if self.choice.wants_samples:
                self.choice.choose(self.samples)


@pytest.mark.parametrize("rate", [1e6, 12e6, 60e6])
def test_a_slow_link_is_compressed_with_the_better_codec(rate: float) -> None:
    link = Link(rate)
    link.send(300)
    assert link.choice.codec == "zstd"
    assert link.seconds < 0.5 * link.plain


def test_the_faster_codec_is_chosen_for_a_faster_link() -> None:
    link = Link(200e6)
    link.send(20)
    assert link.choice.codec == "lz4"


@pytest.mark.parametrize("rate", [2e9, 5e9])
def test_a_fast_link_takes_no_samples(rate: float) -> None:
    link = Link(rate, samples=[])
    link.send(1000)
    assert link.history == [None] * 1000
    assert link.seconds == link.plain


@pytest.mark.parametrize("rate", [1e6, 100e6])
def test_data_that_does_not_shrink_is_never_compressed(rate: float) -> None:
    link = Link(rate, samples=NOISE)
    link.send(300)
    assert set(link.history) == {None}


def test_a_slow_reader_on_a_fast_link_costs_few_trials() -> None:
    """The rate is that of the reader, which is slower still if it has to decompress."""
    link = Link(3e9, reader=150e6)
    link.send(1000)
    assert len([codec for codec in link.history if codec]) <= 20
    assert link.seconds < 1.02 * link.plain


def test_compression_ends_when_the_link_becomes_faster() -> None:
    link = Link(10e6)
    link.send(20)
    assert link.choice.codec == "zstd"
    link.rate = 3e9
    link.send(20)
    assert link.choice.codec is None


def test_compression_begins_when_the_link_becomes_slower() -> None:
    link = Link(3e9)
    link.send(50)
    link.rate = 10e6
    link.send(10)
    assert link.choice.codec == "zstd"


def test_nothing_is_decided_before_a_window_is_complete() -> None:
    choice = CompressionChoice()
    choice.record(1000, 1000, 0.1, 0.1)
    assert not choice.wants_samples
    choice.record(1000, 1000, 0.1, 0.2)
    assert choice.wants_samples
    choice.choose([])
    assert (choice.codec, choice.wants_samples) == (None, False)
