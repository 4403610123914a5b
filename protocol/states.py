"""What each role may do when: one table for the server's side of a connection, one for a reader.

A pair of state and event that is missing from a table is the protocol error. The diagrams in
docs/wire.md are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from ..errors import ProtocolError


class ServerState(Enum):
    """The server's side of a connection."""

    PREFACE = "preface"
    """Waits for the peer's preface."""
    IDLE = "idle"
    """Waits for a request; also after a stream whose leases are all returned."""
    STREAMING = "streaming"
    """Sends a stream."""
    LEASED = "leased"
    """Has sent a stream and waits for the leases that the peer holds."""
    CLOSED = "closed"
    """Is gone."""


class ServerEvent(Enum):
    """What may happen on the server's side."""

    PREFACE_RECEIVED = "preface received"
    WANT_DATA = "want_data received"
    FREE_DATA = "free_data received"
    ENDED = "end of stream sent"
    ENDED_LEASED = "end of stream sent, leases held"
    FAILED = "failure sent"
    LAST_FREED = "last lease returned"
    DISCONNECTED = "peer gone"


class ReaderState(Enum):
    """The reader's side of a stream, over one connection or two."""

    CONNECTING = "connecting"
    """Is being connected."""
    OPENING = "opening"
    """Has asked and waits for the schema."""
    STREAMING = "streaming"
    """Has the schema and receives messages."""
    ENDED = "ended"
    """Has all messages, and the proof of it."""
    FAILED = "failed"
    """Has raised; nothing more can be read."""
    CLOSED = "closed"
    """Was closed by its own side."""


class ReaderEvent(Enum):
    """What may happen on a reader's side."""

    REQUESTED = "want_data sent"
    SCHEMA = "schema received"
    MESSAGES = "messages received"
    PROVEN_END = "end proven"
    ERROR = "error"
    CLOSE = "closed"


SERVER: Mapping[tuple[ServerState, ServerEvent], ServerState] = {
    (ServerState.PREFACE, ServerEvent.PREFACE_RECEIVED): ServerState.IDLE,
    (ServerState.PREFACE, ServerEvent.DISCONNECTED): ServerState.CLOSED,
    (ServerState.IDLE, ServerEvent.WANT_DATA): ServerState.STREAMING,
    (ServerState.IDLE, ServerEvent.FREE_DATA): ServerState.IDLE,
    (ServerState.IDLE, ServerEvent.DISCONNECTED): ServerState.CLOSED,
    (ServerState.STREAMING, ServerEvent.FREE_DATA): ServerState.STREAMING,
    (ServerState.STREAMING, ServerEvent.ENDED): ServerState.IDLE,
    (ServerState.STREAMING, ServerEvent.ENDED_LEASED): ServerState.LEASED,
    (ServerState.STREAMING, ServerEvent.FAILED): ServerState.IDLE,
    (ServerState.STREAMING, ServerEvent.DISCONNECTED): ServerState.CLOSED,
    (ServerState.LEASED, ServerEvent.WANT_DATA): ServerState.STREAMING,
    (ServerState.LEASED, ServerEvent.FREE_DATA): ServerState.LEASED,
    (ServerState.LEASED, ServerEvent.LAST_FREED): ServerState.IDLE,
    (ServerState.LEASED, ServerEvent.DISCONNECTED): ServerState.CLOSED,
}

READER: Mapping[tuple[ReaderState, ReaderEvent], ReaderState] = {
    (ReaderState.CONNECTING, ReaderEvent.REQUESTED): ReaderState.OPENING,
    (ReaderState.CONNECTING, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.CONNECTING, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.OPENING, ReaderEvent.SCHEMA): ReaderState.STREAMING,
    (ReaderState.OPENING, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.OPENING, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.STREAMING, ReaderEvent.MESSAGES): ReaderState.STREAMING,
    (ReaderState.STREAMING, ReaderEvent.PROVEN_END): ReaderState.ENDED,
    (ReaderState.STREAMING, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.STREAMING, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.ENDED, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.ENDED, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.FAILED, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.FAILED, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.CLOSED, ReaderEvent.CLOSE): ReaderState.CLOSED,
}

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Machine(Generic[S, E]):
    """A position in one of the tables.

    Parameters
    ----------
    table : mapping
        `SERVER` or `READER`.
    state : Enum
        Where to begin.
    stream : str, optional
        The stream's name, for errors.
    """

    def __init__(self, table: Mapping[tuple[S, E], S], state: S, stream: str | None = None) -> None:
        self._table = table
        self.state = state
        self.stream = stream

    def on(self, event: E) -> S:
        """Take the step that `event` means and return the new state.

        Raises
        ------
        ProtocolError
            If the event is illegal in the present state; it names both, and the stream.
        """
        try:
            self.state = self._table[self.state, event]
        except KeyError:
            raise ProtocolError(
                f"{event.value!r} is not allowed now", stream=self.stream, state=self.state.value
            ) from None
        return self.state


def mermaid(table: Mapping[tuple[S, E], S], start: S) -> str:
    """Draw a table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {start.name}"]
    lines += [
        f"    {state.name} --> {target.name}: {event.value}"
        for (state, event), target in table.items()
    ]
    return "\n".join(lines)
