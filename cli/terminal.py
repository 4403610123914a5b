"""Standard output and standard error, which may be terminals, pipes, full or closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TextIO


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. A closed stream is None."""
    return stream is not None and stream.isatty()


def is_closed(stream: TextIO | None) -> bool:
    """Return whether a standard stream was closed before the program started."""
    return stream is None


def print_message(text: str) -> None:
    """Print a line on standard error, if anything can be printed there."""
    if not is_closed(sys.stderr):
        with suppress(OSError):
            print(text, file=sys.stderr)


@contextmanager
def standard_output() -> Generator[None]:
    """Flush standard output at the end of the block, and name it in the errors of the block.

    Raises `OSError`: With ``filename`` set. It is a `BrokenPipeError` if the reader of a pipe has
    closed it.
    """
    stream: TextIO | None = sys.stdout
    try:
        yield
        if stream is not None:
            stream.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # Python flushes the buffer again at exit, and would print a second error.
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from None


@contextmanager
def name_standard_output() -> Generator[None]:
    """Name standard output in the errors of the block."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None
