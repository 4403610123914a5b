"""Read a stream into a file or a preview, and show the progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ..errors import UsageError
from ..formats.arrow.conversion import MessageConverter
from ..formats.arrow.file_writer import ReplacedDictionaryError
from ..formats.arrow.message import HeaderType, read_message_info
from ..formats.arrow.schema_rewriter import rewrite_schema
from ..formats.arrow.tensors.labels import is_tensor_content
from ..sinks import Sink
from .arrow_output import ArrowOutput, StandardArrowOutput, make_assembler, open_arrow_file
from .local_input import (
    InputStream,
    open_local,
    open_selection,
    read_messages,
    read_schema_metadata,
)
from .output_file import (
    ARROW_SUFFIXES,
    PLAIN,
    TENSOR_SUFFIXES,
    OutputFile,
    OutputForm,
    parse_suffix,
)
from .output_formats import StandardOutputTextSink, open_sink
from .row_printer import Preview
from .tensor_output import TensorPreview, copy_tensors
from .terminal import TransferProgress


@dataclass(frozen=True, slots=True)
class Transfer:
    """The result of a fetch or a conversion."""

    schema: pa.Schema
    """The schema of the data."""
    rows: int
    """The number of rows."""
    batches: int
    """The number of record batches."""
    tensors: int
    """The number of tensors."""
    nbytes: int
    """The number of bytes received, headers included."""
    seconds: float
    """The time from connecting to the renaming of the file, in seconds."""
    data_seconds: float
    """The time from the first message to the last, in seconds."""
    transport: str
    """The scheme of the transport."""
    preview: Preview | TensorPreview
    """The first rows or tensors, if there is no output."""


def transfer(
    open_stream: Callable[[], InputStream],
    output: str | None,
    progress: TransferProgress,
    form: OutputForm = PLAIN,
) -> Transfer:
    """Read a stream to its end.

    Arrow IPC messages are validated and written as they arrive. Other formats are written from
    decoded batches, as is a file of a stream whose dictionaries are replaced, which is read a
    second time.

    The suffix of `output` selects the format. ``-`` is standard output; None keeps a preview. After
    any error, the file is unchanged or absent.
    """
    started = time.perf_counter()
    file = None
    if output not in (None, "-"):
        parse_suffix(Path(output))
        file = OutputFile(Path(output))
    with progress:
        try:
            return _copy(open_stream, output, file, progress, form, started)
        except ReplacedDictionaryError:
            return _copy(open_stream, output, file, progress, form, started, merges=True)


def _copy(
    open_stream: Callable[[], InputStream],
    output: str | None,
    file: OutputFile | None,
    progress: TransferProgress,
    form: OutputForm,
    started: float,
    *,
    merges: bool = False,
) -> Transfer:
    """Read a stream to its end; `merges` decodes it and merges its dictionaries."""
    batches = 0
    with open_stream() as stream:
        opened = time.perf_counter()
        progress.restart_clock()
        preview = Preview(stream.schema)
        if is_tensor_content(stream.schema):
            tensors = copy_tensors(stream, output, file, progress)
            return _report(stream, tensors, started, opened, tensors=tensors.count)
        with _open_output(output, file, stream, form, merges=merges) as sink:
            if isinstance(sink, ArrowOutput):
                for message in read_messages(stream, sink.source_schema):
                    sink.write(message)
                    kind = read_message_info(message.metadata).header_type
                    batches += kind is HeaderType.RECORD_BATCH
                    progress.update(stream.rows_received, stream.bytes_received)
            else:
                for batch in stream:
                    batches += 1
                    if sink is None:
                        preview.add(batch)
                    else:
                        sink.write(batch)
                    progress.update(stream.rows_received, stream.bytes_received)
            received = time.perf_counter()
    return _report(stream, preview, started, opened, received, batches=batches)


def _report(
    stream: InputStream,
    preview: Preview | TensorPreview,
    started: float,
    opened: float,
    received: float | None = None,
    *,
    batches: int = 0,
    tensors: int = 0,
) -> Transfer:
    """Return the result for a stream that was read to its end."""
    now = time.perf_counter()
    return Transfer(
        schema=stream.schema,
        rows=stream.rows_received,
        batches=batches,
        tensors=tensors,
        nbytes=stream.bytes_received,
        seconds=now - started,
        data_seconds=(received or now) - opened,
        transport=stream.transport,
        preview=preview,
    )


@contextmanager
def _open_output(
    output: str | None,
    file: OutputFile | None,
    stream: InputStream,
    form: OutputForm,
    *,
    merges: bool,
) -> Generator[Sink | ArrowOutput | None]:
    if output is None:
        yield None
    elif file is None:
        if form.text_format is None:
            sink: Sink | ArrowOutput = StandardArrowOutput(
                make_assembler(".arrows", legacy=form.legacy), *_prepare(stream, form)
            )
        else:
            sink = StandardOutputTextSink(form.text_format, stream.schema)
        with _closing(sink):
            yield sink
    else:
        suffix, footer = parse_suffix(file.path), stream.footer_metadata
        if suffix in TENSOR_SUFFIXES:
            raise UsageError(
                f"{file.path}: the dataset holds record batches, not tensors; use .arrow or "
                ".parquet"
            )
        with file:
            if suffix in ARROW_SUFFIXES and not merges:
                assembler = make_assembler(suffix, legacy=form.legacy, footer=footer)
                opened = open_arrow_file(file.part)
                sink = ArrowOutput(opened, assembler, *_prepare(stream, form))
            else:
                sink = open_sink(suffix, file.part, stream.schema, footer, form.shred)
            with _closing(sink):
                yield sink
            if merges and form != PLAIN:
                _convert_again(file, suffix, form)


def _prepare(stream: InputStream, form: OutputForm) -> tuple[MessageConverter, bytes]:
    """Return the converter of the messages of a stream, and the schema message they have."""
    schema = read_schema_metadata(stream)
    written = schema
    if stream.footer_metadata is not None:  # the footer of a file has it, and no message
        written = rewrite_schema(schema, drops_message_metadata=True)
    return MessageConverter(written, form.messages), schema


def _convert_again(file: OutputFile, suffix: str, form: OutputForm) -> None:
    """Replace a complete file by one of another form."""
    merged = file.part.with_suffix(".merged")
    file.part.rename(merged)
    try:
        with open_local(str(merged)) as dataset, open_selection(dataset, str(merged)) as stream:
            assembler = make_assembler(suffix, legacy=form.legacy, footer=stream.footer_metadata)
            opened = open_arrow_file(file.part)
            sink = ArrowOutput(opened, assembler, *_prepare(stream, form))
            with _closing(sink):
                for message in stream.messages():
                    sink.write(message)
    finally:
        merged.unlink(missing_ok=True)


@contextmanager
def _closing(sink: Sink | ArrowOutput) -> Generator[None]:
    try:
        yield
        sink.close()
    except BaseException:
        sink.abort()
        raise
