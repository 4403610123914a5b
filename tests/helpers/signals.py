"""Signal dispositions of the processes that tests start."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager

_INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@contextmanager
def default_dispositions() -> Generator[None]:
    """Let processes that start in this block be ended by signals.

    A process ignores the signals that its parent ignores. ``nohup`` makes its command ignore
    SIGHUP, and a shell makes its background jobs ignore SIGINT.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _INHERITED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
