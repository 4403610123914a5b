"""Standard output, and what becomes of it when it cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def standard_output() -> Generator[None]:
    """Flush what is printed inside; an error says that it was standard output's.

    Raises
    ------
    OSError
        With ``filename`` set; a `BrokenPipeError` if nobody reads any more.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # What is still buffered goes nowhere, or Python would try again at exit, and complain.
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from None
