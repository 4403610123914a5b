"""Finding the tensors in a file or buffer: one message after the other, bodies unread.

Both framings may occur. A schema message that announces tensors may come first: it declares the
byte order, which is little-endian without it. Padding of zeros may follow a body, up to the next
multiple of 64 bytes, as pyarrow writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ....errors import InvalidDataError, LimitError, ProtocolError
from ..framing import CONTINUATION, parse_prefix
from ..message import HeaderType, read_endianness, read_message_info
from ..schema import read_schema
from .labels import Labels, is_tensor_content, read_labels
from .layout import AnyLayout
from .parsing import read_tensor_layout

MAX_TENSORS = 1 << 16
"""The largest number of tensors in a file."""
MAX_METADATA_BYTES = 1 << 20
"""The largest metadata of a tensor, in bytes."""
_ALIGNMENT = 64


class TensorMessage(NamedTuple):
    """The message of a tensor in a file."""

    offset: int
    """The offset of the message in the file, in bytes."""
    metadata: bytes
    """The FlatBuffer of the message."""
    layout: AnyLayout
    """The layout of the tensor."""
    labels: Labels
    """The labels of the tensor."""
    body_offset: int
    """The offset of the body in the file, in bytes."""
    is_big_endian: bool
    """Whether the values are big-endian."""


def scan_tensors(read: Callable[[int, int], bytes], size: int) -> Iterator[TensorMessage]:
    """Yield the messages of the tensors in a file, after checking their metadata.

    Parameters
    ----------
    read : callable
        Returns bytes of the file: ``read(offset, nbytes)``.
    size : int
        The size of the file in bytes.

    Raises
    ------
    InvalidDataError
        If the file is truncated, or has something else than tensors. The error gives the offset of
        the message.
    LimitError
        If the file has more than `MAX_TENSORS` tensors.
    """
    position, count, is_big_endian = 0, 0, False
    is_first = True
    while (begin := _skip_padding(read, position, size)) < size:
        try:
            body_offset, metadata = _read_metadata(read, begin, size)
            if not metadata:
                _check_end(read, body_offset, size)
                return
            info = read_message_info(metadata)
            if is_first and info.header_type is HeaderType.SCHEMA:
                if not is_tensor_content(read_schema(metadata)):
                    raise InvalidDataError("the schema announces no tensors")
                is_big_endian = read_endianness(metadata) == "big"
                is_first, position = False, body_offset
                continue
            is_first = False
            layout = read_tensor_layout(metadata)
            labels = read_labels(metadata, layout)
            position = body_offset + layout.body_length
            if position > size:
                raise InvalidDataError(
                    f"its body ends at byte {position}, but there are {size} bytes"
                )
        except ProtocolError as error:
            error.message = f"the message at byte {begin}: {error.message}"
            raise
        count += 1
        if count > MAX_TENSORS:
            raise LimitError(f"the file has more than {MAX_TENSORS} tensors")
        yield TensorMessage(begin, metadata, layout, labels, body_offset, is_big_endian)


def is_tensor_head(head: bytes) -> bool:
    """Return whether the first bytes of a file are the message of a tensor.

    Parameters
    ----------
    head : bytes
        The first bytes, up to `MAX_METADATA_BYTES` and 8 bytes more.
    """
    try:
        prefix = parse_prefix(head[:8])
        end = prefix.nbytes + prefix.metadata_length
        if not 0 < prefix.metadata_length <= len(head) - prefix.nbytes:
            return False
        metadata = head[prefix.nbytes : end]
        header_type = read_message_info(metadata).header_type
        if header_type is HeaderType.SCHEMA:
            return is_tensor_content(read_schema(metadata))
    except ProtocolError:
        return False
    return header_type in (HeaderType.TENSOR, HeaderType.SPARSE_TENSOR)


def _skip_padding(read: Callable[[int, int], bytes], position: int, size: int) -> int:
    """Return the offset of the next message; `size` if only zeros follow."""
    if not position:
        return 0
    aligned = min(-(-position // _ALIGNMENT) * _ALIGNMENT, size)
    padding = read(position, aligned - position)
    zeros = len(padding) - len(padding.lstrip(b"\0"))
    if zeros == len(padding):
        return aligned
    # After padding, a message begins at a multiple of 8. The first byte of a length may be 0.
    return max(position + -position % 8, (position + zeros) // 8 * 8) if zeros else position


def _read_metadata(read: Callable[[int, int], bytes], begin: int, size: int) -> tuple[int, bytes]:
    """Return the offset after the metadata of a message, and the metadata; empty at the end."""
    head = read(begin, min(8, size - begin))
    if len(head) < 4 or (head.startswith(CONTINUATION) and len(head) < 8):
        raise InvalidDataError("it is truncated in its prefix")
    prefix = parse_prefix(head)
    end = begin + prefix.nbytes + prefix.metadata_length
    if prefix.metadata_length > MAX_METADATA_BYTES:
        raise LimitError(
            f"its metadata has {prefix.metadata_length} bytes; the limit is {MAX_METADATA_BYTES}"
        )
    if end > size:
        raise InvalidDataError(f"its metadata ends at byte {end}, but there are {size} bytes")
    return end, read(begin + prefix.nbytes, prefix.metadata_length)


def _check_end(read: Callable[[int, int], bytes], end: int, size: int) -> None:
    """Refuse data after the end marker, which would otherwise be lost silently."""
    rest = size - end
    if rest > _ALIGNMENT or any(read(end, rest)):
        raise InvalidDataError(f"{rest} bytes follow the end marker")
