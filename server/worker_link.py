"""The pipe between the parent and one worker process."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from .config import ServerSettings

_RESPONSE_SECONDS = 2.0


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


Request = ReportRequest | CancelRequest
"""What a worker responds to. It does not respond to new settings."""


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
        self._connection = connection
        self._asking = threading.Lock()
        self._sending = threading.Lock()
        self._awaits_response = True  # first, the worker sends that it is ready

    def apply(self, settings: ServerSettings) -> None:
        """Let the worker apply changed settings."""
        with suppress(OSError):  # the worker has died
            self._send(settings)

    def ask(self, request: Request) -> Any:
        """Return the response to a request, or None if the worker does not respond in time.

        At most one request waits at a worker. So a worker that hangs gets no further ones.
        """
        deadline = time.monotonic() + _RESPONSE_SECONDS
        with self._asking, suppress(OSError, EOFError):
            if self._awaits_response and self._receive(deadline) is None:
                return None
            self._awaits_response = True
            self._send(request)
            response = self._receive(deadline)
            return None if response is None else response[0]
        return None

    def _send(self, message: Any) -> None:
        with self._sending:
            self._connection.send(message)

    def _receive(self, deadline: float) -> tuple[Any] | None:
        """Return the response that the worker owes, in a tuple; None if it is late."""
        if not self._connection.poll(max(0.0, deadline - time.monotonic())):
            return None
        self._awaits_response = False
        return (self._connection.recv(),)
