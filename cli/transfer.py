"""Read a stream into a file, and show the progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from .output_file import OutputFile
from .output_formats import (
    Sink,
    StandardOutputSink,
    StandardOutputTextSink,
    open_sink,
    parse_suffix,
)
from .preview import Preview
from .progress import TransferProgress

if TYPE_CHECKING:
    from ..client.dataset.dataset_stream import DatasetStream
    from ..client.stream.blocking import Stream

STANDARD_OUTPUT = "-"
"""The name of the output that is standard output."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The result of a fetch."""

    schema: pa.Schema
    """The schema of the data."""
    rows: int
    """The number of rows."""
    batches: int
    """The number of record batches."""
    nbytes: int
    """The number of bytes received, headers included."""
    seconds: float
    """The time from connecting to the renaming of the file, in seconds."""
    data_seconds: float
    """The time from the first message to the last, in seconds."""
    transport: str
    """The scheme of the transport."""
    preview: Preview
    """The first rows, if there is no output."""


def transfer(
    open_stream: Callable[[], Stream | DatasetStream],
    output: str | None,
    progress: TransferProgress,
    text_format: str | None = None,
) -> Transfer:
    """Read a stream to its end.

    Parameters
    ----------
    open_stream : callable
        Opens the stream.
    output : str or None
        The file to write. Its suffix selects the format. ``-`` is standard output; None writes
        nothing.
    progress : TransferProgress
        Shows the progress.
    text_format : {"csv", "jsonl"}, optional
        What to write to standard output in place of an IPC stream.

    Raises
    ------
    SplitArrowError
        If the stream fails, the suffix is unknown, or the format cannot store the data.
    OSError
        If the output cannot be written. After any error, the file is unchanged or absent.
    """
    started = time.perf_counter()
    file = None
    if output not in (None, STANDARD_OUTPUT):
        parse_suffix(Path(output))
        file = OutputFile(Path(output))
    batches = 0
    with progress, open_stream() as stream:
        opened = time.perf_counter()
        progress.restart_clock()
        preview = Preview(stream.schema)
        with _open_output(output, file, stream, text_format) as sink:
            for batch in stream:
                batches += 1
                if sink is None:
                    preview.add(batch)
                else:
                    sink.write(batch)
                progress.update(stream.rows_received, stream.bytes_received)
            received = time.perf_counter()
    return Transfer(
        schema=stream.schema,
        rows=stream.rows_received,
        batches=batches,
        nbytes=stream.bytes_received,
        seconds=time.perf_counter() - started,
        data_seconds=received - opened,
        transport=stream.transport,
        preview=preview,
    )


@contextmanager
def _open_output(
    output: str | None,
    file: OutputFile | None,
    stream: Stream | DatasetStream,
    text_format: str | None,
) -> Generator[Sink | None]:
    if output is None:
        yield None
    elif file is None:
        if text_format is None:
            sink: Sink = StandardOutputSink(stream.schema)
        else:
            sink = StandardOutputTextSink(text_format, stream.schema)
        with _closing(sink):
            yield sink
    else:
        suffix, footer = parse_suffix(file.path), stream.footer_metadata
        with file, _closing(open_sink(suffix, file.part, stream.schema, footer)) as sink:
            yield sink


@contextmanager
def _closing(sink: Sink) -> Generator[Sink]:
    try:
        yield sink
        sink.close()
    except BaseException:
        sink.abort()
        raise
