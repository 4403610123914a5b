"""Remote bodies on the reader's side: read from the server's memory into memory of the reader."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pyarrow as pa

from ...errors import LimitError, ProtocolError
from ...protocol.frames import IncomingFrame, make_received_frame
from ...protocol.limits import Limits
from ...protocol.memory import ALIGNMENT, BodyPool, ReceivedBody
from ...protocol.payloads import Span, pack_spans, parse_spans
from ...protocol.regions import RemoteBody
from .ffi import IN_PROGRESS, NULL, OK, StatusError, ffi, get_status, ucp
from .memory import AnnouncedRegion

_PAGE = 4096
_MAX_GAP = 64 << 10
_BUFFER_COUNT = struct.Struct("<8xQ")


class RemoteReads:
    """The remote bodies of one connection: the announced regions, and the reads under way."""

    def __init__(
        self,
        endpoint: Any,
        limits: Limits,
        pool: BodyPool,
        announcement_tag: int,
        param: Any,
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._pool = pool
        self._param = param
        self._regions: list[AnnouncedRegion] = []
        self._reads: list[RemoteRead] = []
        self.announcement_tag = announcement_tag
        """The tag of region announcements."""
        self.freed: list[int] = []
        """The offsets of bodies that have been read. The owner takes them and frees them."""

    @property
    def latest_region(self) -> AnnouncedRegion | None:
        """The region that was announced last; None before the first."""
        return self._regions[-1] if self._regions else None

    @property
    def count(self) -> int:
        """The number of reads under way."""
        return len(self._reads)

    @property
    def nbytes(self) -> int:
        """The bytes of the reads under way."""
        return sum(read.nbytes for read in self._reads)

    @property
    def has_completed(self) -> bool:
        """Whether a read has completed that `take` has not returned."""
        return any(read.status() != IN_PROGRESS for read in self._reads)

    def add_region(self, announcement: bytes) -> None:
        """Add a region that the server has announced; raise `ProtocolError` if malformed."""
        self._regions.append(AnnouncedRegion(self._endpoint, announcement))

    def start(
        self, tag: int, spans: memoryview, region: AnnouncedRegion | None, headroom: int
    ) -> None:
        """Start to read a body.

        Raises `ProtocolError` if no region was announced, or a buffer is outside it. Raises
        `LimitError` if the body is too large, or there is no memory for it. Raises `StatusError` if
        the library cannot read.
        """
        if region is None:
            raise ProtocolError("a remote body arrived before any region", tag=tag)
        read = RemoteRead(tag, spans, region, self._limits, self._pool, headroom)
        self._reads.append(read)
        read.start(self._endpoint, self._param)

    def take(self, frames: list[IncomingFrame]) -> int:
        """Append the bodies that have been read to `frames`; return their size in bytes."""
        under_way: list[RemoteRead] = []
        failed = OK
        nbytes = 0
        for read in self._reads:
            status = read.status()
            if status == OK:
                nbytes += read.nbytes
                self.freed += read.offsets
                frames.append(make_received_frame((read.tag, read.body())))
            else:
                under_way.append(read)
                if status != IN_PROGRESS:
                    failed = failed or status
        self._reads = under_way
        if failed != OK:
            raise StatusError(failed)
        return nbytes

    def abandon(self) -> list[object]:
        """Abandon all reads and return the memory that they may still write to."""
        memory = [read.abandon() for read in self._reads]
        self._reads.clear()
        for region in self._regions:
            region.destroy()
        self._regions.clear()
        return memory


class RemoteRead:
    """One body that is being read.

    Raises `ProtocolError` if a buffer is outside the region. Raises `LimitError` if the body is too
    large, or there is no memory for it.
    """

    def __init__(
        self,
        tag: int,
        payload: memoryview,
        region: AnnouncedRegion,
        limits: Limits,
        pool: BodyPool,
        headroom: int,
    ) -> None:
        self.tag = tag
        """The body's tag."""
        count = _BUFFER_COUNT.unpack_from(payload)[0] if len(payload) >= _BUFFER_COUNT.size else 0
        if count > limits.buffers:
            raise LimitError(f"a body of {count} buffers; the limit is {limits.buffers}", tag=tag)
        spans = parse_spans(payload, region_size=region.size, expected=count)
        plan = _plan_read(spans)
        self._pieces = plan.pieces
        self.nbytes = sum(length for _, length in plan.pieces)
        """The bytes to read."""
        if plan.nbytes > limits.body_bytes:
            raise LimitError(
                f"a body of {plan.nbytes} bytes; the limit is {limits.body_bytes}", tag=tag
            )
        self.offsets = [offset for offset, length in spans if length]
        """The offsets to free once the body has been read."""
        self._local_spans = pack_spans(
            [
                (offset, length) if length else (0, 0)
                for offset, (_, length) in zip(plan.offsets, spans, strict=True)
            ]
        )
        self._region = region
        memory = pool.allocate(plan.nbytes, headroom + ALIGNMENT, tag)
        self._memory = _prepare(memory, plan.pieces, region.address)
        self._requests: list[Any] = []
        self._failed = OK

    def start(self, endpoint: Any, param: Any) -> None:
        """Start to read; raise `StatusError` if the library cannot."""
        target = self._memory.buffer.address + self._memory.start
        for offset, length in self._pieces:
            source = self._region.address + offset
            request = ucp.ucp_get_nbx(
                endpoint, ffi.cast("void *", target), length, source, self._region.key, param
            )
            target += _round_up(length)
            if request == NULL:
                continue
            status = get_status(request)
            if status != IN_PROGRESS:
                raise StatusError(status)
            self._requests.append(request)

    def status(self) -> int:
        """Return OK if everything has been read, IN_PROGRESS, or the status of a failure."""
        while self._requests:
            status = ucp.ucp_request_check_status(self._requests[-1])
            if status == IN_PROGRESS:
                break
            ucp.ucp_request_free(self._requests.pop())
            self._failed = self._failed or status
        if self._failed != OK:
            return self._failed
        return IN_PROGRESS if self._requests else OK

    def body(self) -> RemoteBody:
        """Return the body, once it has been read."""
        return RemoteBody(
            ReceivedBody.wrap(pa.py_buffer(self._local_spans)), LocalRegion(self._memory)
        )

    def abandon(self) -> object:
        """Abandon the read and return the memory that it may still write to."""
        for request in self._requests:
            ucp.ucp_request_free(request)
        self._requests.clear()
        return self._memory


