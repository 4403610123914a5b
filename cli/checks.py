"""The checks of ``splitarrow check``: files, folders, published datasets and data of servers."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..client.open import open as open_stream
from ..client.stream.decoders import Decoder, open_decoder
from ..client.uris import complete_uri, is_control_uri, is_http_uri, split_dataset
from ..errors import (
    InvalidDataError,
    InvalidValueWarning,
    MissingExtraError,
    ProtocolError,
    SplitArrowError,
    UsageError,
)
from ..formats.arrow.decoding import validate_memory
from ..formats.arrow.file import MAGIC
from ..formats.arrow.file_scan import Defect, FileScan, ScannedMessage
from ..formats.arrow.message import CONTINUATION, HeaderType, parse_prefix, read_message_info
from ..formats.arrow.tensors.decoding import check_tensor_message
from ..formats.arrow.tensors.files import MAX_METADATA_BYTES, is_tensor_head, scan_tensors
from ..formats.parquet.conversions import DEFAULT_OPTIONS
from ..formats.text import format_bytes
from ..formats.vortex.array_body import LazyBytes, read_array_body
from ..formats.vortex.checker import check_array
from ..formats.vortex.dtype import DType, TypeKind, encode_dtype, read_dtype
from ..formats.vortex.file import FileArray, FileFooter, list_arrays, read_file_footer
from ..formats.vortex.message import (
    FramedHeader,
    HeaderReader,
    MessageHeader,
    MessageKind,
    build_header,
    build_message,
    read_header,
)
from ..formats.vortex.message import Message as VortexMessage
from ..protocol.limits import DEFAULT_LIMITS
from ..protocol.memory import ReceivedBody
from ..protocol.messages import Message
from ..protocol.tags import BodyType
from ..publication.shard_files import hash_file
from ..publication.version_store import VersionStore
from ..server.catalog.files.parquet import inspect_parquet
from ..server.catalog.files.parquet_memory import locate_pages
from ..transport.memory.files import SourceFile
from .connection import open_client, resolve_token
from .formatting import escape_text, format_count

MAX_DEFECTS = 1000
"""The number of defects of one target that are kept. The others are counted."""
_PARQUET_MAGIC = b"PAR1"
_VORTEX_MAGIC = b"VTXF"
_MAX_VORTEX_HEADER = 4096
_MAX_VORTEX_ROWS = (1 << 32) - 1

Progress = Callable[[int, int], None]
"""Receives the numbers of rows and bytes checked so far."""


@dataclass
class CheckReport:
    """The result of checking one file or dataset."""

    target: str
    """The path or URI."""
    kind: str = "file"
    """The type of the file or dataset."""
    messages: int = 0
    """The number of sound messages."""
    dictionary_batches: int = 0
    """The number of sound dictionary batches."""
    record_batches: int = 0
    """The number of sound record batches, row groups or tensors."""
    rows: int | None = 0
    """The number of rows in them; None if there are none, as in tensors."""
    nbytes: int = 0
    """The size of what was checked in bytes."""
    columns: int | None = None
    """The number of columns; None if it is unknown."""
    batch_noun: str = "batch"
    """The noun for `record_batches`, in the singular."""
    defects: list[Defect] = field(default_factory=list[Defect])
    """The defects."""
    warnings: list[Defect] = field(default_factory=list[Defect])
    """What a reader should know and can still read, such as values outside of their range."""
    further_defects: int = 0
    """The number of defects beyond those in `defects`."""

    @property
    def is_sound(self) -> bool:
        """Whether there are no defects."""
        return not self.defects

    def add_defect(self, defect: Defect) -> None:
        """Add a defect."""
        if len(self.defects) < MAX_DEFECTS:
            self.defects.append(defect)
        else:
            self.further_defects += 1

    def add_warning(self, warning: Defect) -> None:
        """Add a warning, if there are not too many."""
        if len(self.warnings) < MAX_DEFECTS:
            self.warnings.append(warning)

    def describe(self) -> dict[str, Any]:
        """Return the report for JSON."""
        description = asdict(self)
        description["bytes"] = description.pop("nbytes")
        del description["batch_noun"]
        for name in ("defects", "warnings"):
            description[name] = [_describe(defect) for defect in getattr(self, name)]
        return {"target": self.target, "sound": self.is_sound, **description}

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        count = len(self.defects) + self.further_defects
        verdict = "sound" if self.is_sound else format_count(count, "defect")
        plural = "batches" if self.batch_noun == "batch" else f"{self.batch_noun}s"
        noun = self.batch_noun if self.record_batches == 1 else plural
        figures = [f"{self.record_batches:,} {noun}"]
        if self.dictionary_batches:
            noun = "dictionary batch" if self.dictionary_batches == 1 else "dictionary batches"
            figures.append(f"{self.dictionary_batches:,} {noun}")
        if self.rows is not None:
            figures.append(format_count(self.rows, "row"))
        if self.columns is not None:
            figures.append(format_count(self.columns, "column"))
        figures.append(format_bytes(self.nbytes))
        lines = [f"{escape_text(self.target)}: {self.kind}, {verdict}: {', '.join(figures)}"]
        lines += [f"  {_format(defect)}" for defect in self.defects]
        if self.further_defects:
            lines.append(f"  and {format_count(self.further_defects, 'further defect')}")
        lines += [f"  warning: {_format(warning)}" for warning in self.warnings]
        return lines


def _describe(defect: Defect) -> dict[str, Any]:
    found = {
        "place": defect.place,
        "offset": defect.offset,
        "problem": defect.problem,
        "bytes": defect.nbytes,
        "rows": defect.rows,
    }
    return {key: value for key, value in found.items() if value is not None}


def _format(defect: Defect) -> str:
    offset = "" if defect.offset is None else f" at byte {defect.offset}"
    return escape_text(f"{defect.place}{offset}: {defect.problem}")


def find_reason(data: Any) -> str:
    """Return why pyarrow refuses values."""
    try:
        data.validate(full=True)
    except pa.ArrowInvalid as error:
        return str(error).partition("\n")[0]
    return ""


class _FileCheck:
    """The check of one file, whose content determines the format.

    With `full`, it decodes everything and validates the values, too.
    """

    def __init__(self, path: Path, *, full: bool, progress: Progress) -> None:
        self._report = CheckReport(str(path))
        self._path = path
        self._full = full
        self._progress = progress

    def run(self) -> CheckReport:
        """Check the file, and return the report."""
        report = self._report
        try:
            with closing(SourceFile(self._path, refuse_writers=False)) as self._file:
                report.nbytes = self._file.size
                self._check_contents()
                self._file.check()
        except MissingExtraError:
            raise
        except SplitArrowError as error:
            report.add_defect(Defect("file", None, error.message))
        except (pa.ArrowException, OSError, ValueError, struct.error) as error:
            report.add_defect(Defect("file", None, str(error).partition("\n")[0]))
        return report

    def _check_contents(self) -> None:
        file, report = self._file, self._report
        head = file.read(0, min(file.size, 8))
        if not head:
            report.add_defect(Defect("file", 0, "it is empty"))
        elif head.startswith(MAGIC):
            report.kind = "Arrow IPC file"
            self._check_ipc()
        elif head.startswith(_PARQUET_MAGIC):
            report.kind = "Parquet file"
            self._check_parquet()
        elif head.startswith(_VORTEX_MAGIC):
            report.kind, report.batch_noun = "Vortex file", "array"
            self._check_vortex_file()
        elif self._is_vortex_stream(head):
            report.kind, report.batch_noun = "Vortex stream", "array"
            self._check_vortex_stream()
        elif is_tensor_head(file.read(0, min(file.size, MAX_METADATA_BYTES + 8))):
            report.kind, report.batch_noun, report.rows = "tensor file", "tensor", None
            self._check_tensors()
        elif head.startswith(CONTINUATION) or self._is_old_stream(head):
            report.kind = "Arrow IPC stream"
            self._check_ipc()
        else:
            self._check_other()

    def _is_vortex_stream(self, head: bytes) -> bool:
        """Return whether a file begins with the message of a Vortex dtype."""
        length = int.from_bytes(head[:4], "little")
        if not 8 <= length <= min(self._file.size - 4, _MAX_VORTEX_HEADER):
            return False
        try:
            return read_header(self._file.read(4, length)).kind is MessageKind.DTYPE
        except ProtocolError:
            return False

    def _is_old_stream(self, head: bytes) -> bool:
        """Return whether a file begins as a stream from before Arrow 0.15."""
        try:
            nbytes, length = parse_prefix(head)
            if not 0 < length <= self._file.size - nbytes:
                return False
            return (
                read_message_info(self._file.read(nbytes, length)).header_type is HeaderType.SCHEMA
            )
        except ProtocolError:
            return False

    def _check_ipc(self) -> None:
        """Check an Arrow IPC file or stream."""
        scan = FileScan(self._file.read, self._file.size)
        decoder: Decoder | None = None
        for found in scan.messages():
            if self._full:
                if decoder is None:
                    decoder = open_scan_decoder(scan)
                self._validate_message(found, decoder)
            self._report.messages += 1
            if found.checked.header_type is HeaderType.DICTIONARY_BATCH:
                self._report.dictionary_batches += 1
            else:
                self._report.record_batches += 1
                self._report.rows = (self._report.rows or 0) + found.checked.rows
            self._progress(self._report.rows or 0, found.message.end)
        for defect in scan.defects:
            self._report.add_defect(defect)
        if scan.schema is not None:
            self._report.columns = len(scan.schema)

    def _validate_message(self, found: ScannedMessage, decoder: Decoder) -> None:
        """Decode a message, and validate its values."""
        message, rows = found.message, found.checked.rows
        nbytes = message.end - message.offset
        try:
            batch = decode(self._file, found, decoder)
            if batch is not None and not validate_memory(batch):
                problem = f"values outside of the ranges of their types: {find_reason(batch)}"
                self._report.add_warning(Defect(found.place, message.offset, problem, nbytes, rows))
        except (pa.ArrowException, ProtocolError) as error:
            problem = error.message if isinstance(error, ProtocolError) else str(error)
            problem = problem.partition("\n")[0]
            self._report.add_defect(Defect(found.place, message.offset, problem, nbytes, rows))

    def _check_parquet(self) -> None:
        """Check the footer of a Parquet file; with `full`, all pages and values, too."""
        self._report.batch_noun = "row group"
        with inspect_parquet(self._file) as (plan, parquet):
            metadata = parquet.metadata
            self._report.columns = len(plan.columns.schema)
            self._check_row_groups(metadata)
            groups = metadata.num_row_groups
            if self._full and self._report.is_sound:
                batches = (
                    plan.columns.convert(batch, by_name=False, options=DEFAULT_OPTIONS)
                    for batch in parquet.iter_batches()
                )
                self._report.rows = 0
                self._count_batches(batches)
                if self._report.rows != metadata.num_rows:
                    problem = (
                        f"it lists {metadata.num_rows} rows; the pages have {self._report.rows}"
                    )
                    self._report.add_defect(Defect("footer", None, problem))
            self._report.record_batches, self._report.rows = groups, metadata.num_rows

    def _check_row_groups(self, metadata: Any) -> None:
        """Check the places and sizes of all column chunks."""
        rows, size = 0, self._file.size
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            rows += group.num_rows
            if group.num_rows < 0:
                problem = f"it declares {group.num_rows} rows"
                self._report.add_defect(Defect(f"row group {number}", None, problem))
            for index in range(group.num_columns):
                chunk = group.column(index)
                begin, _ = locate_pages(chunk)
                nbytes = chunk.total_compressed_size
                is_inside = begin >= len(_PARQUET_MAGIC) and 0 <= nbytes <= size - begin
                if not is_inside and (begin or nbytes or chunk.num_values):
                    problem = (
                        f"column {chunk.path_in_schema} has {nbytes} bytes at byte {begin}, "
                        f"outside the file of {size} bytes"
                    )
                    self._report.add_defect(Defect(f"row group {number}", begin, problem, nbytes))
                if chunk.num_values < 0:
                    problem = f"column {chunk.path_in_schema} declares {chunk.num_values} values"
                    self._report.add_defect(Defect(f"row group {number}", begin, problem, nbytes))
        if rows != metadata.num_rows:
            problem = f"it lists {metadata.num_rows} rows; its row groups have {rows}"
            self._report.add_defect(Defect("footer", None, problem))

    def _check_vortex_stream(self) -> None:
        """Check all messages of a stream. A child process decodes the arrays."""
        with _VortexStreamCheck(self._file, self._report, full=self._full) as check:
            reader = HeaderReader(self._file.read, self._file.size)
            while True:
                offset = reader.offset
                try:
                    found = reader.next_header()
                except ProtocolError as error:
                    problem = error.message.removeprefix(f"the message at byte {offset}: ")
                    self._report.add_defect(Defect(f"message {check.number}", offset, problem))
                    return
                if found is None:
                    return
                check.check_message(found)
                self._progress(self._report.rows or 0, found.end)

    def _check_vortex_file(self) -> None:
        """Check the footer of a ``.vortex`` file and all arrays; with `full`, decode them, too."""
        footer = read_file_footer(self._file.read, self._file.size)
        self._report.columns, self._report.rows = count_columns(footer.dtype), footer.root.rows
        for array in list_arrays(footer):
            segment, rows = array.segment, array.layout.rows
            try:
                self._check_segment(footer, array)
                self._report.record_batches += 1
            except ProtocolError as error:
                problem = error.message
                self._report.add_defect(
                    Defect(_name(array), segment.offset, problem, segment.length, rows)
                )
            self._progress(footer.root.rows, segment.offset + segment.length)

    def _check_segment(self, footer: FileFooter, array: FileArray) -> None:
        segment = array.segment
        body = LazyBytes(self._file.read, segment.offset, segment.length)
        if read_array_body(body, len(footer.encodings)).has_table_first:
            raise InvalidDataError(
                "the array does not end with its FlatBuffer and the length of that"
            )
        if array.dtype is None:
            return
        rows = min(array.layout.rows, _MAX_VORTEX_ROWS)
        header = MessageHeader(MessageKind.ARRAY, segment.length, rows, footer.encodings)
        check_array(header, body, array.dtype)
        if self._full:
            self._decode_segment(header, array)

    def _decode_segment(self, header: MessageHeader, array: FileArray) -> None:
        """Decode an array of a file in a child process, and validate its values."""
        from ..isolation.array_decoder import IsolatedDecoder

        assert array.dtype is not None
        decoder = IsolatedDecoder(build_message(MessageKind.DTYPE, [encode_dtype(array.dtype)]))
        try:
            body = self._file.read(array.segment.offset, array.segment.length)
            found = decoder.decode_arrow(VortexMessage(build_header(header), header, (body,)))
            _validate_array(found, _name(array), array.segment.offset, self._report)
        finally:
            decoder.close()

    def _check_tensors(self) -> None:
        for tensor in scan_tensors(self._file.read, self._file.size):
            if self._full:
                nbytes = tensor.layout.body_length
                body = pa.py_buffer(self._file.read(tensor.body_offset, nbytes))
                try:
                    check_tensor_message(tensor.metadata, body, swap_bytes=tensor.is_big_endian)
                except ProtocolError as error:
                    place = f"tensor {self._report.record_batches}"
                    self._report.add_defect(Defect(place, tensor.offset, error.message, nbytes))
            self._report.record_batches += 1
            self._report.messages += 1

    def _check_other(self) -> None:
        """Check a file of another type that can be served: its metadata, or all of its data."""
        from ..server.catalog.files.file_types import open_file
        from ..server.catalog.files.tensor_files import TensorFileDataset
        from ..server.catalog.selection import Selection

        with closing(open_file(self._path, refuse_writers=False)) as dataset:
            self._report.kind = dataset.kind
            if isinstance(dataset, TensorFileDataset):
                # The size of the file was compared with the shape. Any bytes are numbers.
                self._report.batch_noun, self._report.rows = "tensor", None
                self._report.messages = self._report.record_batches = len(dataset.list_tensors())
                return
            self._report.columns = len(dataset.schema)
            if not self._full:
                self._report.rows = dataset.rows
                return
            contents = dataset.load_contents(self._file)
            batches = dataset.read_batches(self._file, contents, Selection(contents.schema))
            self._count_batches(batch for batch, _ in batches)

    def _count_batches(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Validate record batches, and count them."""
        report = self._report
        for batch in batches:
            place = f"{report.batch_noun} {report.record_batches}"
            if not validate_memory(batch):
                reason = find_reason(batch)
                report.add_warning(Defect(place, None, reason, rows=batch.num_rows))
            report.record_batches += 1
            report.rows = (report.rows or 0) + batch.num_rows
            self._progress(report.rows, report.nbytes)


