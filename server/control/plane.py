"""The control plane: binds the port, runs the Flight service, drains.

It reads its certificates again after their files have changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
from anyio import to_thread
from anyio.abc import TaskStatus

from ...errors import ConfigError, MissingExtraError
from ...protocol.uri import DataUri
from ...transport.credential_files import Reloadable
from ...transport.grpc_usage import GRPC_USAGE
from ...transport.port_guard import PortGuard
from ...transport.tls_options import TlsServerOptions, build_server_context
from ..addresses import control_uri, list_unencrypted_addresses
from ..context import ServerContext
from ..listeners import Descriptors
from ..logs import get_logger
from ..receiving import UploadReceiver
from ..reload import ReloadReport
from ..uploads.quota import Quota
from ..uploads.store import UploadStore
from .actions import ActionHandler
from .call import AddressCalls
from .do_get import DoGetHandler
from .do_put import DoPutHandler
from .health import HEALTH_SERVICE, HealthService
from .interceptor import CallInterceptor
from .service import FLIGHT_SERVICE, FlightService


class CertificateProvider:
    """Provides gRPC with the server's certificate, its key and the authorities of clients.

    Notes
    -----
    gRPC uses TLS 1.3 if the client supports it. It has no setting that refuses TLS 1.2.
    """

    def __init__(self, options: TlsServerOptions) -> None:
        files = (options.cert_file, options.key_file, options.client_ca_file)
        self._options = options
        self._log = get_logger("control")
        self._files = Reloadable(
            [Path(file) for file in files if file is not None],
            self._load,
            on_failure=self._log_failed_reload,
        )
        self._in_use = self._files.current()

    def credentials(self) -> Any:
        """Return credentials for a port. At each handshake, gRPC asks for new certificates."""
        return grpc.dynamic_ssl_server_credentials(
            self._in_use,
            self._reload,
            require_client_authentication=self._options.client_ca_file is not None,
        )

    def _reload(self) -> Any:
        """Return new certificates, or None to keep the current ones. Runs on gRPC's threads."""
        current = self._files.current()
        if current is self._in_use:
            return None
        self._in_use = current
        self._log.info("certificates reloaded")
        return current

    def _load(self) -> Any:
        options = self._options
        build_server_context(options)  # raises errors that name the problem; gRPC's do not
        cert_file, ca_file = options.cert_file, options.client_ca_file
        assert cert_file is not None
        cert = _read_bytes(cert_file)
        key = cert if options.key_file is None else _read_bytes(options.key_file)
        roots = None if ca_file is None else _read_bytes(ca_file)
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def _log_failed_reload(self, reason: str) -> None:
        self._log.error("cannot reload the certificates; keeping the old ones", reason=reason)


def _read_bytes(file: str | os.PathLike[str]) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None


_CLOSE_GRACE_SECONDS = 1.0
"""The time for health watchers to receive the last status, in seconds."""
_UNSENT_SECONDS = 0.05
"""The time between two looks for data that clients have not received yet, in seconds."""
_SMALL_MESSAGE_BYTES = 4 << 20
_CHANNEL_OPTIONS = {
    # Without this, two servers can listen on one port, and each gets some of the clients.
    "grpc.so_reuseport": 0,
    # Detects within a minute that a client has vanished.
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.keepalive_permit_without_calls": 1,
    # Clients that ping often keep their connections.
    "grpc.http2.max_ping_strikes": 0,
    "grpc.max_send_message_length": -1,
}


