"""Bodies of type 1 on the server's side: where the buffers of a message lie in a region."""

from __future__ import annotations

from ..errors import ProtocolError
from ..formats.arrow.message import BatchFacts, batch_facts
from .bodies import Span


class Placer:
    """Says where the buffers of messages lie, whose bodies lie packed in a region.

    Messages alike in their metadata are read once.
    """

    def __init__(self) -> None:
        self._known = b""
        self._buffers: list[Span] = []

    def spans(self, metadata: bytes | memoryview, body_length: int, offset: int) -> list[Span]:
        """Return an (offset, length) pair for each buffer; (0, 0) for one that is empty.

        Parameters
        ----------
        metadata : bytes-like
            The FlatBuffer of a record batch or dictionary batch.
        body_length : int
            The size of its packed body in bytes.
        offset : int
            Where the body begins in the region, in bytes.

        Raises
        ------
        ProtocolError
            If the metadata is malformed, or lists a buffer outside the body.
        """
        if metadata != self._known:
            self._buffers = _within(batch_facts(metadata), body_length)
            self._known = bytes(metadata)
        return [(offset + place, length) if length else (0, 0) for place, length in self._buffers]


def _within(facts: BatchFacts, body_length: int) -> list[Span]:
    for index, (offset, length) in enumerate(facts.buffers):
        if offset < 0 or length < 0 or offset + length > body_length:
            raise ProtocolError(
                f"buffer {index} (offset {offset}, length {length}) lies outside the body of "
                f"{body_length} bytes"
            )
    return [(offset, length) for offset, length in facts.buffers]
