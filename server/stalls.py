"""Disconnecting readers that requested a stream and take nothing of it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import anyio

from .context import ServerContext
from .logs import get_logger
from .session import Session

_CHECKS_PER_LIMIT = 4
_MAX_INTERVAL_SECONDS = 10.0


class StallWatch:
    """Ends streams whose reader takes nothing for the setting ``stall_seconds``.

    One task looks at all streams now and then, so that sending data costs nothing more. A reader
    that takes data slowly makes progress, and may go on.

    Parameters
    ----------
    context : ServerContext
        The state of the server.
    sessions : iterable of Session
        The sessions that run now.
    """

    def __init__(self, context: ServerContext, sessions: Iterable[Session]) -> None:
        self._context = context
        self._sessions = sessions
        self._log = get_logger("daemon")

    async def run(self) -> None:
        """Check all streams from time to time, until cancelled."""
        while True:
            seconds = self._context.settings.stall_seconds
            await anyio.sleep(min(seconds / _CHECKS_PER_LIMIT, _MAX_INTERVAL_SECONDS))
            for session in list(self._sessions):
                session.check_progress(anyio.current_time(), seconds)
            self._check_calls(seconds)

    def _check_calls(self, seconds: float) -> None:
        """End the streams of DoGet whose client takes no message."""
        now = time.monotonic()
        for stream in self._context.streams:
            since = stream.writing_since
            if since is not None and now - since >= seconds:
                self._log.warning("reader takes nothing", peer=stream.peer, dataset=stream.dataset)
                stream.cancel()
