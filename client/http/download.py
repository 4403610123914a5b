"""An Arrow IPC stream over HTTP, read from the socket into the memory of its record batches."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa

from ...errors import (
    ClosedError,
    ConnectError,
    DeniedError,
    LimitError,
    NotAPeerError,
    ProtocolError,
    SplitArrowError,
    UsageError,
)
from ...formats.arrow.custom_metadata import find_footer_metadata
from ...formats.arrow.message import CONTINUATION, HeaderType, parse_prefix, read_message_info
from ...formats.arrow.tensors.tensor import AnyTensor
from ...protocol.memory import BodyPool
from ...protocol.messages import Message
from ...protocol.request import AUTO, MAX_VERSION_CHARS, Request
from ...protocol.tags import BodyType
from ...protocol.uri import DataUri
from ...transport.tls_options import TlsOptions
from ..arguments import StreamOptions
from ..failures import FailureMemory
from ..stream.batch_stream import refuse_arrays, refuse_tensors
from ..stream.decoders import ARROW, Decoder, KeepingDecoder, open_decoder
from ..stream.tracing import TRACING_API, StreamTrace, activate
from ..tokens import Token, parse_token, renew_token
from .exchange import Exchange


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that offers datasets over HTTP, and the token for it."""

    uri: DataUri
    """The server, with the path in front of ``/v1``."""
    token: Token | None = field(default=None, repr=False)
    """The bearer token, or its source."""
    tls: TlsOptions | None = None
    """Certificates for the connections."""
    failed_locations: FailureMemory = field(default_factory=FailureMemory, repr=False)
    """The locations that could not be reached."""

    @property
    def address(self) -> str:
        """The server, as scheme, host and port."""
        return self.uri.address

    def current_token(self) -> str | None:
        """Return the token to send; None if there is none."""
        source = parse_token(self.token)
        return None if source is None else source.current()

    def renew_token(self, refused: str | None, error: DeniedError) -> str:
        """Return another token than one that the server has refused; raise its error without."""
        return renew_token(parse_token(self.token), refused, error)

    def locate(self, dataset: str) -> str:
        """Return the URL of a dataset."""
        return f"{self.uri.address}/v1/datasets/{quote(dataset, safe='')}"


def encode_request(request: Request) -> bytes:
    """Return a request as the content of a POST: a JSON object.

    Examples
    --------
    >>> encode_request(Request("flights", columns=("delay",), rows=(3, 7)))
    b'{"columns": ["delay"], "rows": [3, 7]}'
    """
    values = {name: value for name, value in asdict(request).items() if value is not None}
    del values["dataset"]
    values.pop("format", None)  # HTTP carries Arrow, as DoGet does
    if values.get("compression") == AUTO:
        del values["compression"]
    if "filter" in values:
        values["substrait"] = values.pop("filter")
    return json.dumps(values, ensure_ascii=False).encode()


class TokenHolder(Protocol):
    """What has the token for a server."""

    def current_token(self) -> str | None:
        """Return the token to send; None if there is none."""
        ...

    def renew_token(self, refused: str | None, error: DeniedError) -> str:
        """Return another token than one that the server has refused; raise its error without."""
        ...


def open_with_token(
    holder: TokenHolder, url: str, name: str, options: StreamOptions, request: Request | None
) -> HttpStream:
    """Open a stream; once more if the server refuses the token and there is another one."""
    token = holder.current_token()
    try:
        return HttpStream(url, name, options, token=token, request=request)
    except DeniedError as error:
        renewed = holder.renew_token(token, error)
    return HttpStream(url, name, options, token=renewed, request=request)


