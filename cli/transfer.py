"""One fetch: from a stream into a file, showing its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from .preview import Preview
from .progress import FetchProgress
from .sinks import Sink, StandardOutputSink, checked_suffix, open_sink
from .target import Target

if TYPE_CHECKING:
    from ..client.blocking import Stream
    from ..client.parallel import DatasetStream

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a fetch has moved."""

    schema: pa.Schema
    """The schema of what came."""
    rows: int
    """How many rows came."""
    batches: int
    """In how many record batches."""
    nbytes: int
    """How many bytes arrived, headers included."""
    seconds: float
    """How long all of it took, from connecting to the file having its name."""
    transport: str
    """The scheme that it came by."""
    preview: Preview
    """The first rows."""


def transfer(
    connect: Callable[[], Stream | DatasetStream], output: str | None, progress: FetchProgress
) -> Transfer:
    """Read a whole stream.

    Parameters
    ----------
    connect : callable
        Opens the stream.
    output : str or None
        A file, of the kind that its suffix tells; ``-`` for standard output; None: nowhere.
    progress : FetchProgress
        Shows what has come.

    Raises
    ------
    SplitArrowError
        If the stream fails, or the suffix is unknown, or that kind of file cannot hold the data.
    OSError
        If the output cannot be written. In every case the file is as it was before, or absent.
    """
    started = time.perf_counter()
    target = None
    if output not in (None, STDOUT):
        checked_suffix(Path(output))
        target = Target(Path(output))
    batches = 0
    with progress, connect() as stream:
        preview = Preview(stream.schema)
        with _sink(output, target, stream.schema) as sink:
            for batch in stream:
                batches += 1
                if sink is None:
                    preview.take(batch)
                else:
                    sink.write(batch)
                progress.update(stream.rows_received, stream.bytes_received)
    return Transfer(
        schema=stream.schema,
        rows=stream.rows_received,
        batches=batches,
        nbytes=stream.bytes_received,
        seconds=time.perf_counter() - started,
        transport=stream.transport,
        preview=preview,
    )


@contextmanager
def _sink(output: str | None, target: Target | None, schema: pa.Schema) -> Generator[Sink | None]:
    if output is None:
        yield None
    elif target is None:
        with _closing(StandardOutputSink(schema)) as sink:
            yield sink
    else:
        with target, _closing(open_sink(checked_suffix(target.path), target.part, schema)) as sink:
            yield sink


@contextmanager
def _closing(sink: Sink) -> Generator[Sink]:
    try:
        yield sink
        sink.close()
    except BaseException:
        sink.abandon()
        raise
