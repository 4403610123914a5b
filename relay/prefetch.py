"""Fetching the shards that readers have announced, before they open them."""

from __future__ import annotations

import threading
import time

from ..errors import SplitArrowError
from ..server.catalog.object_cache import ObjectCache
from ..server.logs import get_logger

_FAILURE_SECONDS = 5.0
_CLOSE_SECONDS = 5.0


class Prefetcher:
    """A thread that fetches what readers have announced, one shard at a time.

    It fetches the next `nbytes` bytes, and on average at most `rate` bytes per second; None means
    no limit.
    """

    def __init__(self, cache: ObjectCache, nbytes: int, rate: int | None) -> None:
        self._cache = cache
        self._nbytes = nbytes
        self._rate = rate
        self._stopped = threading.Event()
        self._failure = ""
        self._log = get_logger("relay")
        self._thread = threading.Thread(target=self._run, name="splitarrow-prefetch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Fetch no further shard."""
        self._stopped.set()
        self._cache.progress.set()

    def join(self) -> None:
        """Wait for the thread if it was started, but not forever."""
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        progress = self._cache.progress
        while not self._stopped.is_set():
            progress.clear()
            begin = time.monotonic()
            try:
                fetched = self._cache.fetch_next(self._nbytes)
            except SplitArrowError as error:
                self._report(error)
                self._stopped.wait(_FAILURE_SECONDS)
                continue
            if fetched is None:
                if not self._stopped.is_set():
                    progress.wait()
            elif self._rate is not None:
                self._stopped.wait(fetched / self._rate - (time.monotonic() - begin))

    def _report(self, error: SplitArrowError) -> None:
        """Log an error once, until it is another one."""
        if error.message != self._failure and not self._stopped.is_set():
            self._failure = error.message
            self._log.warning("shard not fetched ahead", reason=error.message)
