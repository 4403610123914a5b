"""A source made of a generator, that may be closed from another thread while it works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from ...errors import ClosedError
from ...protocol.splitter import SourceMessage

Groups = Generator[list[SourceMessage], None, None]


class GroupSource:
    """A `Source` whose groups come from a generator.

    Parameters
    ----------
    groups : generator
        Yields the groups. It runs on whatever thread asks for the next one.
    blocking : bool
        Whether it has to be asked on a worker thread.
    on_close : callable
        Called once, when the generator has been closed.
    placed : sequence of Path
        The files that each body is one region of, if it is.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        blocking: bool,
        on_close: Callable[[], object],
        placed: Sequence[Path] = (),
    ) -> None:
        self.blocking = blocking
        self.placed = placed
        self._groups = groups
        self._on_close = on_close
        self._turn = threading.Lock()
        self._closed = False
        self._released = False

    def __iter__(self) -> Iterator[list[SourceMessage]]:
        return self

    def __next__(self) -> list[SourceMessage]:
        try:
            with self._turn:
                if not self._closed:
                    return next(self._groups)
        finally:
            if self._closed:
                self.close()
        raise ClosedError("the source is closed")

    def close(self) -> None:
        """Let go of everything, or have the thread that is at work do it when it is done."""
        self._closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._turn.release()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._groups.close()
            self._on_close()
