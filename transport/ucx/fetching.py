"""Bodies of type 1 as a reader gets them: read from the server's memory into its own."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from ...errors import LimitError, ProtocolError
from ...protocol.bodies import Span, pack_spans, parse_spans
from ...protocol.frames import PlacedBody, ReceivedBody
from ...protocol.limits import Limits
from .library import IN_PROGRESS, NULL, OK, ffi, status_of, ucp
from .registration import RemoteRegion

_ALIGNMENT = 64
_PAGE = 4096
_MOST_GAP = 64 << 10
_COUNT = struct.Struct("<8xQ")


class FetchedRegion:
    """What was fetched of a region, in memory of this process. A `Region`; its offsets are new.

    Parameters
    ----------
    body : ReceivedBody
        The memory, with room in front.
    """

    def __init__(self, body: ReceivedBody) -> None:
        self._body = body
        self.size = body.nbytes
        """The size in bytes."""

    def check(self) -> None:
        """It cannot change."""

    def framed(self, head: bytes, offset: int, nbytes: int, owner: object) -> pa.Buffer | None:
        """Return a stretch with `head` in front of it, if there is room; see `Region`."""
        body = self._body
        begin = body.start - len(head)
        if offset or begin < 0 or nbytes > self.size:
            return None
        body.view[begin : body.start] = head
        return body.buffer.slice(begin, len(head) + nbytes)

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        """Return a stretch; see `Region.buffer`. Nothing is leased, so `owner` is not kept."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ProtocolError(f"{nbytes} bytes at {offset} lie outside of {self.size} bytes")
        return self._body.buffer.slice(self._body.start + offset, nbytes)


class Fetch:
    """One body being read.

    Parameters
    ----------
    tag : int
        The body's tag.
    payload : memoryview
        Where the buffers lie in the region.
    region : RemoteRegion
        The region.
    limits : Limits
        Bounds, held to before memory is allocated.
    headroom : int
        How much room to leave in front, in bytes.

    Raises
    ------
    ProtocolError
        If a buffer lies outside of the region.
    LimitError
        If it is larger than allowed, or there is no memory for it.
    """

    def __init__(
        self, tag: int, payload: memoryview, region: RemoteRegion, limits: Limits, headroom: int
    ) -> None:
        self.tag = tag
        count = _COUNT.unpack_from(payload)[0] if len(payload) >= _COUNT.size else 0
        if count > limits.buffers:
            raise LimitError(f"a body of {count} buffers; the limit is {limits.buffers}", tag=tag)
        spans = parse_spans(payload, region_size=region.size, expected=count)
        self._pieces, places, nbytes = _plan(spans)
        self.nbytes = sum(length for _, length in self._pieces)
        """How many bytes are read."""
        if nbytes > limits.body_bytes:
            raise LimitError(f"a body of {nbytes} bytes; the limit is {limits.body_bytes}", tag=tag)
        self.offsets = [offset for offset, length in spans if length]
        """What is to be freed when all is read."""
        self.list = pack_spans(
            [
                (p, length) if length else (0, 0)
                for p, (_, length) in zip(places, spans, strict=True)
            ]
        )
        self._region = region
        self.memory = _memory(nbytes, headroom, self._pieces, region.address, tag)
        self._requests: list[Any] = []
        self._failed = OK

    def begin(self, endpoint: Any, param: Any) -> int:
        """Begin to read; return a status: OK, or why it failed."""
        at = self.memory.buffer.address + self.memory.start
        for offset, length in self._pieces:
            source = self._region.address + offset
            request = ucp.ucp_get_nbx(
                endpoint, ffi.cast("void *", at), length, source, self._region.key, param
            )
            at += -(-length // _ALIGNMENT) * _ALIGNMENT
            status = status_of(request)
            if request == NULL:
                continue
            if status != IN_PROGRESS:
                return status
            self._requests.append(request)
        return OK

    def status(self) -> int:
        """Return OK when all is read, IN_PROGRESS, or why it failed."""
        while self._requests:
            status = ucp.ucp_request_check_status(self._requests[-1])
            if status == IN_PROGRESS:
                break
            ucp.ucp_request_free(self._requests.pop())
            self._failed = self._failed or status
        if self._failed != OK:
            return self._failed
        return IN_PROGRESS if self._requests else OK

    def body(self) -> PlacedBody:
        """Return the body, once all is read."""
        return PlacedBody(ReceivedBody.copy_of(self.list), FetchedRegion(self.memory))

    def drop(self) -> object:
        """Give up; return the memory that may still be written to."""
        for request in self._requests:
            ucp.ucp_request_free(request)
        self._requests.clear()
        return self.memory


def _plan(spans: list[Span]) -> tuple[list[Span], list[int], int]:
    """Return what to read, where each buffer will lie, and how much memory that takes.

    Buffers that lie close to each other, as those of a packed body do, are read at once.
    """
    filled = [span for span in spans if span[1]]
    if not filled:
        return [], [0] * len(spans), 0
    begin = min(offset for offset, _ in filled)
    end = max(offset + length for offset, length in filled)
    if end - begin <= 2 * sum(length for _, length in filled) + _MOST_GAP:
        nbytes = -(-(end - begin) // _ALIGNMENT) * _ALIGNMENT
        return [(begin, end - begin)], [offset - begin for offset, _ in spans], nbytes
    pieces: list[Span] = []
    at: dict[Span, int] = {}
    nbytes = 0
    for span in filled:
        if span not in at:
            at[span] = nbytes
            pieces.append(span)
            nbytes += -(-span[1] // _ALIGNMENT) * _ALIGNMENT
    return pieces, [at.get(span, 0) for span in spans], nbytes


def _memory(nbytes: int, headroom: int, pieces: list[Span], address: int, tag: int) -> ReceivedBody:
    try:
        memory = ReceivedBody(nbytes, headroom + _ALIGNMENT)
    except MemoryError:
        raise LimitError(f"no memory for a body of {nbytes} bytes", tag=tag) from None
    if pieces:
        # A copy whose target lies less than 64 bytes behind its source, counted within a page,
        # takes processors three times as long.
        target, source = memory.buffer.address + memory.start, address + pieces[0][0]
        if 0 < (target - source) % _PAGE < _ALIGNMENT:
            memory.start -= _ALIGNMENT
        at = memory.start
        for _, length in pieces:
            end = at + -(-length // _ALIGNMENT) * _ALIGNMENT
            memory.view[at + length : end] = bytes(end - at - length)
            at = end
    return memory
