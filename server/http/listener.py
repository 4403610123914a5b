"""The HTTP listener: its socket, its thread and its event loop."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from socket import socket

import uvicorn

from ...errors import ConfigError
from ...protocol.uri import DataUri
from ...transport.tcp import bind_socket
from ...transport.tls_options import TlsServerOptions, load_server_context
from ..auth.exposure import is_exposed
from ..config import ServerSettings
from ..context import ServerContext
from ..logs import get_logger
from ..report import Reporter
from .address import HostNames, requires_token
from .application import Application
from .connections import KEEP_ALIVE_SECONDS, BoundedConnection
from .service import Service

_HEADER_BYTES = 32 << 10
"""The largest size of a request without its body, in bytes. A token may have half of it."""
_SAMPLE_SECONDS = 5.0
_CLOSE_SECONDS = 2.0


class HttpListener:
    """Serves metrics, health checks and the status page, from the moment that it is created.

    A context manager: leaving the context closes it.

    Parameters
    ----------
    settings : ServerSettings
        The settings of the server.
    uri : DataUri
        The address; see `http_uri`.

    Raises
    ------
    ConfigError
        If the address cannot be bound, or the certificate cannot be used.
    """

    def __init__(self, settings: ServerSettings, uri: DataUri) -> None:
        tls = _load_tls(settings) if uri.scheme == "https" else None
        self.application = Application(
            HostNames.of(settings, uri),
            checks_names=not requires_token(settings),
            requires_certificate=tls is not None and settings.tls_client_ca is not None,
        )
        """Answers the requests."""
        self._socket = _bind(uri)
        self.uri = uri.replace(port=self._socket.getsockname()[1])
        """The bound address."""
        self._server = _Server(self.application, tls)
        if requires_token(settings) and tls is None and is_exposed(uri):
            get_logger("http").warning("tokens cross the network unencrypted", http=uri.address)
        self._thread = threading.Thread(target=self._run, name="splitarrow-http", daemon=True)
        self._thread.start()

    def attach(self, context: ServerContext, reporter: Reporter) -> None:
        """Answer requests about a daemon, which is ready now; see `Service`."""
        self.application.service = Service(context, reporter)

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
    """uvicorn's server, which also records rates, and stops at once.

    Parameters
    ----------
    application : Application
        Answers the requests.
    tls : SSLContext or None
        The context of encrypted connections.
    """

    def __init__(self, application: Application, tls: ssl.SSLContext | None) -> None:
        config = uvicorn.Config(
            application.build(),
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
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


def _load_tls(settings: ServerSettings) -> ssl.SSLContext:
    """Return a context that uses the current certificate in each handshake.

    A client without a certificate can connect, because health checks have none. `Application`
    refuses its other requests.
    """
    options = TlsServerOptions(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
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
