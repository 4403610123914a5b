"""Timers that have a descriptor."""

from __future__ import annotations

import os
import select
from types import SimpleNamespace
from typing import Any

import pytest

from splitarrow.transport.ucx import worker
from splitarrow.transport.ucx.worker import Wakeup


def is_readable(descriptor: int, seconds: float = 0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_a_timer_is_readable_once_it_has_expired() -> None:
    timer = worker.create_timer()
    try:
        assert not is_readable(timer)
        worker.start_timer(timer, 1_500_000_000_000)
        assert not is_readable(timer)
        worker.start_timer(timer, 1)
        assert is_readable(timer, 10)
        worker.start_timer(timer, 0)
        assert not is_readable(timer)
        assert not os.get_inheritable(timer)
        assert not os.get_blocking(timer)
    finally:
        os.close(timer)


def test_the_time_of_a_timer_is_in_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def start(timer: int, flags: int, value: Any, old: Any) -> None:
        times = value.it_value.tv_sec, value.it_value.tv_nsec, value.it_interval.tv_nsec
        started.append((timer, flags, *times))

    monkeypatch.setattr(worker, "libc", SimpleNamespace(timerfd_settime=start))
    worker.start_timer(7, 2_000_000_003)
    worker.start_timer(7, 999_999_999)
    assert started == [(7, 0, 2, 3, 0), (7, 0, 0, 999_999_999, 0)]


def test_a_process_without_descriptors_gets_no_timer_and_no_wakeup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created: list[int] = []
    create = worker.create_timer

    def record() -> int:
        created.append(create())
        return created[-1]

    def refuse() -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(worker, "create_timer", record)
    monkeypatch.setattr(select, "epoll", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        Wakeup(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(created[0])
    results = [-1, 0]
    monkeypatch.setattr(worker, "libc", SimpleNamespace(timerfd_create=lambda *_: results.pop(0)))
    monkeypatch.setattr(worker, "ffi", SimpleNamespace(errno=24))
    with pytest.raises(OSError, match="Too many open files"):
        create()
    assert create() == 0
