"""Spans of buffers in a region, for a server that sends bodies of type 1 (offsets)."""

from __future__ import annotations

from ...errors import ProtocolError
from .message import BufferSpan, HeaderType, read_batch_layout, read_message_info
from .tensors.parsing import read_tensor_buffers

Span = tuple[int, int]
"""An offset and a length, in bytes."""


class BufferLocator:
    """Locates the buffers of messages whose packed bodies are in a region.

    Consecutive messages with equal metadata are parsed once.
    """

    def __init__(self) -> None:
        self._metadata = b""
        self._buffers: list[Span] = []

    def locate(self, metadata: bytes | memoryview, body_length: int, offset: int) -> list[Span]:
        """Return the span of each buffer in the region, (0, 0) for an empty buffer.

        Parameters
        ----------
        metadata : bytes-like
            The FlatBuffer of a record batch, dictionary batch or tensor.
        body_length : int
            The size of its packed body in bytes.
        offset : int
            The offset of the body in the region, in bytes.

        Raises
        ------
        ProtocolError
            If the metadata is malformed, or lists a buffer outside the body.
        """
        if metadata != self._metadata:
            self._buffers = _check_buffers(_read_buffers(metadata), body_length)
            self._metadata = bytes(metadata)
        return [(offset + begin, length) if length else (0, 0) for begin, length in self._buffers]


def _read_buffers(metadata: bytes | memoryview) -> list[BufferSpan]:
    if read_message_info(metadata).header_type in (HeaderType.TENSOR, HeaderType.SPARSE_TENSOR):
        return read_tensor_buffers(metadata)
    return read_batch_layout(metadata).buffers


def _check_buffers(buffers: list[BufferSpan], body_length: int) -> list[Span]:
    """Return the spans of the buffers in the body, all of which are within it."""
    for index, (offset, length) in enumerate(buffers):
        if offset < 0 or length < 0 or offset + length > body_length:
            raise ProtocolError(
                f"buffer {index} (offset {offset}, length {length}) is outside the body of "
                f"{body_length} bytes"
            )
    return [(offset, length) for offset, length in buffers]
