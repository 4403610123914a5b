"""The log of the library."""

from __future__ import annotations

import _thread
import logging
import threading
from types import SimpleNamespace

import pytest

from helpers.clock import Clock
from splitarrow.transport.log_limiter import LogLimiter
from splitarrow.transport.ucx import context
from splitarrow.transport.ucx.ffi import ffi

_NO_ARGUMENTS = ffi.new("char[64]")
"""In place of a va_list."""


def emit(level: int, line: int = 1, text: bytes = b"what happened") -> int:
    format, file = ffi.new("char[]", text), ffi.new("char[]", b"file.c")
    nothing = ffi.cast("void *", ffi.addressof(_NO_ARGUMENTS))
    return context._handle_log(file, line, ffi.NULL, level, ffi.NULL, format, nothing)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0, logging.CRITICAL),
        (1, logging.ERROR),
        (2, logging.WARNING),
        (3, logging.INFO),
        (4, logging.DEBUG),
        (9, logging.DEBUG),
    ],
)
def test_the_library_s_events_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: int, expected: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(context, "_limiter", LogLimiter(clock=clock))
    for name in ("UCX_LOG_LEVEL", "UCX_LOG_FILE"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.DEBUG, "splitarrow.ucx"):
        assert [emit(level) for _ in range(3)] == [0] * 3
        emit(level, line=2)
        clock.now += 60
        emit(level)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (expected, "what happened"),
        (expected, "what happened"),
        (expected, "what happened (2 more times before)"),
    ]


def test_an_event_is_logged_up_to_999_bytes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(context, "_limiter", LogLimiter())
    with caplog.at_level(logging.DEBUG, "splitarrow.ucx"):
        emit(1, text=b"x" * 998 + b"\xff" + b"y" * 5)
    assert [record.message for record in caplog.records] == ["x" * 998 + "\ufffd"]


@pytest.mark.parametrize("name", ["UCX_LOG_LEVEL", "UCX_LOG_FILE"])
def test_a_configured_log_of_the_library_continues(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(context, "_limiter", LogLimiter())
    monkeypatch.setenv(name, "x")
    assert [emit(9), emit(9)] == [1, 1]


def test_a_thread_of_the_library_that_repeats_an_event_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(context, "_limiter", LogLimiter())
    monkeypatch.setattr(context, "time", SimpleNamespace(sleep=pauses.append))
    for _ in range(150):
        emit(9)
    assert pauses == []
    monkeypatch.setattr(context, "_limiter", LogLimiter())
    done = threading.Event()

    def repeat() -> None:
        for _ in range(103):
            emit(9)
        done.set()

    _thread.start_new_thread(repeat, ())  # not a thread of the module threading
    assert done.wait(30)
    assert pauses == [0.01] * 2
