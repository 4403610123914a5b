"""The messages by which a reader requests a stream on one connection."""

from __future__ import annotations

from ...protocol.frames import TaggedFrame
from ...protocol.payloads import KEEP_ALIVES_PER_TIMEOUT, pack_interval
from ...protocol.trace_context import TraceContext
from ...protocol.uri import DataUri


def list_request_frames(
    uri: DataUri, stall_timeout: float | None, context: TraceContext | None
) -> list[TaggedFrame]:
    """Return the frames to send, the data request last.

    Parameters
    ----------
    uri : DataUri
        The URI of the connection. A server whose URI names no tag for keep-alives or for contexts
        gets none.
    stall_timeout : float or None
        The longest wait for data from the server, in seconds.
    context : TraceContext or None
        The context of the trace that the stream belongs to.
    """
    ticket = uri.ticket or b""
    messages: list[tuple[int, bytes]] = []
    if uri.trace is not None and context is not None:
        messages.append((uri.trace, context.pack()))
    if uri.keep_alive is not None and stall_timeout is not None:
        messages.append((uri.keep_alive, pack_interval(stall_timeout / KEEP_ALIVES_PER_TIMEOUT)))
    messages.append((uri.require_want_data(), ticket))
    return [TaggedFrame(tag, len(payload), (payload,)) for tag, payload in messages]
