"""Leases are returned once, in few messages, also when the stream or the connection ends."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any

import pytest

from helpers.waiting import wait_until
from splitarrow.client.stream import remote_bodies
from splitarrow.client.stream.remote_bodies import LeaseReturns, track_leases
from splitarrow.errors import ConnectionLostError
from splitarrow.protocol.payloads import parse_offsets

FREE_DATA = 0x10000000002


class Channel:
    """A channel that takes everything at once."""

    bytes_sent = 0
    send_waits_readable = False

    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.ended: list[str] = []
        self.is_lost = False
        self._frames: list[Any] = []

    def queue(self, frames: Any) -> None:
        self._frames += frames

    def send_some(self) -> bool:
        if self.is_lost:
            raise ConnectionLostError("lost")
        for frame in self._frames:
            assert frame.tag == FREE_DATA
            payload = b"".join(frame.buffers)
            assert frame.nbytes == len(payload)
            self.messages.append(parse_offsets(payload, limit=1 << 20))
        self._frames.clear()
        return True

    def close(self) -> None:
        self.ended.append("closed")

    def abort(self) -> None:
        self.ended.append("aborted")

    def interrupt(self) -> None:
        self.ended.append("interrupted")


@pytest.fixture
def channel() -> Any:
    return Channel()


def test_offsets_that_are_freed_together_are_returned_together(channel: Any) -> None:
    returns = track_leases(channel, FREE_DATA)
    leases = [returns.lease((8 * number, 8 * number + 1)) for number in range(3)]
    del leases
    wait_until(lambda: sum(map(len, channel.messages)) == 6)
    returned = [offset for message in channel.messages for offset in message]
    assert sorted(returned) == [0, 1, 8, 9, 16, 17]
    (sender,) = (each for each in threading.enumerate() if each.name == "splitarrow-returns")
    assert sender.daemon  # A program can end while it holds leases.
    lease = returns.lease((99,))
    assert channel.ended == []
    del lease
    wait_until(lambda: channel.messages[-1] == [99])


class _Woken:
    """Freed leases that note when they are flushed."""

    def __init__(self, flushed: list[str], name: str) -> None:
        self.flush = lambda: flushed.append(name)


def test_all_connections_with_freed_leases_are_flushed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_bodies, "COLLECT_SECONDS", 0)
    woken, flushed = queue.SimpleQueue[Any](), list[str]()
    one, other = _Woken(flushed, "1"), _Woken(flushed, "2")
    for returns in (one, other, one):
        woken.put(returns)
    remote_bodies._flush_next(woken)
    assert sorted(flushed) == ["1", "2"]
    assert woken.empty()


def test_a_message_has_a_limited_number_of_offsets(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_bodies, "_MAX_OFFSETS", 4)
    returns = LeaseReturns(channel, FREE_DATA)
    returns._freed.add(range(10))
    returns.flush()
    assert channel.messages == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_connection_lingers_until_its_last_lease_is_returned(channel: Any) -> None:
    returns = track_leases(channel, FREE_DATA)
    assert not returns.linger()
    first, second = returns.lease((1,)), returns.lease((2,))
    assert returns.linger()
    del first
    wait_until(lambda: channel.messages == [[1]])
    assert channel.ended == []
    del second
    wait_until(lambda: channel.ended == ["closed"])
    assert channel.messages == [[1], [2]]
    assert not returns.linger()


def test_a_lost_connection_returns_nothing(channel: Any) -> None:
    returns = track_leases(channel, FREE_DATA)
    lease, other = returns.lease((1,)), returns.lease((2,))
    assert returns.linger()
    channel.is_lost = True
    del lease
    wait_until(lambda: channel.ended == ["closed"])
    assert not returns.linger()
    channel.is_lost = False
    del other
    returns.flush()
    assert channel.messages == []


def test_without_a_tag_nothing_is_returned(channel: Any) -> None:
    returns = LeaseReturns(channel, None)
    returns.lease((1,))
    assert not returns.linger()
    returns.flush()
    assert channel.messages == []


@pytest.mark.parametrize("abort", [False, True])
def test_a_closed_connection_returns_nothing(channel: Any, abort: bool) -> None:
    returns = LeaseReturns(channel, FREE_DATA)
    returns._freed.add([1])
    returns.close(abort=abort)
    returns.flush()
    assert channel.ended == ["aborted" if abort else "closed"]
    assert channel.messages == []


@pytest.mark.parametrize("abort", [False, True])
def test_closing_waits_for_a_message_that_is_being_sent(channel: Any, abort: bool) -> None:
    returns = LeaseReturns(channel, FREE_DATA)
    with returns._send_lock:
        thread = threading.Thread(target=lambda: returns.close(abort=abort))
        thread.start()
        if abort:
            wait_until(lambda: channel.ended == ["interrupted"])
        else:
            thread.join(0.01)
            assert channel.ended == []
    thread.join()
    assert channel.ended[-1] == ("aborted" if abort else "closed")
    assert returns._send_lock.acquire(blocking=False)


def test_a_forked_child_returns_nothing(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = LeaseReturns(channel, FREE_DATA)
    lease = returns.lease((1,))
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert not returns.linger()
        returns._freed.add([1])
        returns.flush()
        returns.close(abort=True)
    assert (channel.messages, channel.ended) == ([], ["aborted"])
    del lease
