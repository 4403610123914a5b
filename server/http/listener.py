"""The HTTP listener: its socket, its thread, its event loop, and the bounds on its connections."""

from __future__ import annotations

import asyncio
import math
import os
import select
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from socket import socket
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...errors import ConfigError
from ...protocol.uri import DataUri
from ...transport.memory.files import SourceFile
from ...transport.proxy_protocol import Network, ProxiedSocket, begins_header, refuse_header
from ...transport.tcp import bind_socket, format_peer
from ...transport.tls_options import TlsServerOptions, load_server_context
from ..addresses import HostNames, is_exposed, parse_address
from ..config import Settings
from ..context import ServerContext
from ..logs import get_logger
from .application import HAS_CERTIFICATE, Application
from .responses import CONNECTION
from .service import Service

MAX_CONNECTIONS = 512
"""The number of connections without a response with data. Further ones are closed at once."""
REQUEST_SECONDS = 10.0
"""The time for a request to arrive completely, its body included, in seconds."""
KEEP_ALIVE_SECONDS = 75.0
"""The time after which a connection without a request is closed, in seconds."""
RESPONSE_SECONDS = 60.0
"""The time for a response to be made and taken by the client, in seconds."""
_CHECK_SECONDS = 2.0
_FIRST_BYTES = 64 << 10
_PAUSE_MILLISECONDS = 10
_CLIENT_CLOSE_SECONDS = 2.0
"""The time for a client to close its end of a connection, in seconds."""


class PatientTransport:
    """A transport that lets the client close its end first.

    Thousands of streams can use up the memory that the kernel has for TCP. It then resets each
    connection that is closed before its data has arrived, and a health check would fail.

    The wrapped transport does everything else.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = self.wrapped = transport
        self.has_ended = False
        """Whether nothing more is sent."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Send what is queued and then the end. Close when the client has, or after a time."""
        if self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        if self.has_ended:
            return
        self.has_ended = True
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(_CLIENT_CLOSE_SECONDS, self._transport.close)


