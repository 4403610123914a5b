"""The interface of a transport.

A transport moves untagged and tagged messages between two ends. It is non-blocking: a channel
takes or yields what it can at once, and tells which descriptor to wait for. Two thin drivers,
`blocking` and `aio`, wait, and are the same for every scheme.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..protocol.frames import Incoming, Outgoing
from ..protocol.limits import Limits
from ..protocol.uri import DataUri


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do, and what it costs."""

    ordered: bool = True
    """Whether frames arrive in the order in which they were sent."""
    regions: bool = False
    """Whether regions of files leave without passing through this process."""
    body_types: frozenset[int] = frozenset({0})
    """The body types that it can carry."""
    fetches: bool = False
    """Whether a reader's channel fetches bodies that lie elsewhere, and frees them itself."""


class Channel(Protocol):
    """One end of a connection. Not safe for use by two threads or tasks in the same direction.

    Whatever fails raises a `TransportError`, or a `ProtocolError` for what the peer sent;
    after either the channel must be aborted.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this connection can do."""
        ...

    @property
    def peer(self) -> str:
        """The other end, for logs and errors."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the other end is on this host."""
        ...

    @property
    def bytes_sent(self) -> int:
        """How many bytes have been handed to the kernel or the peer."""
        ...

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived."""
        ...

    @property
    def at_boundary(self) -> bool:
        """Whether nothing of an unfinished message has arrived."""
        ...

    @property
    def wake_at(self) -> float | None:
        """When to call again even if the descriptor is silent (time.monotonic()), or None."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that is readable when something arrived."""
        ...

    def send_fileno(self) -> int:
        """Return the descriptor to wait for when there was no room to send."""
        ...

    @property
    def send_waits_readable(self) -> bool:
        """Whether room to send shows by `send_fileno` being readable, not writable."""
        ...

    def send_some(self) -> bool:
        """Send what was queued, as far as it goes; tell whether all of it went.

        If not: wait for `send_fileno`, and call again.

        Raises
        ------
        ConnectionLostError
            If the peer is gone.
        """
        ...

    def queue(self, frames: Iterable[Outgoing]) -> None:
        """Line up frames to be sent. Their parts must stay unchanged until they are."""
        ...

    def receive_some(self) -> list[Incoming]:
        """Return what has arrived; an empty list means: wait until `fileno` is readable.

        Raises
        ------
        ConnectionLostError
            If the peer is gone; `at_boundary` tells whether it left between two messages.
        NotAPeerError
            If the peer does not speak this transport.
        ProtocolError
            If the peer breaks its rules.
        """
        ...

    def interrupt(self) -> None:
        """Make a wait for this channel end, from any thread; it is unusable afterwards."""
        ...

    def close(self) -> None:
        """Close after what was sent has arrived, as far as the kernel sees to it. Idempotent."""
        ...

    def abort(self) -> None:
        """Close at once and let the peer notice. Idempotent."""
        ...


class Listener(Protocol):
    """Where clients connect to."""

    @property
    def uri(self) -> DataUri:
        """The address, with the port that was bound and the listener's ``want_data``."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits."""
        ...

    def accept(self) -> Channel | None:
        """Return the next client's channel, or None if none waits."""
        ...

    def close(self) -> None:
        """Stop listening. Idempotent."""
        ...


class Transport(Protocol):
    """A scheme. Its module offers one object of this kind, named ``TRANSPORT``."""

    @property
    def scheme(self) -> str:
        """The scheme of its URIs."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What its connections can do."""
        ...

    def listen(self, uri: DataUri, limits: Limits) -> Listener:
        """Bind an address.

        Raises
        ------
        ConfigError
            If it cannot be bound; the error names it.
        UriError
            If the URI does not suit the scheme.
        """
        ...

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> Channel:
        """Connect, waiting up to `timeout` seconds.

        Raises
        ------
        ConnectError
            If the connection cannot be made; the error names the address.
        UriError
            If the URI does not suit the scheme.
        """
        ...