class ControlPlane:
    """The Flight service of a daemon whose setting `control` is not None.

    The action ``reload`` calls `reload` on a worker thread.
    """

    def __init__(self, context: ServerContext, reload: Callable[[], ReloadReport]) -> None:
        self._context = context
        self._settings = context.settings
        self._reload = reload
        self._store: UploadStore | None = None
        self._server: Any = None
        self._uri: DataUri | None = None
        self._log = get_logger("control")

    @property
    def uri(self) -> DataUri | None:
        """The bound address, or None before `bind`."""
        return self._uri

    async def bind(self) -> DataUri:
        """Bind the port and open the directory of uploads. No call is served yet."""
        settings, access = self._settings, self._context.access
        uri = control_uri(settings)
        assert uri is not None
        access.check_exposure(
            (),
            uri,
            client_certificates=settings.tls_client_ca is not None,
            insecure=settings.insecure,
        )
        if access.requires_token and list_unencrypted_addresses((), uri):
            self._log.warning("tokens cross the network unencrypted", control=uri.address)
        try:
            if settings.writable is not None:
                self._store = await to_thread.run_sync(self._open_store)
                uploads = self._context.limits.uploads
                self._context.uploads = UploadReceiver(self._store, uploads)
            address_calls = AddressCalls(lambda: self._context.settings.max_calls_per_address)
            self._health = HealthService((FLIGHT_SERVICE,), address_calls)
            self._interceptor = CallInterceptor(self._context, address_calls)
            self._server = self._build_server()
            port = self._bind_port(uri)
        except BaseException:
            await self.close()
            raise
        self._uri = uri.replace(port=port)
        return self._uri

    async def run(self, *, task_status: TaskStatus[DataUri] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until the daemon drains and all calls have ended, or until cancelled.

        Call `bind` first. While the daemon drains, health checks get NOT_SERVING, and new calls get
        UNAVAILABLE unless a read in progress needs them.
        """
        assert self._uri is not None
        try:
            await self._server.start()
            task_status.started(self._uri)
            with closing(self._make_guard()) as guard:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._guard_port, guard)
                    await self._context.draining.wait()
                    self._health.drain()
                    await self._context.reads.wait_idle()
                    await self._interceptor.wait_idle()
                    await _wait_sent(guard)
                    tasks.cancel_scope.cancel()
            await self.close(_CLOSE_GRACE_SECONDS)
        finally:
            await self.close()

    async def close(self, grace: float | None = None) -> None:
        """End all calls, and release the port and the directory of uploads. Idempotent.

        Running calls may end by themselves for `grace` seconds. New ones are refused.
        """
        server, self._server = self._server, None
        if server is not None:
            with anyio.CancelScope(shield=True):
                await server.stop(grace)
            GRPC_USAGE.discard(self)
        if self._store is not None:
            self._store.close()

    def _make_guard(self) -> PortGuard:
        """Return what keeps the connections within half of the descriptors for connections.

        gRPC accepts its connections itself, so that those beyond a limit are closed afterwards.
        """
        assert self._uri is not None
        return PortGuard(
            self._uri.port or 0, max_connections=Descriptors().capacity // 2, closes_newest=True
        )

    async def _guard_port(self, guard: PortGuard) -> None:
        while True:
            guard.max_per_address = self._context.settings.address_limit
            guard.check_if_due()
            await anyio.sleep(guard.seconds_to_check)

    def _build_server(self) -> Any:
        limits, settings = self._context.limits, self._settings
        service = FlightService(
            DoGetHandler(),
            DoPutHandler(self._context.uploads),
            ActionHandler(self._store, self._reload),
        )
        max_bytes = _SMALL_MESSAGE_BYTES if self._store is None else limits.upload_message_bytes
        options = {
            **_CHANNEL_OPTIONS,
            "grpc.max_receive_message_length": max_bytes,
            "grpc.server_handshake_timeout_ms": int(1000 * settings.handshake_seconds),
            "grpc.max_connection_idle_ms": int(1000 * settings.idle_seconds),
        }
        GRPC_USAGE.add(self)
        server = grpc.aio.server(
            handlers=[service.handler(self._interceptor), self._health.handler()],
            options=list(options.items()),
            maximum_concurrent_rpcs=limits.calls,
        )
        if settings.reflection:
            _enable_reflection(server)
        return server

    def _bind_port(self, uri: DataUri) -> int:
        settings = self._settings
        host = uri.host or "::"
        address = f"[{host}]:{uri.port}" if ":" in host else f"{host}:{uri.port}"
        try:
            if uri.scheme != "grpc+tls" or settings.tls is None:
                return self._server.add_insecure_port(address)
            credentials = CertificateProvider(settings.tls).credentials()
            return self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise ConfigError(
                f"control: cannot listen on {uri.address}: another program uses the port, or the "
                "address does not belong to this machine; choose another port, or any free one "
                f"with --control {uri.replace(port=0).address}"
            ) from None

    def _open_store(self) -> UploadStore:
        settings = self._settings
        assert settings.writable is not None
        quota = Quota(settings.writable_bytes, settings.upload_bytes)
        return UploadStore(settings.writable, self._context.catalog, quota)


async def _wait_sent(guard: PortGuard) -> None:
    """Return when all clients have received what was sent: closing a connection discards it."""
    while True:
        if not guard.has_unsent():
            return
        await anyio.sleep(_UNSENT_SECONDS)


def _enable_reflection(server: Any) -> None:
    try:
        from grpc_reflection.v1alpha import reflection
    except ImportError:
        raise MissingExtraError("reflection needs the package grpcio-reflection") from None
    names = (FLIGHT_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
