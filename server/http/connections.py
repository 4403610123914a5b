"""The connections of the HTTP listener, and the bounds on them."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .application import HAS_CERTIFICATE

MAX_CONNECTIONS = 64
"""The number of connections. Further ones are closed at once."""
REQUEST_SECONDS = 10.0
"""The time for a request to arrive completely, its body included, in seconds."""
KEEP_ALIVE_SECONDS = 75.0
"""The time after which a connection without a request is closed, in seconds."""
RESPONSE_SECONDS = 60.0
"""The time for a response to be made and taken by the client, in seconds."""
_CHECK_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
"""The time for a client to close its end of a connection, in seconds."""


class PatientTransport:
    """A transport that lets the client close its end first.

    Thousands of streams can use up the memory that the kernel has for TCP. It then resets each
    connection that is closed before its data has arrived, and a health check would fail.

    Parameters
    ----------
    transport : Transport
        The transport. It does everything else.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.has_ended = False
        """Whether nothing more is sent."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Send what is queued and then the end. Close when the client has, or after a time."""
        if self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        if self.has_ended:
            return
        self.has_ended = True
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._transport.close)


class BoundedConnection(H11Protocol):
    """A connection that is closed if its client is too slow, or if there are too many.

    uvicorn itself bounds the size of headers and the time between requests, but not the time that
    a request takes to arrive.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline = self.loop.time() + REQUEST_SECONDS
        self._has_begun = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the time of the first request."""
        self._patient = PatientTransport(transport)
        super().connection_made(self._patient)  # type: ignore[arg-type]
        connection = transport.get_extra_info("ssl_object")
        has_certificate = connection is not None and bool(connection.getpeercert())
        self.app_state = {**self.app_state, HAS_CERTIFICATE: has_certificate}
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the connection."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle what the client has sent. The rest of a request has to follow in time."""
        if self._patient.has_ended:
            return
        if not self._has_begun and self._is_idle:
            self._has_begun = True
            self._deadline = min(self._deadline, self.loop.time() + REQUEST_SECONDS)
        super().data_received(data)
        if self._has_begun and not self._is_idle and not self.cycle.more_body:
            self._has_begun = False
            self._deadline = self.loop.time() + RESPONSE_SECONDS

    def on_response_complete(self) -> None:
        """Begin the time until the next request."""
        self._deadline = self.loop.time() + KEEP_ALIVE_SECONDS
        super().on_response_complete()

    def abort_if_idle(self) -> None:
        """Close the connection at once, unless a response is on its way."""
        if self._is_idle:
            self.transport.abort()

    @property
    def _is_idle(self) -> bool:
        """Whether no request has arrived, or the response to the last one is complete."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _check(self) -> None:
        if self.loop.time() >= self._deadline:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(_CHECK_SECONDS, self._check)
