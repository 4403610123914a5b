"""Checks of Vortex streams and files for ``splitarrow check``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..errors import InvalidDataError, ProtocolError
from ..formats.arrow.decoding import validate_memory
from ..formats.arrow.file_scan import Defect
from ..formats.vortex.array_body import LazyBytes, read_array_body
from ..formats.vortex.checker import check_array
from ..formats.vortex.dtype import DType, TypeKind, encode_dtype, read_dtype
from ..formats.vortex.file import FileArray, FileFooter, list_arrays, read_file_footer
from ..formats.vortex.message import (
    FramedHeader,
    HeaderReader,
    Message,
    MessageHeader,
    MessageKind,
    build_header,
    build_message,
)
from ..transport.memory.files import SourceFile
from .check_report import Progress, Report
from .check_values import find_reason

_MAX_ROWS = (1 << 32) - 1


def check_stream(file: SourceFile, report: Report, *, full: bool, progress: Progress) -> None:
    """Check all messages of a stream; with `full`, decode the arrays in a child process, too."""
    with _StreamCheck(file, report, full=full) as check:
        reader = HeaderReader(file.read, file.size)
        while True:
            offset = reader.offset
            try:
                found = reader.next_header()
            except ProtocolError as error:
                problem = error.message.removeprefix(f"the message at byte {offset}: ")
                report.add_defect(Defect(f"message {check.number}", offset, problem))
                return
            if found is None:
                return
            check.check_message(found)
            progress(report.rows or 0, found.end)


class _StreamCheck:
    """The check of one stream. A defect of an array does not end it."""

    def __init__(self, file: SourceFile, report: Report, *, full: bool) -> None:
        self._file = file
        self._report = report
        self._full = full
        self._dtype: DType | None = None
        self._decoder: Any = None
        self.number = 0
        """The number of messages before the next one."""

    def __enter__(self) -> _StreamCheck:
        return self

    def __exit__(self, *arguments: object) -> None:
        if self._decoder is not None:
            self._decoder.close()

    def check_message(self, found: FramedHeader) -> None:
        """Check a message whose header is sound."""
        rows = found.header.row_count
        place = f"message {self.number}"
        self.number += 1
        try:
            if found.header.kind is MessageKind.DTYPE:
                self._open(found)
            elif found.header.kind is MessageKind.ARRAY and self._dtype is not None:
                self._check_array(found, place)
            self._report.messages += 1
        except ProtocolError as error:
            nbytes = found.end - found.offset
            self._report.add_defect(Defect(place, found.offset, error.message, nbytes, rows))

    def _open(self, found: FramedHeader) -> None:
        self._dtype = read_dtype(self._file.read(found.body_offset, found.header.body_size))
        self._report.columns = count_columns(self._dtype)
        if self._full:
            from ..isolation.array_decoder import IsolatedDecoder

            self._decoder = IsolatedDecoder(self._read(found))

    def _check_array(self, found: FramedHeader, place: str) -> None:
        header = found.header
        assert self._dtype is not None
        body = LazyBytes(self._file.read, found.body_offset, header.body_size)
        check_array(header, body, self._dtype)
        if self._decoder is not None:
            array = self._decoder.decode_arrow(self._read(found))
            _validate(array, place, found.offset, self._report)
        self._report.record_batches += 1
        self._report.rows = (self._report.rows or 0) + header.row_count

    def _read(self, found: FramedHeader) -> Message:
        body = self._file.read(found.body_offset, found.header.body_size)
        return Message(found.metadata, found.header, (body,))


def count_columns(dtype: DType | None) -> int | None:
    """Return the number of columns of a type; None if it is no struct."""
    return len(dtype.children) if dtype is not None and dtype.kind is TypeKind.STRUCT else None


def check_vortex_file(file: SourceFile, report: Report, *, full: bool, progress: Progress) -> None:
    """Check the footer of a ``.vortex`` file and all arrays; with `full`, decode them, too."""
    footer = read_file_footer(file.read, file.size)
    report.columns, report.rows = count_columns(footer.dtype), footer.root.rows
    for array in list_arrays(footer):
        segment, rows = array.segment, array.layout.rows
        try:
            _check_segment(file, footer, array, report, full=full)
            report.record_batches += 1
        except ProtocolError as error:
            problem = error.message
            report.add_defect(Defect(_name(array), segment.offset, problem, segment.length, rows))
        progress(report.rows, segment.offset + segment.length)


def _check_segment(
    file: SourceFile, footer: FileFooter, array: FileArray, report: Report, *, full: bool
) -> None:
    segment = array.segment
    body = LazyBytes(file.read, segment.offset, segment.length)
    if read_array_body(body, len(footer.encodings)).has_table_first:
        raise InvalidDataError("the array does not end with its FlatBuffer and the length of that")
    if array.dtype is None:
        return
    rows = min(array.layout.rows, _MAX_ROWS)
    header = MessageHeader(MessageKind.ARRAY, segment.length, rows, footer.encodings)
    check_array(header, body, array.dtype)
    if full:
        _decode_segment(file, header, array, report)


def _name(array: FileArray) -> str:
    return f"segment {array.layout.segments[0]} (layout {array.layout.path})"


def _decode_segment(
    file: SourceFile, header: MessageHeader, array: FileArray, report: Report
) -> None:
    """Decode an array of a file in a child process, and validate its values."""
    from ..isolation.array_decoder import IsolatedDecoder

    assert array.dtype is not None
    decoder = IsolatedDecoder(build_message(MessageKind.DTYPE, [encode_dtype(array.dtype)]))
    try:
        body = file.read(array.segment.offset, array.segment.length)
        found = decoder.decode_arrow(Message(build_header(header), header, (body,)))
        _validate(found, _name(array), array.segment.offset, report)
    finally:
        decoder.close()


def _validate(array: Any, place: str, offset: int, report: Report) -> None:
    batch = pa.RecordBatch.from_arrays([array], [""])
    if not validate_memory(batch):
        report.add_warning(Defect(place, offset, find_reason(batch)))
