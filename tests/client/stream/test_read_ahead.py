"""Reading ahead by default: tried where it may pay, kept where it does, and never a batch lost."""

from __future__ import annotations

import gc
import threading
from collections import deque
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.clock import Clock
from helpers.waiting import wait_until
from splitarrow.client.stream import stream as blocking
from splitarrow.client.stream.read_ahead import Pace, ReadAhead, Run
from splitarrow.errors import ClosedError, ConnectionLostError

MIB = 1 << 20
BATCH = pa.record_batch([pa.array(range(1000), pa.int64())], names=["n"])


def pass_time(
    clock: Clock, pace: Pace, wait: float, work: float, seconds: float, nbytes: int = MIB
) -> bool:
    """Read and consume in turns for some time; return whether a thread was asked for."""
    end = clock.now + seconds
    while clock.now < end:
        entered = pace.enter()
        clock.now += wait
        if pace.wants_thread(entered, nbytes):
            return True
        clock.now += work
    return False


@pytest.mark.parametrize(
    ("wait", "work", "tries"),
    [
        (0.001, 0.001, True),
        (0.001, 0.003, True),
        (0.003, 0.001, True),
        (0.001, 0.0001, False),
        (0.0001, 0.001, False),
    ],
)
def test_a_thread_is_tried_where_it_can_save_a_fifth(wait: float, work: float, tries: bool) -> None:
    clock = Clock(100.0)
    assert pass_time(clock, Pace(clock), wait, work, 5.0) == tries


def test_a_short_read_tries_nothing() -> None:
    clock = Clock(100.0)
    pace = Pace(clock)
    assert not pass_time(clock, pace, 0.001, 0.001, 0.09)
    assert pass_time(clock, pace, 0.001, 0.001, 0.1)


def take_for(clock: Clock, pace: Pace, seconds_per_mib: float) -> bool:
    """Take from the thread until it was measured; return whether it is kept."""
    began = clock.now
    while clock.now < began + 0.2:
        clock.now += seconds_per_mib
        if not pace.keeps_thread(MIB):
            return False
    return True


def test_a_thread_that_makes_the_stream_faster_is_kept() -> None:
    clock = Clock(100.0)
    pace = Pace(clock)
    assert pass_time(clock, pace, 0.001, 0.001, 1.0)
    assert take_for(clock, pace, 0.0012)
    clock.now += 10  # A slow batch later does not matter.
    assert pace.keeps_thread(MIB)


def test_attempts_that_do_not_pay_become_rare() -> None:
    clock = Clock(100.0)
    pace = Pace(clock)
    pauses: list[float] = []
    for _ in range(4):
        began = clock.now
        assert pass_time(clock, pace, 0.001, 0.001, 20.0)
        pauses.append(clock.now - began)
        assert not take_for(clock, pace, 0.002)
    assert pauses == pytest.approx([0.1, 1, 2, 4], abs=0.09)