class _VortexStreamCheck:
    """The check of one stream. A defect of an array does not end it."""

    def __init__(self, file: SourceFile, report: CheckReport, *, full: bool) -> None:
        self._file = file
        self._report = report
        self._full = full
        self._dtype: DType | None = None
        self._decoder: Any = None
        self.number = 0
        """The number of messages before the next one."""

    def __enter__(self) -> _VortexStreamCheck:
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
            _validate_array(array, place, found.offset, self._report)
        self._report.record_batches += 1
        self._report.rows = (self._report.rows or 0) + header.row_count

    def _read(self, found: FramedHeader) -> VortexMessage:
        body = self._file.read(found.body_offset, found.header.body_size)
        return VortexMessage(found.metadata, found.header, (body,))


def _name(array: FileArray) -> str:
    return f"segment {array.layout.segments[0]} (layout {array.layout.path})"


def _validate_array(array: Any, place: str, offset: int, report: CheckReport) -> None:
    batch = pa.RecordBatch.from_arrays([array], [""])
    if not validate_memory(batch):
        report.add_warning(Defect(place, offset, find_reason(batch)))


def count_columns(dtype: DType | None) -> int | None:
    """Return the number of columns of a type; None if it is not a struct."""
    return len(dtype.children) if dtype is not None and dtype.kind is TypeKind.STRUCT else None


