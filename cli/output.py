"""Standard output and standard error, which may be terminals, pipes, full, or closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TextIO


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal; Python has None for one that is closed."""
    return stream is not None and stream.isatty()


def is_closed(stream: TextIO | None) -> bool:
    """Tell whether a stream was closed before the program began."""
    return stream is None


def say(text: str) -> None:
    """Print a line on standard error; where nobody can be told, nobody is."""
    if not is_closed(sys.stderr):
        with suppress(OSError):
            print(text, file=sys.stderr)


@contextmanager
def standard_output() -> Generator[None]:
    """Flush what is printed inside; an error says that it was standard output's.

    Raises
    ------
    OSError
        With ``filename`` set; a `BrokenPipeError` if nobody reads any more.
    """
    stream: TextIO | None = sys.stdout
    try:
        yield
        if stream is not None:
            stream.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # What is still buffered goes nowhere, or Python would try again at exit, and complain.
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from None
