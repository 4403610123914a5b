"""Turn signals that end a command into exceptions, so that the command cleans up."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """The process received a signal that asks it to end.

    Attributes
    ----------
    number : int
        The number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


@contextmanager
def raise_on_signals() -> Generator[None]:
    """Raise `Terminated` on SIGTERM and SIGHUP, except on a signal that the process ignores."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _raise_terminated)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ignore_signals() -> Generator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP, so that a cleanup is completed."""
    numbers = (signal.SIGINT, *_SIGNALS)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