class _Framing(h11.Connection):
    """The messages of a connection, with trailers, which ASGI lacks."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(h11.SERVER, max_bytes)
        self.trailers: Sequence[tuple[str, str]] = ()

    def send(self, event: h11.Event) -> Any:
        if self.trailers and type(event) is h11.EndOfMessage:
            event, self.trailers = h11.EndOfMessage(headers=list(self.trailers)), ()
        return super().send(event)


class _SentBytes(bytes):
    """The size of data that is a part of the body, and is sent by other means."""

    def __new__(cls, nbytes: int) -> _SentBytes:
        sent = super().__new__(cls)
        sent.nbytes = nbytes
        return sent

    nbytes: int

    def __len__(self) -> int:
        return self.nbytes


def _ignore_error(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()


def _copy_descriptors(target: socket, source: SourceFile) -> tuple[int, int]:
    copy = os.dup(target.fileno())
    try:
        return copy, os.dup(source.fileno())
    except BaseException:
        os.close(copy)
        raise


def _send_while_taken(
    descriptors: tuple[int, int], begin: int, end: int, is_lost: Callable[[], bool]
) -> int:
    """Send a part of a file until the client pauses or is lost; return the position.

    The descriptors of the socket and the file are copies, which are closed at the end. The numbers
    of the others may belong to another connection or file by then.
    """
    target, source = descriptors
    waiting = select.poll()
    waiting.register(target, select.POLLOUT)
    position = begin
    try:
        while position < end and not is_lost():
            try:
                sent = os.sendfile(target, source, position, end - position)
            except BlockingIOError:
                if not waiting.poll(_PAUSE_MILLISECONDS):
                    break
                continue
            if not sent:
                break  # the file is shorter now, which the event loop finds
            position += sent
        return position
    finally:
        os.close(target)
        os.close(source)


class BoundedConnection(H11Protocol):
    """A connection that is closed if its client is too slow, or if there are too many.

    uvicorn itself bounds the size of headers and the time between requests, but not the time that
    a request takes to arrive.

    A response with data may take long: the daemon cancels its stream when the client stalls.
    """

    def __init__(self, *args: Any, record_refusal: Callable[[str], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = self._framing = _Framing(_HEADER_BYTES)
        self._record_refusal = record_refusal
        self._deadline = self.loop.time() + REQUEST_SECONDS
        self._has_begun = False
        self._is_new = True
        self._timer: asyncio.TimerHandle | None = None
        self._transfers = False
        self._lent: list[SourceFile] = []
        self._checks = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the time of the first request."""
        self._patient = PatientTransport(transport)
        super().connection_made(self._patient)  # type: ignore[arg-type]
        # Behind a proxy, this is the address of its client.
        host, port = transport.get_extra_info("peername")[:2]
        self.client = (str(parse_address(host) or host), port)
        connection = transport.get_extra_info("ssl_object")
        has_certificate = connection is not None and bool(connection.getpeercert())
        self._can_send_files = connection is None
        self.app_state = {
            **self.app_state,
            HAS_CERTIFICATE: has_certificate,
            CONNECTION: self,
        }
        others: Any = self.connections
        if sum(not each.transfers for each in others) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._return_files()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle what the client has sent. The rest of a request has to follow in time."""
        if self._patient.has_ended:
            return
        if self._is_new and begins_header(data):
            self._refuse_header()
            return
        self._is_new = False
        if not self._has_begun and self._is_idle:
            self._has_begun = True
            self._deadline = min(self._deadline, self.loop.time() + REQUEST_SECONDS)
            self._return_files()  # who sends the next request has read the last response
        super().data_received(data)
        if self._has_begun and not self._is_idle and not self.cycle.more_body:
            self._has_begun = False
            self._deadline = self.loop.time() + RESPONSE_SECONDS

    def _refuse_header(self) -> None:
        """Close a connection from a stranger that claims another address."""
        error = refuse_header(format_peer(self.client))
        get_logger("http").warning("connection refused", reason=error.message)
        self._record_refusal(error.code)
        self.transport.abort()

    def on_response_complete(self) -> None:
        """Begin the time until the next request."""
        self._transfers = False
        self._deadline = self.loop.time() + KEEP_ALIVE_SECONDS
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed data. A response of the application can no longer be sent."""
        if not self._is_idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # the response to HEAD has no body
            self.transport.close()

    @property
    def transfers(self) -> bool:
        """Whether a response with data is on its way, which other limits bound."""
        return self._transfers

    @property
    def is_lost(self) -> bool:
        """Whether the client has disconnected."""
        return self._patient.is_closing()

    @property
    def can_send_files(self) -> bool:
        """Whether the kernel can send a file: it cannot encrypt it."""
        return self._can_send_files

    def begin_transfer(self) -> None:
        """Let the response take as long as its client takes data."""
        self._transfers = True
        self._has_begun = False
        self._deadline = math.inf

    def add_trailers(self, trailers: Sequence[tuple[str, str]]) -> None:
        """Send trailers after the body that ends next."""
        self._framing.trailers = trailers

    async def send_large(self, piece: bytes | memoryview) -> None:
        """Send a piece of a body without copying it."""
        if self.flow.write_paused:
            await self.flow.drain()
        for part in (
            self._framing.send_with_data_passthrough(h11.Data(data=cast(bytes, piece))) or ()
        ):
            self.transport.write(part)

    async def send_file(
        self, file: SourceFile, offset: int, nbytes: int, on_progress: Callable[[], object]
    ) -> None:
        """Send a part of a file as a part of the body.

        The socket refers to the pages of the file until its client has read them.
        """
        if file not in self._lent:
            file.lend()
            self._lent.append(file)
        if self.flow.write_paused:
            await self.flow.drain()
        self._framing.send_with_data_passthrough(h11.Data(data=_SentBytes(nbytes)))
        transport, source = cast(Any, self._patient.wrapped), cast(Any, file)
        position, end = offset, offset + nbytes
        while position < end:
            # The event loop waits for the client. While it takes data, a thread needs less time.
            size = min(end - position, _FIRST_BYTES)
            sent = await self.loop.sendfile(transport, source, position, size, fallback=False)
            if sent != size:
                raise file.truncation_error(position + sent)
            position += sent
            on_progress()
            if position < end:
                copies = _copy_descriptors(transport.get_extra_info("socket"), file)
                send = partial(_send_while_taken, copies, position, end, lambda: self.is_lost)
                sending = self.loop.run_in_executor(None, send)
                sending.add_done_callback(_ignore_error)  # nobody awaits it after a cancellation
                # It closes its descriptors in any case, so it must not be cancelled itself.
                position = await asyncio.shield(sending)

    def abort(self) -> None:
        """Reset the connection."""
        self.transport.abort()

    def _return_files(self) -> None:
        while self._lent:
            self._lent.pop().take_back()

    def _yield_to_writers(self) -> None:
        """Reset an idle connection if a writer waits for a file that was sent over it."""
        self._checks = self._checks + 1 if any(file.delays_writer for file in self._lent) else 0
        if self._checks > 1 and self._is_idle:
            self.transport.abort()

    def abort_if_idle(self) -> None:
        """Close the connection at once, unless a response is on its way."""
        if self._is_idle:
            self.transport.abort()

    @property
    def _is_idle(self) -> bool:
        """Whether no request has arrived, or the response to the last one is complete."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _check(self) -> None:
        if self.loop.time() >= self._deadline:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(_CHECK_SECONDS, self._check)
            if self._lent:
                self._yield_to_writers()


_HEADER_BYTES = 32 << 10
"""The largest size of a request without its body, in bytes. A token may have half of it."""
_SAMPLE_SECONDS = 5.0
_CLOSE_SECONDS = 2.0


class HttpListener:
    """Serves metrics, health checks and the status page, from the moment that it is created.

    A context manager: leaving the context closes it.
    """

    def __init__(self, settings: Settings, uri: DataUri) -> None:
        options = settings.tls if uri.scheme == "https" else None
        tls = None if options is None else _load_tls(options)
        self.application = Application(
            HostNames.of(settings, uri),
            checks_names=not settings.requires_token,
            requires_certificate=tls is not None and settings.tls_client_ca is not None,
            origins=settings.http_origins,
        )
        """Answers the requests."""
        self._socket = _bind(uri)
        if settings.proxies:
            self._socket = ProxiedSocket(self._socket, settings.proxies, REQUEST_SECONDS)
        self.uri = uri.replace(port=self._socket.getsockname()[1])
        """The bound address."""
        self._server = _Server(self.application, tls, settings.proxies)
        if settings.requires_token and tls is None and is_exposed(uri):
            get_logger("http").warning("tokens cross the network unencrypted", http=uri.address)
        self._thread = threading.Thread(target=self._run, name="splitarrow-http", daemon=True)
        self._thread.start()

    def attach(self, context: ServerContext) -> None:
        """Answer requests about a daemon, which is ready now; see `Service`."""
        self.application.service = Service(context)
        context.http = self.uri

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.stop()
        self._thread.join()

    def __enter__(self) -> HttpListener:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve([self._socket]))
        except Exception:
            get_logger("http").exception("the HTTP listener has ended")


class _Server(uvicorn.Server):
    """uvicorn's server, which also records rates, and stops at once."""

    def __init__(
        self, application: Application, tls: ssl.SSLContext | None, proxies: Iterable[Network]
    ) -> None:
        connection: Any = partial(BoundedConnection, record_refusal=self._record_refusal)
        config = uvicorn.Config(
            application.build(),
            http=connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=[str(network) for network in proxies],
            server_header=False,
            timeout_keep_alive=int(KEEP_ALIVE_SECONDS),
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=_HEADER_BYTES,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)
        self._application = application
        self._is_stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    def _record_refusal(self, code: str) -> None:
        """Record that a connection was refused, once the daemon is ready."""
        if self._application.service is not None:
            self._application.service.context.refusals.record(code, "http", None, "http")

    def stop(self) -> None:
        """Let `serve` return. Any thread may call this."""
        self._is_stopped.set()
        self.should_exit = self.force_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    async def main_loop(self) -> None:
        """Update the date in the headers, and record rates, until the server is stopped."""
        self._loop = asyncio.get_running_loop()
        sampling = self._loop.create_task(self._record_rates())
        while not self._is_stopped.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 1.0)
        sampling.cancel()
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedConnection):
                connection.abort_if_idle()

    async def _record_rates(self) -> None:
        while True:
            try:
                await self._application.sample()
            except Exception:
                get_logger("http").exception("cannot record rates")
            await asyncio.sleep(_SAMPLE_SECONDS)


def _bind(uri: DataUri) -> socket:
    try:
        return bind_socket(uri.replace(host=uri.host or "::"))
    except ConfigError as error:
        raise ConfigError(f"http: {error.message}") from None


def _load_tls(options: TlsServerOptions) -> ssl.SSLContext:
    """Return a context that uses the current certificate in each handshake.

    A client without a certificate can connect, because health checks have none. `Application`
    refuses its other requests.
    """
    current = load_server_context(options)

    def use_current(connection: ssl.SSLObject, name: str | None, before: ssl.SSLContext) -> None:
        del name, before
        connection.context = _relax(current.current())

    context = _relax(current.current())
    context.sni_callback = use_current
    return context


def _relax(context: ssl.SSLContext) -> ssl.SSLContext:
    if context.verify_mode is ssl.CERT_REQUIRED:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
