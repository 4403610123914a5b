"""Recovery of the readable record batches of a damaged Arrow IPC file or stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ..errors import DatasetError, ProtocolError, UsageError
from ..formats.arrow.decoding import validate_memory
from ..formats.arrow.encoder import MessageEncoder
from ..formats.arrow.file_scan import Defect, FileScan, ScannedMessage
from ..formats.arrow.file_writer import FileAssembler, StreamAssembler
from ..formats.arrow.message import HeaderType
from ..formats.arrow.supported_types import make_empty_batch
from ..formats.text import format_bytes
from ..protocol.memory import ReceivedBody
from ..protocol.messages import Message
from ..protocol.tags import BodyType
from ..transport.memory.files import SourceFile
from .checks import Progress, decode, open_scan_decoder
from .formatting import format_count
from .output_file import OutputFile


@dataclass
class Recovery:
    """The result of a recovery."""

    path: str
    """The new file."""
    record_batches: int = 0
    """The number of record batches in it."""
    dictionary_batches: int = 0
    """The number of dictionary batches in it."""
    rows: int = 0
    """The number of rows in it."""
    lost: list[Defect] = field(default_factory=list[Defect])
    """The parts that were lost: their places, reasons, sizes and rows, as far as they are known."""

    @property
    def lost_bytes(self) -> int:
        """The size of the lost parts in bytes."""
        return sum(defect.nbytes or 0 for defect in self.lost)

    @property
    def lost_rows(self) -> int:
        """The rows in the lost record batches whose metadata can be read."""
        return sum(defect.rows or 0 for defect in self.lost)

    def describe(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "path": self.path,
            "record_batches": self.record_batches,
            "dictionary_batches": self.dictionary_batches,
            "rows": self.rows,
            "lost_bytes": self.lost_bytes,
            "lost_rows": self.lost_rows,
            "lost": [
                {
                    "place": defect.place,
                    "begin": defect.offset,
                    "end": None
                    if defect.offset is None or defect.nbytes is None
                    else defect.offset + defect.nbytes,
                    "rows": defect.rows,
                    "reason": defect.problem,
                }
                for defect in self.lost
            ],
        }

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        count = f"{self.record_batches:,} record batch{'' if self.record_batches == 1 else 'es'}"
        lines = [f"recovered {count}, {format_count(self.rows, 'row')} -> {self.path}"]
        if self.lost:
            unknown = sum(defect.rows is None for defect in self.lost)
            rows = format_count(self.lost_rows, "row")
            more = f" and the rows of {format_count(unknown, 'part')}" if unknown else ""
            lines.append(f"lost {format_bytes(self.lost_bytes)}, {rows}{more}:")
        for defect in self.lost:
            span = ""
            if defect.offset is not None and defect.nbytes is not None:
                span = f", bytes {defect.offset} to {defect.offset + defect.nbytes}"
            lines.append(f"  {defect.place}{span}: {defect.problem}")
        return lines


def recover(source: Path, target: Path, progress: Progress) -> Recovery:
    """Write the readable record batches of a file into a new file of the same format.

    The new file appears once it is complete. Every record batch in it decodes and is valid.
    Messages are copied unchanged, with their compression and custom metadata.

    Raises `DatasetError` if the file cannot be read, or no schema can be recovered.
    """
    if target.exists() and source.exists() and target.samefile(source):
        raise UsageError(f"--recover {target}: it is the damaged file; name another file")
    with closing(SourceFile(source, refuse_writers=False)) as file:
        scan, found = _find_messages(file)
        if scan.schema is None:
            reason = scan.defects[0].problem if scan.defects else "it has no schema"
            raise DatasetError(f"nothing can be recovered from {source}: {reason}")
        result = Recovery(str(target))
        with OutputFile(target) as output, open(output.part, "wb") as sink:
            writer = _Writer(sink, scan)
            for message in _list_readable(file, scan, found, result):
                writer.add(file, message)
                is_batch = message.checked.header_type is HeaderType.RECORD_BATCH
                result.record_batches += is_batch
                result.dictionary_batches += not is_batch
                result.rows += message.checked.rows if is_batch else 0
                progress(result.rows, writer.position)
            writer.end()
        file.check()
    return result


def _find_messages(file: SourceFile) -> tuple[FileScan, list[ScannedMessage]]:
    """Return the scan that finds the most record batches: by the footer, or without it."""
    best: tuple[FileScan, list[ScannedMessage]] | None = None
    for uses_footer in (True, False):
        scan = FileScan(file.read, file.size, searches=True, uses_footer=uses_footer)
        found = list(scan.messages())
        if best is None and not (scan.defects and scan.is_file):
            return scan, found
        if best is None or _count_batches(found) > _count_batches(best[1]):
            best = scan, found
    assert best is not None
    scan, found = best
    if scan.is_file:  # its dictionaries may follow the batches that refer to them
        found.sort(key=lambda message: message.checked.header_type)
    return scan, found


def _count_batches(found: list[ScannedMessage]) -> int:
    return sum(message.checked.dictionary_id is None for message in found)


def _list_readable(
    file: SourceFile, scan: FileScan, found: list[ScannedMessage], result: Recovery
) -> Iterator[ScannedMessage]:
    """Yield the messages that decode to valid data; add the others to ``result.lost``."""
    verifier = _Verifier(file, scan)
    losses = [defect for defect in scan.defects if defect.nbytes is not None and _is_loss(defect)]
    result.lost += losses
    unknown = sorted(defect.offset or 0 for defect in losses if defect.rows is None)
    for message in found:
        while unknown and unknown[0] <= message.message.offset:
            unknown.pop(0)
            verifier.lose_dictionaries()
        problem = verifier.verify(message)
        if not problem:
            yield message
            continue
        is_batch = message.checked.header_type is HeaderType.RECORD_BATCH
        offset, end = message.message.offset, message.message.end
        rows = message.checked.rows if is_batch else None
        result.lost.append(Defect(message.place, offset, problem, end - offset, rows))


def _is_loss(defect: Defect) -> bool:
    """Return whether a defect concerns messages. Without a footer, nothing is lost."""
    return not defect.place.startswith(("footer", "schema"))


class _Verifier:
    """Decodes messages one after the other, and continues after those that fail."""

    def __init__(self, file: SourceFile, scan: FileScan) -> None:
        self._file = file
        self._scan = scan
        self._dictionaries: list[ScannedMessage] = []
        self._lost: set[int] = set()
        """The dictionaries whose values are unknown."""
        self._cut: set[int] = set()
        """The dictionaries that have lost a delta. Their first values are known."""
        self._decoder = open_scan_decoder(scan)

    def lose_dictionaries(self) -> None:
        """Note that a message of an unknown type was lost, which may be any dictionary.

        In a file, where no dictionary is replaced, it may only be the delta of a known one.
        """
        (self._cut if self._scan.is_file else self._lost).update(self._scan.dictionary_ids)

    def verify(self, found: ScannedMessage) -> str:
        """Return the problem with a message; empty if it decodes to valid data."""
        key, is_delta = found.checked.dictionary_id, found.checked.is_delta
        if self._scan.is_file and found.message.body_length % 8:
            return f"its body has {found.message.body_length} bytes; expected a multiple of 8"
        if key is None and self._lost:
            return f"it depends on the dictionary {min(self._lost)}, which was lost"
        if is_delta and (key in self._lost or key in self._cut):
            return f"it extends the dictionary {key}, of which a part was lost"
        try:
            batch = decode(self._file, found, self._decoder)
            validate_memory(self._decode_empty() if batch is None else batch)
        except (pa.ArrowException, ProtocolError) as error:
            if key is not None:
                (self._cut if is_delta else self._lost).add(key)
            self._reopen()
            text = error.message if isinstance(error, ProtocolError) else str(error)
            return text.partition("\n")[0]
        if key is not None:
            if not is_delta:
                self._lost.discard(key)
                if not self._scan.is_file:
                    self._cut.discard(key)
            self._dictionaries.append(found)
        return ""

    def _decode_empty(self) -> pa.RecordBatch:
        """Decode an empty record batch, and so the dictionaries before it."""
        schema = self._decoder.schema
        encoder = MessageEncoder(schema)
        message = encoder.encode(make_empty_batch(schema))[-1]
        encoder.close()
        body = ReceivedBody.wrap(pa.py_buffer(b"".join(map(bytes, message.body or []))))
        batch = self._decoder.decode(Message(0, message.metadata, body, BodyType.PACKED))
        assert batch is not None
        return batch

    def _reopen(self) -> None:
        """Replace the decoder, whose state a failure has damaged."""
        if self._scan.dictionary_ids:
            self._decoder = open_scan_decoder(self._scan)
            for found in self._dictionaries:
                decode(self._file, found, self._decoder)


class _Writer:
    """Writes messages to a file or stream."""

    def __init__(self, sink: BinaryIO, scan: FileScan) -> None:
        self._sink = sink
        self._assembler = StreamAssembler()
        if scan.is_file:
            self._assembler = FileAssembler(footer_metadata=scan.read_footer_metadata())
        self.position = 0
        """The size of the file so far in bytes."""
        self._write(self._assembler.begin(scan.schema_metadata))

    def add(self, file: SourceFile, found: ScannedMessage) -> None:
        """Copy a message from the damaged file."""
        message = found.message
        self._write(self._assembler.add(message.metadata, message.body_length))
        self._write(file.read(message.body_offset, message.body_length))

    def end(self) -> None:
        """Write the end of the stream, and the footer of a file."""
        self._write(self._assembler.end())

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self.position += len(data)
