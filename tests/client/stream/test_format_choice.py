"""The format ``auto`` takes Vortex where the link is slower than decoding."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.client.stream import format_choice
from splitarrow.client.stream.format_choice import FormatChooser
from splitarrow.errors import MissingExtraError, NotFoundError, remote_error

TABLE = pa.Table.from_batches([pa.record_batch({"n": range(150_000)})] * 12)


class Link:
    """Streams that deliver a batch of some bytes at each step of a clock."""

    def __init__(self, nbytes: int, seconds: float, batches: int = 100, ratio: float = 0.2) -> None:
        self._ratio, self._format = ratio, "arrow"
        self._nbytes, self._seconds, self._batches = nbytes, seconds, batches
        self.now = 0.0
        self.opened: list[tuple[str, int | None]] = []
        self.transport = "tcp"
        self.refusal: Exception | None = None
        self.bytes_received = 0

    def open(self, data_format: str, limit: int | None) -> Any:
        self.opened.append((data_format, limit))
        if data_format == "vortex" and self.refusal is not None:
            raise self.refusal
        self.bytes_received, self._format = 0, data_format
        return self

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_arguments: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        ratio = self._ratio if self._format == "vortex" else 1.0
        for _ in range(self._batches):
            self.now += self._seconds * ratio
            self.bytes_received += int(self._nbytes * ratio)
            yield SimpleNamespace(nbytes=self._nbytes)


@pytest.fixture
def chooser(monkeypatch: pytest.MonkeyPatch) -> FormatChooser:
    """A chooser of a process that decodes 1 GB/s."""
    monkeypatch.setattr(format_choice, "_measure_decoding", lambda: 1e9)
    return FormatChooser()


def choose(
    chooser: FormatChooser, link: Link, monkeypatch: pytest.MonkeyPatch, peer: str = "a"
) -> format_choice.FormatChoice:
    monkeypatch.setattr(format_choice, "perf_counter", lambda: link.now)
    return chooser.choose(peer, link.open)


@pytest.mark.parametrize(
    ("rate", "expected"), [(1e8, "vortex"), (8.9e8, "vortex"), (9.5e8, "arrow"), (5e9, "arrow")]
)
def test_slow_links_get_vortex(
    chooser: FormatChooser, monkeypatch: pytest.MonkeyPatch, rate: float, expected: str
) -> None:
    link = Link(1 << 20, (1 << 20) / rate)
    choice = choose(chooser, link, monkeypatch)
    assert choice.format == expected
    assert choice.link_rate == pytest.approx(rate, rel=0.01)
    assert choice.reason.endswith("and arrays decode at 1,000 MB/s")
    assert link.bytes_received <= 4 << 20
    assert choose(chooser, link, monkeypatch).format == expected
    assert [each for each in link.opened if each[0] == "arrow"] == [("arrow", None)]


@pytest.mark.parametrize("mbit", [100, 1000, 3000])
@pytest.mark.parametrize(("ratio", "expected"), [(0.3, "vortex"), (0.85, "vortex"), (1, "arrow")])
def test_data_that_does_not_shrink_stays_arrow(
    chooser: FormatChooser,
    monkeypatch: pytest.MonkeyPatch,
    mbit: float,
    ratio: float,
    expected: str,
) -> None:
    link = Link(1 << 20, (1 << 23) / (mbit * 1e6), ratio=ratio)
    choice = choose(chooser, link, monkeypatch)
    assert choice.format == expected
    assert choice.ratio == pytest.approx(ratio, rel=0.01)


def test_a_probe_ends_in_time_on_a_very_slow_link(
    chooser: FormatChooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(64 << 10, 0.1)
    assert choose(chooser, link, monkeypatch).format == "vortex"
    assert link.now < 0.6  # one probe of each format


def test_arrow_is_chosen_where_nothing_can_be_gained(
    chooser: FormatChooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Link(1 << 20, 1.0)
    local.transport = "shm"
    assert choose(chooser, local, monkeypatch).reason == "the server shares its memory"
    for small in (Link(1 << 10, 1.0, batches=3), Link(1 << 20, 0.001, batches=2)):
        assert "too small" in choose(chooser, small, monkeypatch).reason
    refusing = Link(1 << 20, 1.0)
    refusing.refusal = remote_error("FAILED_PRECONDITION", "the server cannot encode")
    choice = choose(chooser, refusing, monkeypatch)
    assert (choice.format, choice.reason) == ("arrow", "the server cannot encode")

    def fail() -> float:
        raise MissingExtraError("no vortex here")

    monkeypatch.setattr(format_choice, "_measure_decoding", fail)
    unable = Link(1 << 20, 1.0)
    choice = choose(FormatChooser(), unable, monkeypatch)
    assert (choice.format, choice.reason, unable.opened) == ("arrow", "no vortex here", [])


def test_decoding_is_measured() -> None:
    chooser = FormatChooser()
    rate = chooser.measure_decoding()
    assert 1e7 < rate < 1e12
    assert chooser.measure_decoding() == rate


@pytest.mark.parametrize(("rate", "expected"), [(1e15, "vortex"), (1.0, "arrow")])
async def test_reads_choose(monkeypatch: pytest.MonkeyPatch, rate: float, expected: str) -> None:
    monkeypatch.setattr(format_choice, "_measure_decoding", lambda: rate)
    chooser = FormatChooser()
    monkeypatch.setattr(format_choice.CHOOSER, "choose", chooser.choose)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with splitarrow.serve({"t": TABLE}, listen=listen, control="grpc://127.0.0.1:0") as server:
        with splitarrow.open(server.uri("t"), format="auto", columns="n") as stream:
            assert stream.format == expected
            assert stream.read_all() == TABLE
        async with splitarrow.aio.open(server.uri("t"), format="auto", filter="n < 7") as other:
            assert other.format == expected
            assert (await other.read_all()).num_rows == 84
        with splitarrow.open(server.uri("t", "shm"), format="auto") as stream:
            assert stream.format == "arrow"
        with splitarrow.connect(str(server.control_uri)) as client:
            for transport, found in (("tcp", expected), ("auto", "arrow")):
                with client.read("t", format="auto", transport=transport) as dataset:
                    assert dataset.format == found
                    assert dataset.read_all() == TABLE
            with pytest.raises(NotFoundError):
                client.read("nothing", format="auto")
