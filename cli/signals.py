"""Signals that end a command, as exceptions, so that what it began is tidied away."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal asked the process to end.

    Attributes
    ----------
    number : int
        The signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


@contextmanager
def raised() -> Generator[None]:
    """Raise `Terminated` for SIGTERM and SIGHUP, unless they are ignored already."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ignored() -> Generator[None]:
    """Let nothing but SIGKILL disturb what is tidied away inside."""
    numbers = (signal.SIGINT, *_ENDING)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
