"""The clients of `open` and of loaders, each kept for a while after its last use, for the next one.

They keep their connections and plans, which a process that opens streams often would otherwise make
each time. A client is used again for the same server with the same token, certificates and limits.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from ..errors import SplitArrowError
from .connect import AnyClient
from .dataset.client import Client

IDLE_SECONDS = 30.0
"""The time that a client is kept after its last stream, in seconds."""
_MAX_IDLE = 16
T = TypeVar("T")


class _KeptClient:
    """A client that streams share."""

    def __init__(self, client: AnyClient) -> None:
        self.client = client
        self.users = 0
        """The number of streams that use it."""
        self.expires = math.inf
        """The time at which it is closed (`time.monotonic`)."""
        self.error: SplitArrowError | None = None
        """Why the server cannot be used, once that is known."""

    def wait_for_check(self) -> None:
        """Return when it is known whether there is an `error`."""

    def close(self) -> None:
        """Close the client. Idempotent."""
        self.client.close()


class _CheckedClient(_KeptClient):
    """A client whose connection is checked while the first read plans."""

    def __init__(self, client: Client, connect_timeout: float) -> None:
        super().__init__(client)
        self._channel = client.channel
        self._timeout = connect_timeout
        self._thread = threading.Thread(target=self._check, name="splitarrow-check", daemon=True)
        self._thread.start()

    def _check(self) -> None:
        try:
            self._channel.check_connection(self._timeout)
        except SplitArrowError as error:
            self.error = error
            self.client.close()  # ends the call that waits for the server

    def wait_for_check(self) -> None:
        self._thread.join()

    def close(self) -> None:
        super().close()
        if self._thread is not threading.current_thread():  # the garbage collector may run there
            self._thread.join()


class KeptClients:
    """The clients of a process. Any thread may call its methods."""

    def __init__(self, seconds: float = IDLE_SECONDS) -> None:
        self._seconds = seconds
        # Reentrant, because the garbage collector may close a stream at any time.
        self._lock = threading.RLock()
        self._clients: dict[Hashable, _KeptClient] = {}
        self._has_ended = False
        self._timer: threading.Timer | None = None
        """Closes the clients that have expired; None if no client is idle."""
        self._inherited: object = None
        """The clients of the parent process. They stay as they are."""

    def follow_process(self) -> None:
        """Close idle clients before the process forks, and when it exits."""
        os.register_at_fork(before=self.close_idle, after_in_child=self._forget)
        atexit.register(self._end)

    def _end(self) -> None:
        """Keep no client any more: no thread can start once the interpreter has ended."""
        self._has_ended = True
        self.close_idle()

    def open(
        self,
        key: Hashable,
        connect: Callable[[], Client],
        connect_timeout: float,
        open_stream: Callable[[Client], T],
        *,
        keep: bool = True,
    ) -> tuple[T, Callable[[], None]]:
        """Open a stream with the client for a key; return it, and a function that ends its use.

        If the server cannot be used, this raises the error of `Client.check`.
        """
        with self._lock:
            kept = self._find(key) or self._add(key, _CheckedClient(connect(), connect_timeout))
        client: Any = kept.client
        try:
            stream = open_stream(client)
        except BaseException:
            kept.wait_for_check()
            self._release(key, kept, keep)
            if kept.error is not None:
                raise kept.error from None
            raise
        return stream, partial(self._release, key, kept, keep)

    @contextmanager
    def borrow(self, key: Hashable, connect: Callable[[], AnyClient]) -> Generator[AnyClient]:
        """Yield the client for a key; raise as `connect` does if it has to be made."""
        with self._lock:
            kept = self._find(key)
        if kept is None:
            made = _KeptClient(connect())  # without the lock, as it may wait for the server
            with self._lock:
                kept = self._find(key) or self._add(key, made)
            if kept is not made:
                made.close()
        try:
            yield kept.client
        finally:
            self._release(key, kept, keep=True)

    def _find(self, key: Hashable) -> _KeptClient | None:
        kept = self._clients.get(key)
        if kept is None or kept.error is not None:
            return None
        kept.users += 1
        kept.expires = math.inf
        return kept

    def _add(self, key: Hashable, kept: _KeptClient) -> _KeptClient:
        kept.users = 1
        self._clients[key] = kept
        return kept

    def _release(self, key: Hashable, kept: _KeptClient, keep: bool) -> None:
        with self._lock:
            kept.users -= 1
            if kept.users:
                return
            keep = keep and not self._has_ended
            if keep and self._clients.get(key) is kept and kept.error is None:
                kept.expires = time.monotonic() + self._seconds
                if self._timer is None:
                    self._start_timer(self._seconds)
                self._close_until(kept.expires - self._seconds, _MAX_IDLE)
                return
            if self._clients.get(key) is kept:
                del self._clients[key]
        kept.close()

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._close_expired)
        self._timer.name = "splitarrow-clients"
        self._timer.daemon = True
        self._timer.start()

    def _close_expired(self) -> None:
        with self._lock:
            self._timer = None
            now = time.monotonic()
            self._close_until(now, _MAX_IDLE)
            if idle := [each.expires for each in self._clients.values() if not each.users]:
                self._start_timer(max(0.0, min(idle) - now))

    def _close_until(self, now: float, most: int) -> None:
        """Close the clients that have expired, and the oldest ones beyond a number."""
        idle = [(kept.expires, key) for key, kept in self._clients.items() if not kept.users]
        idle.sort(key=itemgetter(0))
        for number, (expires, key) in enumerate(idle):
            if number < len(idle) - most or expires <= now:
                self._clients.pop(key).close()

    def close_idle(self) -> None:
        """Close the clients that no stream uses."""
        with self._lock:
            self._close_until(math.inf, 0)

    def _forget(self) -> None:
        """Leave the clients to the parent process."""
        self._inherited = (self._clients, self._timer, self._inherited)
        self._lock = threading.RLock()
        self._clients = {}
        self._timer = None


KEPT_CLIENTS = KeptClients()
"""The clients of this process."""
KEPT_CLIENTS.follow_process()
