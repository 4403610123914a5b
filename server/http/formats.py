"""The formats of responses: which one a request gets, and how a dataset is written in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from ...errors import DatasetError, InvalidRequestError, ProtocolError, UsageError
from ...formats.arrow.decoding import DECODING_ERRORS, validate_memory
from ...formats.arrow.file_writer import FileAssembler, ReplacedDictionaryError, StreamAssembler
from ...protocol.splitter import SourceMessage
from ...sinks import Sink
from ...sinks.text import CsvSink, JsonLinesSink
from ..catalog.dataset import Source
from ..catalog.vortex_encoding import MessageDecoder
from ..chunks import Chunk, Pace, build_chunks, iter_buffers

_ROW_GROUP_BYTES = 32 << 20
"""The size at which a response in Parquet has a row group. Until then it is kept in memory."""

Write = Callable[[Source, Pace], Iterator[Chunk]]
"""Yields the contents of a response. It closes nothing."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of responses."""

    name: str
    """The value of the parameter ``format``."""
    media_type: str
    suffix: str
    """The suffix of a file that a browser saves."""
    stored_kinds: tuple[str, ...]
    """The kinds of stored files that have this format."""
    write: Write
    is_text: bool = False
    """Whether compression pays for every response."""


def _write_arrow(make: Callable[[], StreamAssembler]) -> Write:
    """Return what writes Arrow IPC messages as they are, without decoding them."""

    def write(source: Source, pace: Pace) -> Iterator[Chunk]:
        assembler = make()
        has_begun = False

        def encode(message: SourceMessage) -> Iterable[bytes | memoryview]:
            nonlocal has_begun
            if has_begun:
                head = assembler.add(message.metadata, message.body_length)
                return iter_buffers(head, message)
            has_begun = True
            return (assembler.begin(bytes(message.metadata)),)

        try:
            yield from build_chunks(source, pace, encode)
        except ReplacedDictionaryError:
            raise InvalidRequestError(
                "an Arrow IPC file has one dictionary for each column, and the dataset replaces "
                "one; request the format arrow-stream"
            ) from None
        last = Chunk(pace.chunk_bytes)
        last.add(assembler.end(), rows=0)
        yield last

    return write


class _Output:
    """Collects what a sink writes."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: the pieces are taken."""

    def close(self) -> None:
        """Do nothing: the pieces are taken."""

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def _write_rows(open_sink: Callable[[pa.NativeFile, pa.Schema], Sink]) -> Write:
    """Return what decodes record batches and writes them to a sink."""

    def write(source: Source, pace: Pace) -> Iterator[Chunk]:
        output = _Output()
        sink: Sink | None = None
        try:
            messages = (message for group in source for message in group)
            decoder = MessageDecoder(bytes(next(messages).metadata))
            sink = open_sink(pa.PythonFile(cast(Any, output), mode="w"), decoder.schema)
            chunk = Chunk(pace.chunk_bytes)
            for message in messages:
                decoded = decoder.decode(message)
                if decoded is None:
                    continue
                batch = decoded[0]
                validate_memory(batch)
                sink.write(batch)
                chunk.add(output.take(), rows=batch.num_rows)
                if chunk.is_full or chunk.is_late:
                    yield chunk
                    chunk = Chunk(pace.chunk_bytes)
            closing, sink = sink, None
            closing.close()
            chunk.add(output.take(), rows=0)
            yield chunk
        except UsageError as error:
            # A sink names the suffixes of other formats.
            reason = error.message.partition("; write to ")[0]
            raise InvalidRequestError(f"{reason}; request another format") from None
        except (ProtocolError, *DECODING_ERRORS) as error:
            reason = str(error).partition("\n")[0]
            raise DatasetError(f"the dataset has invalid data: {reason}") from None
        finally:
            if sink is not None:
                sink.abort()

    return write


def _open_parquet(file: pa.NativeFile, schema: pa.Schema) -> Sink:
    from ...sinks.parquet import ParquetSink

    return ParquetSink(file, schema, row_group_bytes=_ROW_GROUP_BYTES)


def _open_vortex(file: pa.NativeFile, schema: pa.Schema) -> Sink:
    from ...sinks.vortex import VortexStreamSink

    return VortexStreamSink(file, schema)


