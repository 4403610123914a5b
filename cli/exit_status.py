"""How commands end: signals, errors and the exit status.

A signal becomes an exception, so that the command cleans up. An error becomes one line on standard
error.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from ..errors import RemoteError, SplitArrowError, UsageError
from .formatting import escape_text, suggest
from .terminal import print_message

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


FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130

DEBUG_VARIABLE = "SPLITARROW_DEBUG"
"""The environment variable that shows tracebacks, unless it is empty or 0."""


def report_error(error: BaseException) -> int:
    """Print the error of a command on standard error, and return its exit status."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return INTERRUPTED
    if isinstance(error, Terminated):
        return 128 + error.number
    if isinstance(error, BrokenPipeError):
        return FAILED  # the reader of the pipe has closed it
    if isinstance(error, typer.TyperException) and not error.format_message():
        return WRONG_USAGE  # the help was shown
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        traceback.print_exception(error)
    text, status = _explain(error)
    print_message(f"splitarrow: error: {escape_text(text)}")
    return status


def _explain(error: BaseException) -> tuple[str, int]:
    match error:
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            path = "splitarrow" if context is None else context.command_path
            message = error.format_message().rstrip(".").replace(": Value error, ", ": ")
            if known := getattr(error, "possibilities", None):  # for an option that is unknown
                unknown: Any = error
                message = f"{unknown.message}{suggest(unknown.option_name, known)}"
            if message.startswith("Got unexpected extra argument"):
                message += "; put an argument with spaces in quotes"
            return f"{message} (see: {path} --help)", WRONG_USAGE
        case UsageError():
            return str(error), WRONG_USAGE
        case RemoteError():
            return f"{error.code}: {error}", FAILED
        case SplitArrowError():
            return str(error), FAILED
        case MemoryError():
            return "out of memory", FAILED
        case OSError(filename=str(name), strerror=str(reason)):
            return f"{name}: {reason}", FAILED
        case OSError(strerror=str(reason)):
            return reason, FAILED
        case _:
            return (
                f"internal error: {type(error).__name__}: {error} "
                f"({DEBUG_VARIABLE}=1 shows the traceback)",
                FAILED,
            )