class HttpStream:
    """A data stream over HTTP: an iterator of record batches, over a connection of its own.

    With a request, its content selects the data; without one, the parameters of the URL do. With
    `is_foreign`, the server need not be a daemon. The stream ends only after its end marker and the
    last chunk of the response. If the server states the number of rows after that, it must match.
    """

    def __init__(
        self,
        url: str,
        name: str,
        options: StreamOptions,
        *,
        token: str | None = None,
        request: Request | None = None,
        is_foreign: bool = False,
    ) -> None:
        self.transport = url.partition(":")[0].lower()
        """The scheme: ``http`` or ``https``."""
        required = options.require_transport
        if required not in (None, self.transport, "http"):
            raise ConnectError(f"{name!r} is read over {self.transport}; {required} is required")
        if not options.allocator.is_host:
            raise UsageError("HTTP is received into host memory; use a host allocator")
        self._name = name
        self._options = options
        self._pool = BodyPool(options.allocator)
        self._sequence = 0
        self._metadata = b""
        """The last metadata. Most messages repeat it byte for byte."""
        self._ended = False
        self._closed = False
        self._rows = 0
        traced = TRACING_API in sys.modules
        uri = DataUri.parse(url) if traced else None
        self._trace = StreamTrace(name, self.transport, uri) if traced else None
        content = None if request is None else encode_request(request)
        self._exchange: Exchange | None = None
        try:
            with activate(None if self._trace is None else self._trace.scope.context):
                self._exchange = Exchange(
                    url, name, options, token=token, content=content, is_foreign=is_foreign
                )
            first, self._decoder = self._open_decoder()
            if self._trace is not None:
                self._trace.record_open()
                self._decoder = self._trace.measure_decoder(self._decoder)
            self.schema_metadata = first.metadata
            """The FlatBuffer of the schema message, as it arrived."""
            self.footer_metadata = find_footer_metadata(first.metadata)
            """The custom metadata of the file's footer; None if there is none."""
            self._exchange.set_timeout(options.stall_timeout)
        except BaseException as error:
            if isinstance(error, SplitArrowError):
                error.stream = error.stream or name
            self._end_trace(error)
            self.close()
            raise

    def _open_decoder(self) -> tuple[Message, Decoder]:
        """Receive the schema, and return it with the decoder of the batches."""
        options, name = self._options, self._name
        try:
            first = self._receive_message()
            if first is None:
                raise ProtocolError("the stream ended before its schema", stream=name)
            return first, open_decoder(
                first, options.decoder_limits, options.validate or "full", name
            )
        except ProtocolError as error:
            if self._exchange is None or not self._exchange.is_untyped:
                raise
            raise NotAPeerError(
                f"{self._exchange.place} sends data that is not an Arrow IPC stream: "
                f"{error.message}",
                stream=name,
            ) from None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._decoder.schema

    @property
    def format(self) -> str:
        """The format of the record batches: HTTP has Arrow."""
        return ARROW

    @property
    def version(self) -> str:
        """The version of the dataset, to resume with; empty if the server states none."""
        version = "" if self._exchange is None else self._exchange.version
        return version if len(version) <= MAX_VERSION_CHARS else ""

    @property
    def bytes_received(self) -> int:
        """The size of everything received so far, in bytes."""
        return 0 if self._exchange is None else self._exchange.bytes_received

    def keep_messages(self) -> None:
        """Keep the messages of the batches that are read from now on; see `Stream`."""
        self._decoder = KeepingDecoder(self._decoder, self.schema_metadata)

    def _receive_message(self) -> Message | None:
        """Wait for the next message; return None at the proven end of the stream."""
        metadata = self._receive_metadata()
        if metadata is None:
            self._check_end()
            return None
        header_type, nbytes = read_message_info(metadata)
        sequence, self._sequence = self._sequence, self._sequence + 1
        if (header_type is HeaderType.SCHEMA) != (sequence == 0):
            problem = (
                "a second schema" if sequence else f"a {header_type.name}, not a schema, first"
            )
            raise ProtocolError(f"received {problem}", sequence=sequence)
        if nbytes > self._options.limits.body_bytes:
            raise LimitError(
                f"the metadata declares a body of {nbytes} bytes; "
                f"the limit is {self._options.limits.body_bytes} bytes",
                sequence=sequence,
            )
        # The decoder writes the metadata with its prefix of 8 bytes in front of the body.
        body = self._pool.allocate(nbytes, 8 + len(metadata))
        self._read(body.view[body.start : body.start + nbytes])
        return Message(sequence, metadata, body, BodyType.PACKED)

    def _receive_metadata(self) -> bytes | None:
        """Wait for the metadata of the next message; return None at the end marker."""
        prefix = memoryview(bytearray(8))
        self._read(prefix[:4])
        is_current = bytes(prefix[:4]) == CONTINUATION
        if is_current:
            self._read(prefix[4:])
        length = parse_prefix(prefix if is_current else prefix[:4]).metadata_length
        if not length:
            return None
        limit = self._options.limits.metadata_bytes
        if length > limit:
            raise LimitError(f"metadata of {length} bytes exceeds the limit of {limit}")
        view = memoryview(bytearray(length))
        self._read(view)
        metadata = bytes(view)
        if metadata != self._metadata:
            self._metadata = metadata
        return self._metadata

    def _read(self, view: memoryview) -> None:
        assert self._exchange is not None
        self._exchange.read_into(view)

    def _check_end(self) -> None:
        """Raise unless the response ends after the end marker, with all rows."""
        assert self._exchange is not None
        rows = self._exchange.finish()
        if rows is not None and rows != self._rows:
            raise ProtocolError(f"received {self._rows} rows; the server has sent {rows}")
        self._ended = True

    def __iter__(self) -> HttpStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `Stream` does."""
        if self._ended:
            raise StopIteration
        if self._closed:
            raise ClosedError("the stream is closed", stream=self._name)
        try:
            while (message := self._receive_message()) is not None:
                batch = self._decoder.decode(message)
                if batch is not None:
                    self._rows += batch.num_rows
                    return batch
        except SplitArrowError as error:
            error.stream = error.stream or self._name
            self._end_trace(error)
            self.close()
            raise
        self._end_trace(None)
        self.close()
        raise StopIteration

    def next_tensor(self) -> AnyTensor | None:
        """Refuse: HTTP carries no tensors."""
        raise refuse_tensors()

    def next_array(self) -> Any:
        """Refuse: HTTP carries no Vortex arrays."""
        raise refuse_arrays()

    def cancel(self) -> None:
        """Interrupt a read that waits in another thread: it raises `ClosedError`."""
        if self._exchange is not None:
            self._exchange.interrupt()

    def _end_trace(self, error: BaseException | None) -> None:
        if self._trace is not None:
            received = self.bytes_received
            self._trace.end(self._rows, received, error, is_complete=self._ended)

    def close(self) -> None:
        """Close the connection. Batches that were returned stay valid. Idempotent."""
        self._closed = True
        self._end_trace(None)
        if self._exchange is not None:
            self._exchange.close()
