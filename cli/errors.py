"""Report the error of a command: one line on standard error, and an exit status."""

from __future__ import annotations

import os
import traceback

import typer

from ..errors import RemoteError, SplitArrowError, UsageError
from .formatting import escape_text
from .signals import Terminated
from .terminal import print_message

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130

DEBUG_VARIABLE = "SPLITARROW_DEBUG"
"""The environment variable that shows tracebacks, unless it is empty or 0."""


def report(error: BaseException) -> int:
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
