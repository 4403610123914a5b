"""A source made of a generator, which another thread may close while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ....errors import ClosedError
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import SourceFile

MessageGroups = Generator[Sequence[SourceMessage], None, None]
"""A generator of groups of messages; see `Source`."""


class GeneratorSource:
    """A `Source` whose groups come from a generator.

    Parameters
    ----------
    groups : generator
        Yields the groups. It runs on the thread that takes the next group.
    blocking : bool
        See `Source.blocking`.
    region_files : sequence of Path
        See `Source.region_files`.
    """

    def __init__(
        self, groups: MessageGroups, *, blocking: bool, region_files: Sequence[Path] = ()
    ) -> None:
        self.blocking = blocking
        self.region_files = region_files
        self.region: SourceFile | None = None
        """The file that every body is a part of; None if there are several, or it is unknown."""
        self._groups = groups
        self._resources = ExitStack()
        self._running = threading.Lock()
        self._closed = False
        self._released = False

    def call_on_close(self, release: Callable[[], object]) -> None:
        """Release a resource when the source is closed, after the generator.

        Only the code that opens the source may call this, before it hands the source out.
        """
        self._resources.callback(release)

    def __iter__(self) -> Iterator[Sequence[SourceMessage]]:
        return self

    def __next__(self) -> Sequence[SourceMessage]:
        try:
            with self._running:
                if not self._closed:
                    return next(self._groups)
        finally:
            if self._closed:
                self.close()
        raise ClosedError("the source is closed")

    def close(self) -> None:
        """Close the generator and release the resources.

        If another thread runs the generator, that thread does it as soon as the generator yields.
        """
        self._closed = True
        if self._running.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._running.release()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            with self._resources:
                self._groups.close()