class LocalRegion:
    """The buffers of one body after they have been read: a `Region` in memory of this process."""

    def __init__(self, body: ReceivedBody) -> None:
        self._body = body
        self.size = body.nbytes
        """The size in bytes."""

    def check(self) -> None:
        """Do nothing: no other process can change this memory."""

    def prefixed_buffer(
        self, prefix: bytes, offset: int, nbytes: int, owner: object
    ) -> pa.Buffer | None:
        """Return a span behind `prefix`, which is written into the headroom; see `Region`."""
        body = self._body
        begin = body.start - len(prefix)
        if offset or begin < 0 or nbytes > self.size:
            return None
        body.view[begin : body.start] = prefix
        return body.buffer.slice(begin, len(prefix) + nbytes)

    def repeats(self, data: bytes, begin: int, period: int, count: int) -> bool:
        """Return False: there is only one body."""
        return False

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        """Return a span; see `Region.buffer`. Nothing is leased, so `owner` is not kept alive."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ProtocolError(
                f"{nbytes} bytes at offset {offset} are outside a region of {self.size} bytes"
            )
        return self._body.buffer.slice(self._body.start + offset, nbytes)


class _ReadPlan(NamedTuple):
    """How to read the buffers of a body, and how to lay them out."""

    pieces: list[Span]
    """The spans of the region to read, one request each."""
    offsets: list[int]
    """The offset of each buffer in local memory; 0 for an empty one."""
    nbytes: int
    """The size of the local memory in bytes."""


def _plan_read(spans: list[Span]) -> _ReadPlan:
    """Plan to read buffers close to each other, as those of a packed body are, in one piece."""
    filled = [span for span in spans if span[1]]
    if not filled:
        return _ReadPlan([], [0] * len(spans), 0)
    begin = min(offset for offset, _ in filled)
    end = max(offset + length for offset, length in filled)
    if end - begin <= 2 * sum(length for _, length in filled) + _MAX_GAP:
        offsets = [offset - begin for offset, _ in spans]
        return _ReadPlan([(begin, end - begin)], offsets, _round_up(end - begin))
    pieces: list[Span] = []
    local: dict[Span, int] = {}
    nbytes = 0
    for span in filled:
        if span not in local:
            local[span] = nbytes
            pieces.append(span)
            nbytes += _round_up(span[1])
    return _ReadPlan(pieces, [local.get(span, 0) for span in spans], nbytes)


def _prepare(memory: ReceivedBody, pieces: list[Span], address: int) -> ReceivedBody:
    """Align the memory for a body with its source, and write zeros between its pieces."""
    if pieces:
        # Processors copy three times slower if the target is less than 64 bytes behind the source
        # modulo the page size.
        target, source = memory.buffer.address + memory.start, address + pieces[0][0]
        if memory.start and 0 < (target - source) % _PAGE < ALIGNMENT:
            memory.start -= ALIGNMENT
        position = memory.start
        for _, length in pieces:
            end = position + _round_up(length)
            memory.view[position + length : end] = bytes(end - position - length)
            position = end
    return memory


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
