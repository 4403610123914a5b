"""Checks of the places of messages in the footer of an Arrow IPC file ("IPC File Format")."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import ProtocolError
from .file import HEAD_BYTES, Footer
from .message import HeaderType
from .message_reader import MessageReader, Read

BATCH_NAMES = {
    HeaderType.DICTIONARY_BATCH: "dictionary batch",
    HeaderType.RECORD_BATCH: "record batch",
}
"""The names of the messages that a footer lists, for errors."""
_SMALLEST_GAP = 64
"""The size in bytes from which the space between two messages may contain another one."""


def find_layout_problems(read: Read, footer: Footer, end: int) -> Iterator[tuple[str, int, str]]:
    """Yield messages that overlap, and messages that the footer does not list.

    Parameters
    ----------
    read : callable
        Returns bytes of the file: ``read(offset, nbytes)``.
    footer : Footer
        The footer.
    end : int
        The offset of the footer in the file, in bytes.

    Yields
    ------
    tuple
        The part of the file, its offset in bytes, and the problem.
    """
    listed = [
        (block[0], sum(block), f"{BATCH_NAMES[header_type]} {index}")
        for header_type, blocks in (
            (HeaderType.DICTIONARY_BATCH, footer.dictionaries),
            (HeaderType.RECORD_BATCH, footer.record_batches),
        )
        for index, block in enumerate(blocks.iter_tuples(0, len(blocks)))
    ]
    listed.sort()
    position, previous = HEAD_BYTES, ""
    for begin, stop, place in listed:
        if begin < position:
            yield place, begin, f"it overlaps {previous}, which ends at byte {position}"
        elif begin - position >= _SMALLEST_GAP:
            yield from _find_unlisted(read, position, begin)
        if stop > position:
            position, previous = stop, place
    if end - position >= _SMALLEST_GAP:
        yield from _find_unlisted(read, position, end)


def _find_unlisted(read: Read, begin: int, end: int) -> Iterator[tuple[str, int, str]]:
    """Yield the first batch between two messages."""
    reader = MessageReader(read, end, begin)
    try:
        while (message := reader.next_message()) is not None:
            if message.header_type in BATCH_NAMES:
                name = BATCH_NAMES[message.header_type]
                problem = f"the footer does not list the {name} at byte {message.offset}"
                yield "footer", message.offset, problem
                return
    except ProtocolError:
        return  # the space between messages has no format
