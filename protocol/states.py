"""The states of both sides of a stream, and the events that each state allows.

Each role has one table. An event without an entry for the current state is a protocol error. The
diagrams in docs/wire.md are generated from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from ..errors import ProtocolError


class ServerState(Enum):
    """The states of the server's side of a connection."""

    PREFACE = "preface"
    """The server waits for the peer's preface."""
    IDLE = "idle"
    """The server waits for a request. The peer holds no leases."""
    STREAMING = "streaming"
    """The server sends a stream."""
    LEASED = "leased"
    """The server has sent a stream and waits until the peer frees its leases."""


class ServerEvent(Enum):
    """The events on the server's side of a connection."""

    PREFACE_RECEIVED = "preface received"
    WANT_DATA = "want_data received"
    FREE_DATA = "free_data received"
    KEEP_ALIVE = "keep_alive received"
    TRACE = "trace received"
    ENDED = "end of stream sent"
    ENDED_LEASED = "end of stream sent, leases held"
    FAILED = "failure sent"
    LAST_FREED = "last lease freed"


class ReaderState(Enum):
    """The states of a reader's stream, over one connection or two."""

    CONNECTING = "connecting"
    """The reader connects and sends its requests."""
    OPENING = "opening"
    """The reader waits for the schema."""
    STREAMING = "streaming"
    """The reader receives messages."""
    ENDED = "ended"
    """The reader has received every message and the end of the stream."""
    FAILED = "failed"
    """The reader has raised an error. Nothing more can be read."""
    CLOSED = "closed"
    """The reader closed the stream."""


class ReaderEvent(Enum):
    """The events of a reader's stream."""

    REQUESTED = "want_data sent"
    SCHEMA = "schema received"
    PROVEN_END = "end proven"
    ERROR = "error"
    CLOSE = "closed"


SERVER: Mapping[tuple[ServerState, ServerEvent], ServerState] = {
    (ServerState.PREFACE, ServerEvent.PREFACE_RECEIVED): ServerState.IDLE,
    (ServerState.IDLE, ServerEvent.WANT_DATA): ServerState.STREAMING,
    (ServerState.IDLE, ServerEvent.FREE_DATA): ServerState.IDLE,
    (ServerState.IDLE, ServerEvent.KEEP_ALIVE): ServerState.IDLE,
    (ServerState.IDLE, ServerEvent.TRACE): ServerState.IDLE,
    (ServerState.STREAMING, ServerEvent.FREE_DATA): ServerState.STREAMING,
    (ServerState.STREAMING, ServerEvent.ENDED): ServerState.IDLE,
    (ServerState.STREAMING, ServerEvent.ENDED_LEASED): ServerState.LEASED,
    (ServerState.STREAMING, ServerEvent.FAILED): ServerState.IDLE,
    (ServerState.LEASED, ServerEvent.WANT_DATA): ServerState.STREAMING,
    (ServerState.LEASED, ServerEvent.FREE_DATA): ServerState.LEASED,
    (ServerState.LEASED, ServerEvent.KEEP_ALIVE): ServerState.LEASED,
    (ServerState.LEASED, ServerEvent.TRACE): ServerState.LEASED,
    (ServerState.LEASED, ServerEvent.LAST_FREED): ServerState.IDLE,
}

READER: Mapping[tuple[ReaderState, ReaderEvent], ReaderState] = {
    (ReaderState.CONNECTING, ReaderEvent.REQUESTED): ReaderState.OPENING,
    (ReaderState.CONNECTING, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.CONNECTING, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.OPENING, ReaderEvent.SCHEMA): ReaderState.STREAMING,
    (ReaderState.OPENING, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.OPENING, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.STREAMING, ReaderEvent.PROVEN_END): ReaderState.ENDED,
    (ReaderState.STREAMING, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.STREAMING, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.ENDED, ReaderEvent.ERROR): ReaderState.FAILED,
    (ReaderState.ENDED, ReaderEvent.CLOSE): ReaderState.CLOSED,
    (ReaderState.FAILED, ReaderEvent.CLOSE): ReaderState.CLOSED,
}

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Machine(Generic[S, E]):
    """A state machine driven by one of the tables."""

    def __init__(self, table: Mapping[tuple[S, E], S], state: S, stream: str | None = None) -> None:
        self._table = table
        self.state = state
        self.stream = stream

    def on(self, event: E) -> S:
        """Enter and return the next state; raise `ProtocolError` if the state forbids the event."""
        try:
            self.state = self._table[self.state, event]
        except KeyError:
            raise ProtocolError(
                f"unexpected event {event.value!r}", stream=self.stream, state=self.state.value
            ) from None
        return self.state


def draw_diagram(table: Mapping[tuple[S, E], S], start: S) -> str:
    """Return a Mermaid state diagram of a table."""
    lines = ["stateDiagram-v2", f"    [*] --> {start.name}"]
    lines += [
        f"    {state.name} --> {target.name}: {event.value}"
        for (state, event), target in table.items()
    ]
    return "\n".join(lines)
