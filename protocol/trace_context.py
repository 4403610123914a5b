"""The W3C context of a trace, before a data request (an extension of splitarrow).

A reader that is traced sends its context in a tagged message before its request. The payload is
the value of the header ``traceparent`` in ASCII. That of ``tracestate`` may follow, after a line
feed. A context that is malformed is ignored, as the recommendation "Trace Context" demands: it
never fails a read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TRACE_PARENT = "traceparent"
TRACE_STATE = "tracestate"
"""The headers of the recommendation, which calls of the control plane have."""
SAMPLED = 0x01
"""The flag of a trace that its caller records."""
MAX_STATE_BYTES = 512
"""The longest ``tracestate``, in bytes. A longer one is left out."""
_MAX_MEMBERS = 32
_PARENT_BYTES = 55
_MAX_PAYLOAD_BYTES = 1024
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MEMBER = re.compile(
    r"([a-z0-9][a-z0-9_*/@-]{0,255})=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The position in a trace at which a caller makes a request."""

    trace_id: str
    """The trace: 32 hexadecimal digits in lower case."""
    span_id: str
    """The caller's span: 16 hexadecimal digits in lower case."""
    flags: int = SAMPLED
    """The flags, of which `SAMPLED` is one."""
    state: tuple[tuple[str, str], ...] = ()
    """The entries of ``tracestate``, which belong to tracing systems."""

    @property
    def parent(self) -> str:
        """The value of the header ``traceparent``."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of a call."""
        headers = [(TRACE_PARENT, self.parent)]
        state = ",".join(f"{key}={value}" for key, value in self.state)
        if state and len(state) <= MAX_STATE_BYTES:
            headers.append((TRACE_STATE, state))
        return headers

    def pack(self) -> bytes:
        r"""Return the payload of the message before a request.

        Examples
        --------
        >>> TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7").pack()
        b'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
        """
        return "\n".join(value for _, value in self.headers()).encode()


def parse_payload(payload: bytes) -> TraceContext | None:
    """Return the context of a message before a request, or None if it is malformed."""
    if len(payload) > _MAX_PAYLOAD_BYTES or not payload.isascii():
        return None
    parent, _, state = payload.decode().partition("\n")
    return parse_context(parent, state)


def parse_headers(headers: Mapping[str, str]) -> TraceContext | None:
    """Return the context of a call, or None if it has none or a malformed one."""
    parent = headers.get(TRACE_PARENT)
    return None if parent is None else parse_context(parent, headers.get(TRACE_STATE, ""))


def parse_context(parent: str, state: str = "") -> TraceContext | None:
    """Return the context of the values of the two headers, or None if the first is malformed.

    A later version of the recommendation may append fields to ``traceparent``; they are ignored.

    Examples
    --------
    >>> parse_context("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").flags
    1
    >>> parse_context("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01") is None
    True
    """
    match = _PARENT.match(parent)
    if match is None:
        return None
    version, trace_id, span_id, flags = match.groups()
    rest = parent[_PARENT_BYTES:]
    if version == "ff" or (rest and (version == "00" or rest[0] != "-")):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceContext(trace_id, span_id, int(flags, 16), _parse_state(state))


def _parse_state(text: str) -> tuple[tuple[str, str], ...]:
    """Return the entries of ``tracestate``; none if it is malformed or too long."""
    if len(text) > MAX_STATE_BYTES:
        return ()
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    entries = tuple((match[1], match[2]) for match in matches if match is not None)
    is_valid = len(entries) == len(members) == len({key for key, _ in entries})
    return entries if is_valid and len(entries) <= _MAX_MEMBERS else ()
