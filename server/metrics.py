"""What the server counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the server started, but for `streams` and `connections`: those are open now."""

    connections: int = 0
    """Connections that are open now."""
    connections_total: int = 0
    """Connections that were accepted."""
    streams: int = 0
    """Streams that are being sent now."""
    streams_total: int = 0
    """Streams that were asked for."""
    messages: int = 0
    """Messages that were sent, the schemas included."""
    rows: int = 0
    """Rows that were sent."""
    bytes_sent: int = 0
    """Bytes that were sent on connections that are closed now."""
    bytes_lent: int = 0
    """Bytes of messages that readers mapped, and that were not sent."""
    bad_frees: int = 0
    """Returns of memory that was not leased, on connections that are closed now."""
    failures: int = 0
    """Streams that ended in a failure of the server's side."""
    protocol_errors: int = 0
    """Connections that were closed because the peer broke the protocol."""
    refused: int = 0
    """Connections that came when there was no room."""
