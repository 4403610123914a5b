"""Checks of whole Arrow IPC files and streams, without decoding their bodies.

A scan reads the metadata of all messages, and of compressed bodies 8 bytes for each buffer. It
compares the places of the messages with the footer. It continues after a defect where the place of
the next message is known. The module performs no I/O: the caller passes a function that reads.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from ...errors import InvalidDataError, LimitError, ProtocolError
from .checker import CheckedMessage, MessageChecker
from .custom_metadata import make_schema_message
from .file import (
    HEAD_BYTES,
    MAGIC,
    TAIL_BYTES,
    Blocks,
    Footer,
    FramedMessage,
    MessageReader,
    Read,
    check_trailing_bytes,
    find_footer,
    read_footer,
    read_footer_pairs,
)
from .message import HeaderType, read_batch_table, read_message_info
from .schema import read_dictionary_types, read_schema

BATCH_NAMES = {
    HeaderType.DICTIONARY_BATCH: "dictionary batch",
    HeaderType.RECORD_BATCH: "record batch",
}
"""The names of the messages that a footer lists, for errors."""
_SMALLEST_GAP = 64
"""The size in bytes from which the space between two messages may contain another one."""
_SEARCH_BYTES = 1 << 20
_FILE_HEAD = MAGIC.ljust(HEAD_BYTES, b"\0")
_FOOTER = "footer"


def find_layout_problems(read: Read, footer: Footer, end: int) -> Iterator[tuple[str, int, str]]:
    """Yield the place, offset and problem of messages that overlap or that the footer omits.

    A file that begins between the last message and the footer, at offset `end`, is a problem, too:
    the offsets in the footer of the last one of several files of one size are those of the first.
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
        unlisted = list(_find_unlisted(read, position, end))
        yield from unlisted or _find_file(read, position, end)


def check_all_listed(read: Read, footer: Footer, end: int) -> None:
    """Refuse a file with data that its footer does not list, which would be lost silently.

    `end` is the offset of the footer. Nothing is read of a file whose record batches have no gaps.
    Raises `InvalidDataError`.
    """
    blocks = footer.dictionaries + footer.record_batches
    begin, listed = end if len(blocks) else HEAD_BYTES, 0
    for offset, metadata_length, body_length in blocks.iter_tuples(0, len(blocks)):
        begin = min(begin, offset)
        listed += metadata_length + body_length
    if end - begin - listed >= _SMALLEST_GAP:
        for place, _, problem in find_layout_problems(read, footer, end):
            if place == _FOOTER:
                raise InvalidDataError(problem)


def check_file(read: Read, size: int) -> None:
    """Refuse a file with data that its footer does not list; see `check_all_listed`."""
    tail_offset = max(0, size - TAIL_BYTES)
    offset, length = find_footer(read(tail_offset, size - tail_offset), size)
    check_all_listed(read, read_footer(read(offset, length), offset), offset)


def _find_unlisted(read: Read, begin: int, end: int) -> Iterator[tuple[str, int, str]]:
    """Yield the first batch between two messages."""
    reader = MessageReader(read, end, begin)
    try:
        while (message := reader.next_message()) is not None:
            if message.header_type in BATCH_NAMES:
                name = BATCH_NAMES[message.header_type]
                problem = f"the footer does not list the {name} at byte {message.offset}"
                yield _FOOTER, message.offset, problem
                return
    except ProtocolError:
        return  # the space between messages has no format


def _find_file(read: Read, begin: int, end: int) -> Iterator[tuple[str, int, str]]:
    """Yield the first file that begins between two offsets."""
    for position in range(begin, end, _SEARCH_BYTES):
        data = read(position, min(_SEARCH_BYTES + len(_FILE_HEAD), end - position))
        found = data.find(_FILE_HEAD)
        if found >= 0:
            offset = position + found
            problem = (
                f"another Arrow IPC file begins at byte {offset}, and the footer lists the record "
                "batches of only one; expected one file"
            )
            yield _FOOTER, offset, problem
            return


