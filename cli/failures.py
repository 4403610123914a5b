"""What a command that fails says and returns: one line, and an exit status."""

from __future__ import annotations

import os
import traceback

import typer

from ..errors import RemoteError, SplitArrowError, UsageError
from .figures import printable
from .output import say
from .signals import Terminated

FAILED = 1
MISUSED = 2
INTERRUPTED = 130

DEBUG = "SPLITARROW_DEBUG"
"""The variable that, if set and not 0, shows tracebacks."""


def report(error: BaseException) -> int:
    """Say on standard error why a command failed; return its exit status."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return INTERRUPTED
    if isinstance(error, Terminated):
        return 128 + error.number
    if isinstance(error, BrokenPipeError):
        return FAILED  # whoever read the output had enough
    if isinstance(error, typer.TyperException) and not error.format_message():
        return MISUSED  # the help was shown instead
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exception(error)
    text, status = _explain(error)
    say(f"splitarrow: error: {printable(text)}")
    return status


def _explain(error: BaseException) -> tuple[str, int]:
    match error:
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            path = "splitarrow" if context is None else context.command_path
            said = error.format_message().rstrip(".").replace(": Value error, ", ": ")
            return f"{said} (see: {path} --help)", MISUSED
        case UsageError():
            return str(error), MISUSED
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
                f"internal error: {type(error).__name__}: {error} ({DEBUG}=1 shows the traceback)",
                FAILED,
            )
