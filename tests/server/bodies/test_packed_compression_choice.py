"""The choice of a compression: pure decisions from figures."""

from __future__ import annotations

from typing import Any

import pytest

from splitarrow.protocol.splitter import SourceMessage
from splitarrow.server.bodies.packed import (
    WINDOW_BYTES,
    AdaptiveCompression,
    CodecSample,
    CompressionChoice,
    LinkCounters,
    choose_codec,
)
from splitarrow.server.catalog.dataset import GeneratorSource

LZ4 = CodecSample("lz4", ratio=0.4, bytes_per_second=600e6)
ZSTD = CodecSample("zstd", ratio=0.25, bytes_per_second=300e6)
NOISE = [CodecSample("lz4", 1.0, 900e6), CodecSample("zstd", 1.0, 500e6)]


class Link:
    """A link of some speed, and a reader that takes data at some rate."""

    def __init__(self, rate: float, reader: float = 1e12, samples: list[CodecSample] | None = None):
        self.rate, self.reader = rate, reader
        self.samples = [LZ4, ZSTD] if samples is None else samples
        self.choice = CompressionChoice()
        self.link = LinkCounters(0, 0)
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
            seconds = max(compressing, sending, WINDOW_BYTES / self.reader)
            if sample is not None:
                seconds = max(seconds, WINDOW_BYTES / self.reader * 1.5)  # it decompresses
            sent = int(WINDOW_BYTES * ratio)
            # What the kernel has not sent yet, it sends while the next data is compressed.
            self.link = LinkCounters(
                self.link.acked_bytes + sent, self.link.busy_seconds + max(sending, seconds / 50)
            )
            waits = seconds - compressing
            self.choice.record(WINDOW_BYTES, sent, waits, seconds, self.link)
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
    choice.record(1000, 1000, 0.04, 0.04, LinkCounters(900, 0.04))
    assert not choice.wants_samples
    choice.record(1000, 1000, 0.07, 0.07, LinkCounters(2000, 0.11))
    assert choice.wants_samples
    choice.choose([])
    assert (choice.codec, choice.wants_samples) == (None, False)


def test_data_in_the_buffers_of_the_kernel_is_not_the_speed_of_the_link() -> None:
    """The kernel took 4 MB at once, which counted as a link that no codec can beat."""
    choice = CompressionChoice()
    choice.record(WINDOW_BYTES, WINDOW_BYTES, 0.0, 0.001, LinkCounters(12_000, 0.001))
    choice.record(1 << 20, 1 << 20, 0.1, 0.1, LinkCounters(1_250_000, 0.1))
    assert choice.wants_samples
    choice.choose([LZ4, ZSTD])
    assert choice.codec == "zstd"


TEXT = [CodecSample("lz4", 0.5, 500e6), CodecSample("zstd", 0.34, 180e6)]
INTEGERS = [CodecSample("lz4", 0.33, 700e6), CodecSample("zstd", 0.2, 400e6)]
DOUBLES = [CodecSample("lz4", 0.99, 1500e6), CodecSample("zstd", 0.9, 250e6)]


@pytest.mark.parametrize(
    ("mbit", "samples", "codec"),
    [
        (100, NOISE, None),
        (1000, NOISE, None),
        (3000, NOISE, None),
        (100, TEXT, "zstd"),
        (1000, TEXT, "lz4"),
        (3000, TEXT, "lz4"),
        (100, INTEGERS, "zstd"),
        (1000, INTEGERS, "zstd"),
        (3000, INTEGERS, "lz4"),
        (100, DOUBLES, "zstd"),
        (1000, DOUBLES, "zstd"),
        (3000, DOUBLES, None),
        (8000, INTEGERS, None),
        (1000, [], None),
    ],
)
def test_the_codec_for_a_link_and_data(
    mbit: float, samples: list[CodecSample], codec: str | None
) -> None:
    best = choose_codec(mbit * 1e6 / 8, samples)
    assert (best and best.codec) == codec


def test_a_source_that_is_prepared_ends_with_the_original() -> None:
    """Even before its first message, when its generator has not begun."""
    closed: list[str] = []
    source = GeneratorSource((messages for messages in list[list[SourceMessage]]()), blocking=True)
    source.call_on_close(lambda: closed.append("original"))
    channel: Any = None  # It is used once something has been sent.
    AdaptiveCompression(channel).prepare(source).close()
    assert closed == ["original"]


@pytest.mark.parametrize(
    ("speeds", "kept"),
    [
        ([1, 0.5, 0.5, 0.5], [True, True, True, False]),
        ([1, 0.5, 0.5, 1.04], [True, True, True, False]),
        ([1, 0.5, 1.06, 0.5, 0.5, 0.5], [True] * 6),
        ([9, 0.5, 0.5, 0.5], [True, True, True, False]),
    ],
)
def test_a_trial_has_four_windows_to_be_faster(speeds: list[float], kept: list[bool]) -> None:
    """The first does not count: it has what was sent before the trial."""
    choice, link = CompressionChoice(), LinkCounters(0, 0)

    def send(speed: float, ratio: float) -> bool:
        nonlocal link
        raw, seconds = int(20e6 * speed), 0.2
        link = LinkCounters(link.acked_bytes + raw * ratio, link.busy_seconds + seconds)
        choice.record(raw, int(raw * ratio), seconds, seconds, link)
        return choice.codec is not None

    send(1, 1)
    choice.choose([LZ4])
    assert choice.codec == "lz4"
    assert [send(speed, 0.4) for speed in speeds] == kept
    if not kept[-1]:  # The next trial is not at once.
        send(1, 1)
        assert not choice.wants_samples
        send(1, 1)
        assert choice.wants_samples


@pytest.mark.parametrize(
    ("samples", "pauses"),
    [([], [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]), ([LZ4], [1, 3, 2, 4, 8, 16, 16, 16, 16, 16])],
)
def test_the_pauses_between_choices_grow(samples: list[CodecSample], pauses: list[int]) -> None:
    choice, link, found = CompressionChoice(), LinkCounters(0, 0), list[int]()
    for _ in pauses:
        windows = 0
        while not choice.wants_samples:
            windows += 1
            raw = int(20e6 if choice.codec is None else 50e6)
            sent = int(raw * (1 if choice.codec is None else 0.4))
            link = LinkCounters(link.acked_bytes + sent, link.busy_seconds + 0.2)
            choice.record(raw, sent, 0.2, 0.2, link)
        found.append(windows)
        choice.choose(samples)
    assert found == pauses
