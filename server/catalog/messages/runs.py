"""Runs: consecutive messages of a file with equal metadata and bodies of equal size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ....formats.arrow.file import Blocks
from ....protocol.splitter import SourceMessage, SourceRun
from ....transport.memory.files import FileSpan, SourceFile
from .message_index import REGION_BYTES

MAX_BODY_BYTES = REGION_BYTES - 1
"""The largest body of a run, in bytes. Larger bodies are sent as regions of the file."""
_MIN_MESSAGES = 8
_MIN_BYTES = 64 << 10
"""The smallest run in messages or in bytes, whichever it reaches first. It has two messages at
least."""
_FEW_MESSAGES = 32
"""The number of messages up to which one loop over all of them is faster than NumPy."""


class RegionRun(SourceRun):
    """A run whose bodies are at equal distances in a file.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of each message.
    rows : int
        The number of rows of each record batch.
    file : SourceFile
        The file.
    offsets : range
        The offsets of the bodies in the file, in bytes.
    body_bytes : int
        The size of each body in bytes; at least 1.
    """

    __slots__ = ("body_bytes", "file", "offsets")

    def __init__(
        self, metadata: bytes, rows: int, file: SourceFile, offsets: range, body_bytes: int
    ) -> None:
        super().__init__(metadata, rows)
        self.file = file
        self.offsets = offsets
        self.body_bytes = body_bytes

    def __len__(self) -> int:
        return len(self.offsets)

    def message(self, index: int) -> SourceMessage:
        """Return one of the messages."""
        body = FileSpan(self.file, self.offsets[index], self.body_bytes)
        return SourceMessage(self.metadata, (body,), self.body_bytes, self.rows)


_BLOCK = np.dtype(
    {
        "names": ["offset", "metadata", "body"],
        "formats": ["<i8", "<i4", "<i8"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)


def split_runs(
    blocks: Blocks, begin: int, end: int, data: bytes
) -> Iterator[tuple[int, int, NDArray[np.uint8] | None]]:
    """Split consecutive messages into runs and other messages.

    Parameters
    ----------
    blocks : Blocks
        The positions of the messages.
    begin, end : int
        The first message, and the one after the last.
    data : bytes
        The part of the file from the first of these messages to the end of the last.

    Yields
    ------
    begin, end : int
        Some messages, in order.
    messages : numpy.ndarray of uint8, or None
        The bytes of the messages of a run, with the shape (messages, bytes). None for messages
        that form no run.
    """
    if end - begin < _MIN_MESSAGES and len(data) <= _MIN_BYTES // 2:
        yield begin, end, None  # Equal ones among them reach neither minimum.
        return
    if end - begin <= _FEW_MESSAGES:
        messages = _find_single_run(blocks, begin, end, data)
        if messages is not None:
            yield begin, end, messages
            return
    fields = np.frombuffer(blocks.packed, _BLOCK)[begin:end]
    offset, metadata, body = fields["offset"], fields["metadata"], fields["body"]
    size = metadata + body
    repeats = (
        (metadata[1:] == metadata[:-1])
        & (body[1:] == body[:-1])
        & (offset[1:] - offset[:-1] == size[:-1])
        & (body[1:] > 0)
        & (body[1:] <= MAX_BODY_BYTES)
    )
    first = 0
    for start, stop in _find_true(repeats, 2):
        at, period = int(offset[start] - offset[0]), int(size[start])
        least = _count_least(period)
        if stop - start < least:
            continue
        messages = np.frombuffer(data, np.uint8, (stop - start) * period, at)
        messages = messages.reshape(stop - start, period)
        heads = messages[:, : metadata[start]]
        equal = (heads[1:] == heads[:-1]).all(axis=1)
        for low, high in _find_true(equal, least):
            if first < start + low:
                yield begin + first, begin + start + low, None
            first = start + high
            yield begin + start + low, begin + first, messages[low:high]
    if begin + first < end:
        yield begin + first, end, None


def _find_single_run(blocks: Blocks, begin: int, end: int, data: bytes) -> NDArray[np.uint8] | None:
    """Return the bytes of all messages as `split_runs` does, or None if they are not one run."""
    offset, metadata, body = blocks[begin]
    count, period = end - begin, metadata + body
    if not 0 < body <= MAX_BODY_BYTES or count < _count_least(period):
        return None
    head = data[:metadata]
    at = 0
    for block in blocks.iter_tuples(begin, end):
        if block != (offset + at, metadata, body) or data[at : at + metadata] != head:
            return None
        at += period
    return np.frombuffer(data, np.uint8, at).reshape(count, period)


def _count_least(period: int) -> int:
    """Return the least number of messages of a run; `period` is their size in bytes."""
    return min(_MIN_MESSAGES, max(2, _MIN_BYTES // period))


def _find_true(links: NDArray[np.bool_], least: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of each chain of at least `least` linked elements.

    Element i of `links` states whether the elements i and i + 1 belong together.
    """
    if links.all():
        if len(links) + 1 >= least:
            yield 0, len(links) + 1
        return
    breaks = np.flatnonzero(~links) + 1
    starts = np.concatenate(([0], breaks))
    stops = np.concatenate((breaks, [len(links) + 1]))
    for index in np.flatnonzero(stops - starts >= least):
        yield int(starts[index]), int(stops[index])