_I64 = struct.Struct("<q")
_HEAD_BYTES = 256
_MARKER = re.compile(rb"(?=\xff{4}(?!\xff{4}))")


class Defect(NamedTuple):
    """A defect of a file."""

    place: str
    """The part of the file: ``message 3``, ``record batch 2``, ``footer``."""
    offset: int | None
    """The offset of that part in bytes; None if it has none."""
    problem: str
    """The problem, with the field and the buffer if there are such."""
    nbytes: int | None = None
    """The size of the part in bytes, if it is known."""
    rows: int | None = None
    """The number of rows in it, if it is known."""


class ScannedMessage(NamedTuple):
    """A message that has passed the checks."""

    number: int
    """The number of messages before it."""
    place: str
    """Its name for errors: ``message 3``, ``record batch 2``."""
    message: FramedMessage
    """Its position and its metadata."""
    checked: CheckedMessage
    """Its properties."""


class FileScan:
    """The scan of one file or stream.

    With `searches`, it looks for the next message after a defect that hides the place of that
    message. Otherwise it ends there. Without `uses_footer`, it reads a file as a stream.
    """

    def __init__(
        self,
        read: Read,
        size: int,
        *,
        searches: bool = False,
        uses_footer: bool = True,
        max_nesting: int = 64,
        max_metadata_bytes: int = 16 << 20,
        max_decoded_bytes: int = 2 << 30,
        max_buffers: int = 1 << 20,
    ) -> None:
        self._read = read
        self._size = size
        self._searches = searches
        self._uses_footer = uses_footer
        self._max_nesting = max_nesting
        self._max_metadata_bytes = max_metadata_bytes
        self._max_decoded_bytes = max_decoded_bytes
        self._max_buffers = max_buffers
        self._checker: MessageChecker | None = None
        self._dictionaries: set[int | None] = set()
        self.is_file = read(0, min(size, len(MAGIC))) == MAGIC
        """Whether it is an Arrow IPC file; otherwise, it is a stream."""
        self.schema: pa.Schema | None = None
        """The schema; None if none could be read so far."""
        self.schema_metadata = b""
        """The FlatBuffer of the schema message."""
        self.dictionary_ids: frozenset[int] = frozenset()
        """The IDs of the dictionaries of the schema."""
        self.footer: Footer | None = None
        """The footer; None for a stream, and if it is damaged."""
        self._footer_bytes = b""
        self.defects: list[Defect] = []
        """The defects that the scan has found so far."""

    def messages(self) -> Iterator[ScannedMessage]:
        """Yield the dictionary batches and record batches that are sound."""
        if not self.is_file:
            yield from self._scan_stream(0, self._size)
            return
        has_footer = self._read_footer()
        if has_footer and self.footer is not None and self._uses_footer:
            yield from self._scan_blocks(self.footer)
        else:
            self.schema, self.footer = None, None
            self.dictionary_ids = frozenset()
            yield from self._scan_stream(min(HEAD_BYTES, self._size), self._size)

    def read_footer_metadata(self) -> list[tuple[bytes | None, bytes | None]]:
        """Return the custom metadata of the footer; empty if the footer is damaged."""
        return read_footer_pairs(self._footer_bytes) if self._footer_bytes else []

    def _add_defect(self, place: str, offset: int, problem: str, nbytes: int | None = None) -> None:
        self.defects.append(Defect(place, offset, problem, nbytes))

    # Streams.

    def _scan_stream(self, begin: int, end: int) -> Iterator[ScannedMessage]:
        reader = MessageReader(self._read, end, begin, max_metadata_bytes=self._max_metadata_bytes)
        number = 0
        while True:
            place = f"message {number}"
            offset = reader.offset
            try:
                message = reader.next_message()
            except ProtocolError as error:
                next_offset = self._find_message(offset + 8, end) if self._searches else end
                rows = None if reader.cut_message is None else _count_rows(reader.cut_message)
                defect = Defect(place, offset, error.message, next_offset - offset, rows)
                self.defects.append(defect)
                if next_offset == end:
                    break
                reader.offset = next_offset
                number += 1
                continue
            if message is None:
                next_offset = self._find_message(reader.offset, end) if self._searches else end
                if next_offset == end:
                    self._check_end(reader.offset, end, place)
                    break
                problem = f"the stream ends at byte {reader.offset}, but messages follow"
                self._add_defect(place, offset, problem, next_offset - offset)
                reader.offset = next_offset
                number += 1
                continue
            if number == 0 or (self.schema is None and message.header_type is HeaderType.SCHEMA):
                if not self._read_schema(message.metadata, "message 0", message.offset):
                    break
            elif (scanned := self._check(number, place, message)) is not None:
                yield scanned
            number += 1
        if self.schema is None and not self.defects:
            self._add_defect("message 0", begin, "the stream has no schema")

    def _check_end(self, offset: int, end: int, place: str) -> None:
        if self.is_file:
            return  # the footer follows, damaged or not
        try:
            check_trailing_bytes(self._read, offset, end)
        except ProtocolError as error:
            self._add_defect(place, offset, error.message, end - offset)

    def _read_schema(self, metadata: bytes, place: str, offset: int) -> bool:
        """Read a schema message, and return whether it is sound."""
        try:
            schema = read_schema(
                metadata, max_nesting=self._max_nesting, max_bytes=self._max_metadata_bytes
            )
            types = read_dictionary_types(metadata, schema)
        except ProtocolError as error:
            self._add_defect(place, offset, error.message)
            return False
        self.schema, self.schema_metadata = schema, metadata
        self.dictionary_ids = frozenset(types)
        self._checker = MessageChecker(
            schema,
            types,
            max_buffers=self._max_buffers,
            max_metadata_bytes=self._max_metadata_bytes,
            max_decoded_bytes=self._max_decoded_bytes,
        )
        return True

    def _check(self, number: int, place: str, message: FramedMessage) -> ScannedMessage | None:
        """Return a message if it is sound; otherwise, record its defect."""
        problem, checked = "", None
        try:
            if self._checker is None:
                raise InvalidDataError("there is no schema before it")
            checked = self._check_parts(self._checker, message)
            problem = self._check_dictionary(checked)
        except ProtocolError as error:
            problem = error.message
        if checked is not None and not problem:
            return ScannedMessage(number, place, message, checked)
        nbytes, rows = message.end - message.offset, _count_rows(message)
        self.defects.append(Defect(place, message.offset, problem, nbytes, rows))
        return None

    def _check_parts(self, checker: MessageChecker, message: FramedMessage) -> CheckedMessage:
        begin = message.body_offset
        return checker.check_parts(
            message.metadata,
            message.body_length,
            lambda at: _I64.unpack(self._read(begin + at, 8))[0],
        )

    def _check_dictionary(self, checked: CheckedMessage) -> str:
        """Return the problem with the order of dictionaries; empty if there is none."""
        key = checked.dictionary_id
        if key is None:
            return ""
        if checked.is_delta and key not in self._dictionaries:
            return f"it extends the dictionary {key}, which does not precede it"
        if self.footer is not None and not checked.is_delta and key in self._dictionaries:
            return f"it replaces the dictionary {key}, which is allowed in streams only"
        self._dictionaries.add(key)
        return ""

    def _find_message(self, begin: int, end: int) -> int:
        """Return the offset of the next message from `begin`; `end` if there is none."""
        position = begin
        while position < end:
            data = self._read(position, min(_SEARCH_BYTES, end - position))
            for found in _MARKER.finditer(data):
                offset = position + found.start()
                may_be_message = offset % 8 == 0 and _may_be_message(data, found.start())
                if may_be_message and self._is_message(offset, end):
                    return offset
            position += max(len(data) - 8, 1) if position + len(data) < end else len(data)
        return end

    def _is_message(self, offset: int, end: int) -> bool:
        """Return whether a message that fits the schema begins at `offset`."""
        reader = MessageReader(self._read, end, offset, max_metadata_bytes=self._max_metadata_bytes)
        try:
            message = reader.next_message()
            if message is None:
                return False
            if message.header_type is HeaderType.SCHEMA:
                return self.schema is None
            if self._checker is None or message.header_type not in BATCH_NAMES:
                return False
            self._check_parts(self._checker, message)
        except ProtocolError:
            return False
        return True

    # Files.

    def _read_footer(self) -> bool:
        """Read the footer and the schema in it, and return whether both are sound."""
        size = self._size
        tail_offset = max(0, size - TAIL_BYTES)
        try:
            span = find_footer(self._read(tail_offset, size - tail_offset), size)
        except ProtocolError as error:
            self._add_defect("footer", tail_offset, error.message)
            return False
        try:
            self._footer_bytes = self._read(span.offset, span.length)
            footer = read_footer(self._footer_bytes, span.offset)
            read_footer_pairs(self._footer_bytes)
        except ProtocolError as error:
            self._footer_bytes = b""
            self._add_defect("footer", span.offset, error.message, span.length)
            return False
        if not self._read_schema(
            make_schema_message(self._footer_bytes), "schema in the footer", span.offset
        ):
            return False
        self.footer = footer
        for place, offset, problem in find_layout_problems(self._read, footer, span.offset):
            self._add_defect(place, offset, problem)
        return True

    def _scan_blocks(self, footer: Footer) -> Iterator[ScannedMessage]:
        number = 0
        for header_type, blocks in (
            (HeaderType.DICTIONARY_BATCH, footer.dictionaries),
            (HeaderType.RECORD_BATCH, footer.record_batches),
        ):
            for index in range(len(blocks)):
                place = f"{BATCH_NAMES[header_type]} {index}"
                message = self._read_block(blocks, index, place, header_type)
                if message is not None:
                    scanned = self._check(number, place, message)
                    if scanned is not None:
                        yield scanned
                number += 1

    def _read_block(
        self, blocks: Blocks, index: int, place: str, header_type: HeaderType
    ) -> FramedMessage | None:
        """Return the message of a block; None if they disagree, which is a defect."""
        offset, metadata_length, body_length = blocks[index]
        end = offset + metadata_length + body_length
        problem = ""
        try:
            # The sizes that the message declares may exceed those of the block.
            message = MessageReader(
                self._read, self._size, offset, max_metadata_bytes=self._max_metadata_bytes
            ).next_message()
            if message is None:
                problem = "it is an end marker"
            elif message.header_type is not header_type:
                problem = f"it is a {message.header_type.name} message"
            elif message.metadata_length != metadata_length:
                problem = (
                    f"it has {message.metadata_length} bytes of metadata; the footer lists "
                    f"{metadata_length}"
                )
            elif message.body_length != body_length:
                problem = (
                    f"it declares a body of {message.body_length} bytes; the footer lists "
                    f"{body_length}"
                )
            else:
                return message
        except (ProtocolError, LimitError) as error:
            problem = error.message
        self._add_defect(place, offset, problem, end - offset)
        return None


def _may_be_message(data: bytes, at: int) -> bool:
    """Return whether the first bytes of an encapsulated message may begin at `at`.

    The root table of metadata is near its beginning, because builders write from the end.
    """
    if at + 8 + _HEAD_BYTES > len(data):
        return True
    try:
        read_message_info(data[at + 8 : at + 8 + _HEAD_BYTES])
    except ProtocolError:
        return False
    return True


def _count_rows(message: FramedMessage) -> int | None:
    """Return the rows that a message declares; None if it is not a record batch."""
    try:
        table = read_batch_table(message.metadata)
    except ProtocolError:
        return None
    return table.rows if table.dictionary_id is None and table.rows >= 0 else None