_APACHE = "application/vnd.apache."
FORMATS = {
    each.name: each
    for each in (
        Format(
            "arrow-stream",
            f"{_APACHE}arrow.stream",
            ".arrows",
            ("arrow stream",),
            _write_arrow(StreamAssembler),
        ),
        Format(
            "arrow-file",
            f"{_APACHE}arrow.file",
            ".arrow",
            ("arrow file",),
            _write_arrow(FileAssembler),
        ),
        Format(
            "parquet",
            f"{_APACHE}parquet",
            ".parquet",
            ("parquet file",),
            _write_rows(_open_parquet),
        ),
        Format("csv", "text/csv", ".csv", (), _write_rows(CsvSink), is_text=True),
        Format(
            "ndjson",
            "application/x-ndjson",
            ".ndjson",
            (),
            _write_rows(JsonLinesSink),
            is_text=True,
        ),
        Format(
            "vortex",
            "application/vnd.vortex",
            ".vortex",
            ("vortex file",),
            _write_rows(_open_vortex),
        ),
    )
}
"""The formats by name."""
ARROW_STREAM = FORMATS["arrow-stream"]
_ALIASES = {
    "application/jsonl": "ndjson",
    "application/jsonlines": "ndjson",
    "application/x-jsonlines": "ndjson",
    "application/parquet": "parquet",
    "application/x-parquet": "parquet",
}
_MAX_RANGES = 64


def parse_weights(header: str) -> Iterator[tuple[str, float]]:
    """Yield the values of a header such as ``Accept``, and their weights ("RFC 9110", 12.4.2).

    Examples
    --------
    >>> list(parse_weights("text/csv;q=0.5, */*;q=x"))
    [('text/csv', 0.5), ('*/*', 1.0)]
    """
    for item in header.split(",")[:_MAX_RANGES]:
        value, *parameters = (part.strip().lower() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            name, _, text = parameter.partition("=")
            if name.strip() == "q":
                try:
                    weight = min(max(float(text), 0.0), 1.0)
                except ValueError:
                    weight = 1.0
        if value:
            yield value, weight


def choose_format(name: str | None, accept: str) -> Format | None:
    """Return the format that a parameter names, or the best one that ``Accept`` allows, or None.

    Raises `InvalidRequestError` if there is no format of that name.

    Examples
    --------
    >>> [choose_format(None, accept).name for accept in ("", "text/*", "text/html,*/*;q=0.8")]
    ['arrow-stream', 'csv', 'arrow-stream']
    """
    if name is not None:
        if name not in FORMATS:
            raise InvalidRequestError(
                f"the request has the format {name!r}; known are {', '.join(FORMATS)}"
            )
        return FORMATS[name]
    by_type = {each.media_type: each for each in FORMATS.values()}
    by_type |= {media_type: FORMATS[alias] for media_type, alias in _ALIASES.items()}
    best: tuple[float, Format] | None = None
    for media_type, weight in parse_weights(accept or "*/*"):
        if media_type in ("*/*", "application/*"):
            found = ARROW_STREAM
        elif media_type == "text/*":
            found = FORMATS["csv"]
        else:
            found = by_type.get(media_type)
        if found is not None and weight > (0.0 if best is None else best[0]):
            best = weight, found
    return None if best is None else best[1]


def accepts_zstd(header: str) -> bool:
    """Return whether the header ``Accept-Encoding`` allows zstd, and does not prefer another.

    Examples
    --------
    >>> accepts_zstd("gzip, zstd;q=1.0"), accepts_zstd("zstd;q=0"), accepts_zstd("*")
    (True, False, False)
    """
    weights = dict(parse_weights(header))
    weight = weights.get("zstd", 0.0)
    return weight > 0 and weight >= weights.get("identity", 0.0)


def compress_chunks(chunks: Iterator[Chunk], pace: Pace) -> Iterator[Chunk]:
    """Yield chunks with the same rows, whose contents together are one zstd frame."""
    output = _Output()
    with pa.CompressedOutputStream(pa.PythonFile(cast(Any, output), mode="w"), "zstd") as stream:
        rows = 0
        for chunk in chunks:
            while chunk.buffers:
                stream.write(chunk.buffers.popleft())
            rows += chunk.rows
            data = output.take()
            if data:
                compressed = Chunk(pace.chunk_bytes)
                compressed.add(data, rows=rows)
                rows = 0
                yield compressed
    last = Chunk(pace.chunk_bytes)
    last.add(output.take(), rows=rows)
    yield last