def open_scan_decoder(scan: FileScan) -> Decoder:
    """Return a decoder for the messages of a scan. It does not validate values."""
    first = Message(0, scan.schema_metadata, None, BodyType.PACKED)
    return open_decoder(first, DEFAULT_LIMITS, "off")


def decode(file: SourceFile, found: ScannedMessage, decoder: Decoder) -> pa.RecordBatch | None:
    """Return the record batch of a message; None for a dictionary, which the decoder keeps."""
    message = found.message
    data = file.read(message.body_offset, message.body_length)
    body = ReceivedBody.wrap(pa.py_buffer(data))
    return decoder.decode(Message(found.number + 1, message.metadata, body, BodyType.PACKED))


def check_published(folder: Path, *, full: bool, progress: Progress) -> Iterator[CheckReport]:
    """Check the newest version of a published dataset: its manifest and its shards.

    With `full`, the SHA-256 of each shard is compared with the manifest, too.
    """
    report = CheckReport(str(folder), "published dataset", batch_noun="shard")
    try:
        manifest = VersionStore(folder).load()
    except SplitArrowError as error:
        report.add_defect(Defect("manifest", None, error.message))
        manifest = None
    if manifest is None:
        yield report
        return
    report.record_batches, report.rows = len(manifest.shards), manifest.rows
    report.nbytes, report.columns = manifest.nbytes, len(manifest.schema)
    yield report
    for shard in manifest.shards:
        path = folder / shard.path
        found = _FileCheck(path, full=full, progress=progress).run()
        if found.nbytes != shard.nbytes:
            problem = f"it has {found.nbytes} bytes; the manifest lists {shard.nbytes}"
            found.add_defect(Defect("file", None, problem))
        elif found.is_sound and found.rows != shard.rows:
            problem = f"it has {found.rows} rows; the manifest lists {shard.rows}"
            found.add_defect(Defect("file", None, problem))
        elif full and hash_file(path) != shard.sha256:
            found.add_defect(Defect("file", None, "its SHA-256 is not that in the manifest"))
        yield found