class Source:
    """Runs of batches that carry their number, and an error or the end after them."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.number = 0
        self.users: set[threading.Thread] = set()
        self.interrupted = threading.Event()
        self.blocks_at: int | None = None
        self.is_closed = False

    def read_run(self) -> Run:
        self.users.add(threading.current_thread())
        if self.number == self.blocks_at:
            assert self.interrupted.wait(60)
            raise ClosedError("interrupted")
        if self.number == self.count:
            if self.error is not None:
                raise self.error
            return deque()
        self.number += 1
        return deque([pa.record_batch([pa.array([self.number])], names=["n"])] * 3)

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        self.is_closed = True


class SetPace(Pace):
    """Wants and keeps a thread as a test says, by the number of the run."""

    def __init__(self, wanted: set[int], dropped: set[int]) -> None:
        super().__init__()
        self.wanted, self.dropped, self.number = wanted, dropped, 0

    def wants_thread(self, entered: float, nbytes: int) -> bool:
        self.number += 1
        return self.number in self.wanted

    def keeps_thread(self, nbytes: int) -> bool:
        self.number += 1
        return self.number not in self.dropped


def read_numbers(ahead: ReadAhead) -> list[int]:
    numbers: list[int] = []
    while run := ahead.next_run():
        numbers += [each["n"][0].as_py() for each in run]
    return numbers


@pytest.mark.parametrize("dropped", [set[int](), {3}, {3, 40}])
def test_no_batch_is_lost_or_repeated_by_a_thread(dropped: set[int]) -> None:
    source: Any = Source(100)
    ahead = ReadAhead(source, MIB, SetPace({2, 30, 60}, dropped))
    assert read_numbers(ahead) == [number for number in range(1, 101) for _ in range(3)]
    assert not ahead.next_run()
    assert len(source.users) > 1
    ahead.close()


def test_an_error_follows_the_batches_before_it() -> None:
    source: Any = Source(20, ConnectionLostError("lost"))
    ahead = ReadAhead(source, MIB, SetPace({2}, set()))
    runs = [ahead.next_run() for _ in range(20)]
    assert [run[0]["n"][0].as_py() for run in runs] == [*range(1, 21)]
    with pytest.raises(ConnectionLostError, match="lost"):
        ahead.next_run()


def test_what_waits_is_bounded() -> None:
    source: Any = Source(1000)
    nbytes = 3 * pa.record_batch([pa.array([1])], names=["n"]).get_total_buffer_size()
    ahead = ReadAhead(source, 5 * nbytes, SetPace({1}, set()))
    ahead.next_run()
    wait_until(lambda: source.number == 6)
    assert ahead.next_run()
    wait_until(lambda: source.number == 7)
    ahead.close()
    assert source.number == 7


def test_closing_interrupts_a_thread_that_waits() -> None:
    source: Any = Source(100)
    source.blocks_at = 5
    ahead = ReadAhead(source, MIB, SetPace({1}, set()))
    ahead.next_run()
    wait_until(lambda: source.number == 5)
    ahead.close()
    assert source.is_closed
    assert not [
        each for each in source.users if each.name == "splitarrow-read-ahead" and each.is_alive()
    ]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams read ahead from their second run."""
    monkeypatch.setattr(blocking, "Pace", lambda: SetPace({1}, set()))
    monkeypatch.setattr(blocking, "has_second_core", lambda: True)


def list_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "splitarrow-read-ahead"]


def reads_ahead(stream: Any) -> bool:
    return stream._read_ahead.reader is not None


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("rows", [1000, 100_000])
def test_a_stream_yields_what_it_yields_without_a_thread(rows: int) -> None:
    batches = [pa.record_batch([pa.array(range(k, k + rows))], names=["n"]) for k in range(40)]
    with splitarrow.serve({"data": pa.Table.from_batches(batches)}) as server:
        with splitarrow.open(server.uri("data")) as stream:
            assert next(stream) == batches[0]
            assert reads_ahead(stream)
            assert list(stream) == batches[1:]
            assert stream.is_exhausted
            assert stream.rows_received == 40 * rows
        assert not list_threads()
        with splitarrow.open(server.uri("data"), prefetch_bytes=0) as stream:
            assert next(stream) == batches[0]
            assert not reads_ahead(stream)


@pytest.mark.usefixtures("eager")
def test_a_stream_that_is_dropped_ends_its_thread_and_its_connection() -> None:
    table = pa.Table.from_batches([BATCH] * 20_000)
    with splitarrow.serve({"data": table}) as server:
        stream: Any = splitarrow.open(server.uri("data"))
        assert next(stream) == BATCH
        assert list_threads()
        assert server.stats()["streams"] == 1
        del stream
        gc.collect()
        wait_until(lambda: not list_threads())
        wait_until(lambda: server.stats()["streams"] == 0)


@pytest.mark.usefixtures("eager")
def test_a_closed_stream_yields_nothing_more() -> None:
    table = pa.Table.from_batches([BATCH] * 20_000)
    with splitarrow.serve({"data": table}) as server:
        stream = splitarrow.open(server.uri("data"))
        assert next(stream) == BATCH
        stream.close()
        assert not list_threads()
        with pytest.raises(ClosedError):
            next(stream)
