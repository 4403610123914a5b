"""The pipe between the parent and one worker process, and the messages on it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from .config import ServerSettings

RESPONSE_SECONDS = 2.0
"""The time in which a worker responds unless it hangs."""
READY = "ready"
"""What a worker sends once it serves, before any response."""


class ReportRequest(NamedTuple):
    """Requests a `ProcessReport`."""

    streams: bool
    """Whether to report running streams and refusals too."""


class CancelRequest(NamedTuple):
    """Requests to cancel a stream; the response is whether it exists."""

    number: int
    owner: str | None


class CancelTicketRequest(NamedTuple):
    """Requests to cancel the streams of a ticket; the response is whether there are any."""

    ticket: bytes
    principal: str


class ReloadRequest(NamedTuple):
    """Requests to apply changed settings; the response is the reason why not, or empty."""

    settings: ServerSettings


class DatasetsRequest(NamedTuple):
    """Requests to change the datasets; the response is the reason why not, or empty."""

    sources: dict[str, str]
    """The names to add or replace, and the paths of their data."""
    removed: tuple[str, ...]
    """The names to remove. Those that do not exist are ignored."""


class ReadsRequest(NamedTuple):
    """Requests the datasets of which parts are being read; see `ReadsInProgress.names`."""

    elsewhere: frozenset[str] = frozenset()
    """Those of the other processes."""
    drains: bool = False
    """Whether to drain."""


class CutRequest(NamedTuple):
    """Requests to end every stream now. The response is True."""


Request = (
    ReportRequest
    | CancelRequest
    | CancelTicketRequest
    | ReloadRequest
    | DatasetsRequest
    | ReadsRequest
    | CutRequest
)
"""What a worker responds to, one after the other."""


class WorkerLink:
    """The parent's end of the pipe to a worker. Any thread may use it.

    Parameters
    ----------
    name : str
        The name of the worker.
    connection : Connection
        The pipe.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        """The name of the worker."""
        self.is_ready = False
        """Whether the worker serves, as far as it has been asked."""
        self._connection = connection
        self._lock = threading.Lock()
        self._awaits_response = True  # first, the worker sends that it is ready

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return self._connection.fileno()

    def ask(self, request: Request, seconds: float = RESPONSE_SECONDS) -> Any:
        """Return the response to a request, or None if the worker does not respond in time.

        At most one request waits at a worker. So a worker that hangs gets no further ones.
        """
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            return None
        try:
            with suppress(OSError, EOFError):
                if self._awaits_response and self._receive(deadline) is None:
                    return None
                self._awaits_response = True
                self._connection.send(request)
                response = self._receive(deadline)
                return None if response is None else response[0]
            return None
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the pipe. A worker that still runs drains then."""
        with self._lock:
            self._connection.close()

    def _receive(self, deadline: float) -> tuple[Any] | None:
        """Return the response that the worker owes, in a tuple; None if it is late."""
        if not self._connection.poll(max(0.0, deadline - time.monotonic())):
            return None
        response = self._connection.recv()
        self._awaits_response = False
        self.is_ready = True
        return (response,)
