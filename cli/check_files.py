"""Checks of files and folders for ``splitarrow check``."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from ..client.stream.decoders import Decoder, open_decoder
from ..errors import MissingExtraError, ProtocolError, SplitArrowError
from ..formats.arrow.decoding import validate_memory
from ..formats.arrow.file import MAGIC
from ..formats.arrow.file_scan import Defect, FileScan, ScannedMessage
from ..formats.arrow.message import CONTINUATION, HeaderType, parse_prefix, read_message_info
from ..formats.arrow.tensors.decoding import check_tensor_message
from ..formats.arrow.tensors.files import MAX_METADATA_BYTES, is_tensor_head, scan_tensors
from ..protocol.limits import DEFAULT_LIMITS
from ..protocol.memory import ReceivedBody
from ..protocol.messages import Message
from ..protocol.tags import BodyType
from ..transport.memory.files import SourceFile
from .check_report import Progress, Report
from .check_values import count_batches, find_reason

_PARQUET_MAGIC = b"PAR1"
_VORTEX_MAGIC = b"VTXF"
_MAX_VORTEX_HEADER = 4096


def check_file(path: Path, *, full: bool, progress: Progress, name: str = "") -> Report:
    """Check one file. Its content determines the format."""
    report = Report(name or str(path))
    try:
        with closing(SourceFile(path, refuse_writers=False)) as file:
            report.nbytes = file.size
            _check_open_file(file, path, report, full=full, progress=progress)
            file.check()
    except MissingExtraError:
        raise
    except SplitArrowError as error:
        report.add_defect(Defect("file", None, error.message))
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        report.add_defect(Defect("file", None, str(error).partition("\n")[0]))
    return report


def _check_open_file(
    file: SourceFile, path: Path, report: Report, *, full: bool, progress: Progress
) -> None:
    head = file.read(0, min(file.size, 8))
    if not head:
        report.add_defect(Defect("file", 0, "it is empty"))
    elif head.startswith(MAGIC):
        report.kind = "Arrow IPC file"
        check_ipc(file, report, full=full, progress=progress)
    elif head.startswith(_PARQUET_MAGIC):
        from .check_parquet import check_parquet

        report.kind = "Parquet file"
        check_parquet(file, report, full=full, progress=progress)
    elif head.startswith(_VORTEX_MAGIC) or _is_vortex_stream(file, head):
        _check_vortex(file, path, head, report, full=full, progress=progress)
    elif is_tensor_head(file.read(0, min(file.size, MAX_METADATA_BYTES + 8))):
        report.kind, report.batch_noun, report.rows = "tensor file", "tensor", None
        _check_tensors(file, report, full=full)
    elif head.startswith(CONTINUATION) or _is_old_stream(file, head):
        report.kind = "Arrow IPC stream"
        check_ipc(file, report, full=full, progress=progress)
    else:
        _check_other(file, path, report, full=full, progress=progress)


def _is_vortex_stream(file: SourceFile, head: bytes) -> bool:
    """Return whether a file begins with the message of a Vortex dtype."""
    length = int.from_bytes(head[:4], "little")
    if not 8 <= length <= min(file.size - 4, _MAX_VORTEX_HEADER):
        return False
    from ..formats.vortex.message import MessageKind, read_header

    try:
        return read_header(file.read(4, length)).kind is MessageKind.DTYPE
    except ProtocolError:
        return False


def _is_old_stream(file: SourceFile, head: bytes) -> bool:
    """Return whether a file begins as a stream from before Arrow 0.15."""
    try:
        nbytes, length = parse_prefix(head)
        if not 0 < length <= file.size - nbytes:
            return False
        return read_message_info(file.read(nbytes, length)).header_type is HeaderType.SCHEMA
    except ProtocolError:
        return False


def check_ipc(file: SourceFile, report: Report, *, full: bool, progress: Progress) -> None:
    """Check an Arrow IPC file or stream."""
    scan = FileScan(file.read, file.size)
    decoder: Decoder | None = None
    for found in scan.messages():
        if full:
            if decoder is None:
                decoder = open_scan_decoder(scan)
            _validate(file, found, decoder, report)
        report.messages += 1
        if found.checked.header_type is HeaderType.DICTIONARY_BATCH:
            report.dictionary_batches += 1
        else:
            report.record_batches += 1
            report.rows = (report.rows or 0) + found.checked.rows
        progress(report.rows or 0, found.message.end)
    for defect in scan.defects:
        report.add_defect(defect)
    if scan.schema is not None:
        report.columns = len(scan.schema)


def open_scan_decoder(scan: FileScan) -> Decoder:
    """Return a decoder for the messages of a scan. It does not validate values."""
    first = Message(0, scan.schema_metadata, None, BodyType.PACKED)
    return open_decoder(first, DEFAULT_LIMITS, "off")


def decode(file: SourceFile, found: ScannedMessage, decoder: Decoder) -> pa.RecordBatch | None:
    """Return the record batch of a message; None for a dictionary batch, which the decoder keeps.

    Raises `ProtocolError` if it cannot be decoded.
    """
    message = found.message
    data = file.read(message.body_offset, message.body_length)
    body = ReceivedBody.wrap(pa.py_buffer(data))
    return decoder.decode(Message(found.number + 1, message.metadata, body, BodyType.PACKED))


def _validate(file: SourceFile, found: ScannedMessage, decoder: Decoder, report: Report) -> None:
    """Decode a message, and validate its values."""
    message, rows = found.message, found.checked.rows
    nbytes = message.end - message.offset
    try:
        batch = decode(file, found, decoder)
        if batch is not None and not validate_memory(batch):
            problem = f"values outside of the ranges of their types: {find_reason(batch)}"
            report.add_warning(Defect(found.place, message.offset, problem, nbytes, rows))
    except (pa.ArrowException, ProtocolError) as error:
        problem = error.message if isinstance(error, ProtocolError) else str(error)
        problem = problem.partition("\n")[0]
        report.add_defect(Defect(found.place, message.offset, problem, nbytes, rows))


def _check_vortex(
    file: SourceFile, path: Path, head: bytes, report: Report, *, full: bool, progress: Progress
) -> None:
    """Check a Vortex file or stream."""
    from .check_vortex import check_stream, check_vortex_file

    report.batch_noun = "array"
    if not head.startswith(_VORTEX_MAGIC):
        report.kind = "Vortex stream"
        check_stream(file, report, full=full, progress=progress)
        return
    report.kind = "Vortex file"
    check_vortex_file(file, report, full=full, progress=progress)


def _check_tensors(file: SourceFile, report: Report, *, full: bool) -> None:
    for tensor in scan_tensors(file.read, file.size):
        if full:
            nbytes = tensor.layout.body_length
            body = pa.py_buffer(file.read(tensor.body_offset, nbytes))
            try:
                check_tensor_message(tensor.metadata, body, swap_bytes=tensor.is_big_endian)
            except ProtocolError as error:
                place = f"tensor {report.record_batches}"
                report.add_defect(Defect(place, tensor.offset, error.message, nbytes))
        report.record_batches += 1
        report.messages += 1


def _check_other(
    file: SourceFile, path: Path, report: Report, *, full: bool, progress: Progress
) -> None:
    """Check a file of another type that can be served: its metadata, or all of its data."""
    from ..server.catalog.files.file_types import open_file
    from ..server.catalog.files.tensor_files import TensorFileDataset
    from ..server.catalog.selection import Selection

    with closing(open_file(path, refuse_writers=False)) as dataset:
        report.kind = dataset.kind
        if isinstance(dataset, TensorFileDataset):
            # The size of the file was compared with the shape. Any bytes are numbers.
            report.batch_noun, report.rows = "tensor", None
            report.messages = report.record_batches = len(dataset.list_tensors())
            return
        report.columns = len(dataset.schema)
        if not full:
            report.rows = dataset.rows
            return
        contents = dataset.load_contents(file)
        batches = dataset.read_batches(file, contents, Selection(contents.schema))
        count_batches((batch for batch, _ in batches), report, progress)