def check_path(path: Path, *, full: bool, progress: Progress) -> Iterator[CheckReport]:
    """Check a file, all files in a folder, or the newest version of a published dataset."""
    if not path.is_dir():
        yield _FileCheck(path, full=full, progress=progress).run()
        return
    try:
        is_published = bool(VersionStore(path).list_versions())
    except SplitArrowError:
        is_published = False
    if is_published:
        yield from check_published(path, full=full, progress=progress)
        return
    from ..server.catalog.files.directory import FolderListing

    for found in FolderListing(path).list_files():
        yield _FileCheck(Path(found.path), full=full, progress=progress).run()


def is_local(target: str) -> bool:
    """Return whether a target is a path."""
    return "://" not in target or os.path.exists(target)


def check_uri(
    uri: str, *, full: bool, progress: Progress, token: str | None, connect_timeout: float
) -> Iterator[CheckReport]:
    """Read a dataset of a server, or all of its datasets, and check each message."""
    options: dict[str, Any] = {
        "validate": "full" if full else "cheap",
        "connect_timeout": connect_timeout,
    }
    if is_http_uri(uri):
        source = resolve_token(token)
        yield _check_stream(uri, partial(open_stream, uri, token=source, **options), progress)
        return
    if not is_control_uri(uri):
        name = complete_uri(uri).redacted()
        yield _check_stream(name, partial(open_stream, uri, **options), progress)
        return
    address, name = split_dataset(uri)
    with open_client(address, token, connect_timeout) as client:
        for dataset in [name] if name else list(client):
            target = f"{address}/{dataset}"
            yield _check_stream(target, partial(client.read, dataset, **options), progress)


def _check_stream(target: str, open_stream: Callable[[], Any], progress: Progress) -> CheckReport:
    report = CheckReport(target, "dataset")
    rows = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InvalidValueWarning)
        try:
            with open_stream() as stream:
                report.columns = len(stream.schema)
                for batch in stream:
                    report.record_batches += 1
                    report.messages += 1
                    rows += batch.num_rows
                    report.nbytes = stream.bytes_received
                    progress(rows, report.nbytes)
        except UsageError:
            raise
        except SplitArrowError as error:
            place = "stream" if error.sequence is None else f"message {error.sequence}"
            report.add_defect(Defect(place, None, error.message))
    report.rows = rows
    for warning in caught:
        if issubclass(warning.category, InvalidValueWarning):
            report.add_warning(Defect("stream", None, str(warning.message)))
    return report
