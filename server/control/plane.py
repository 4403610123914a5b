"""The control plane: binds the port, runs the Flight service, drains.

It reads its certificates again after their files have changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus

from ...errors import ConfigError, MissingExtraError
from ...protocol.uri import DataUri
from ...transport.tls_options import load_server_context
from ..addresses import control_uri, list_unencrypted_addresses
from ..context import ServerContext
from ..listeners import Descriptors
from ..logs import get_logger
from ..receiving import UploadReceiver
from ..reload import ReloadReport
from ..uploads.quota import Quota
from ..uploads.store import UploadStore
from .actions import ActionHandler
from .call import AddressCalls, parse_message
from .do_get import DoGetHandler
from .do_put import DoPutHandler
from .grpc_server import GrpcServer, Method, ServerCall
from .health import HEALTH_SERVICE, HealthService
from .interceptor import CallInterceptor
from .service import FLIGHT_SERVICE, FlightService

_CLOSE_GRACE_SECONDS = 1.0
"""The time for health watchers to receive the last status, in seconds."""
_SMALL_MESSAGE_BYTES = 4 << 20


class ControlPlane:
    """The Flight service of a daemon whose setting `control` is not None.

    The action ``reload`` calls `reload` on a worker thread.
    """

    def __init__(self, context: ServerContext, reload: Callable[[], ReloadReport]) -> None:
        self._context = context
        self._settings = context.settings
        self._reload = reload
        self._store: UploadStore | None = None
        self._server: GrpcServer | None = None
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
            self._server = self._build_server(uri)
        except BaseException:
            await self.close()
            raise
        self._uri = self._server.uri.replace(host=uri.host)
        return self._uri

    async def run(self, *, task_status: TaskStatus[DataUri] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until the daemon drains and all calls have ended, or until cancelled.

        Call `bind` first. While the daemon drains, health checks get NOT_SERVING, and new calls get
        UNAVAILABLE unless a read in progress needs them.
        """
        assert self._uri is not None
        assert self._server is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._server.run)
                task_status.started(self._uri)
                await self._context.draining.wait()
                self._health.drain()
                await self._context.reads.wait_idle()
                await self._interceptor.wait_idle()
                await self._server.wait_sent()
                await self._server.stop(_CLOSE_GRACE_SECONDS)
                tasks.cancel_scope.cancel()
        finally:
            await self.close()

    async def close(self) -> None:
        """End all calls, and release the port and the directory of uploads. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            with anyio.CancelScope(shield=True):
                await server.stop(0)
        if self._store is not None:
            self._store.close()

    def _build_server(self, uri: DataUri) -> GrpcServer:
        limits, settings = self._context.limits, self._settings
        tls = None
        if uri.scheme == "grpc+tls" and settings.tls is not None:
            tls = load_server_context(settings.tls, protocol="h2")
            tls.current()
        try:
            server = GrpcServer(
                uri,
                tls=tls,
                proxies=settings.proxies,
                max_message_bytes=(
                    _SMALL_MESSAGE_BYTES if self._store is None else limits.upload_message_bytes
                ),
                max_calls=limits.calls,
                # The other half is for the data plane.
                max_connections=Descriptors().capacity // 2,
                get_max_per_address=lambda: self._context.settings.address_limit,
                handshake_seconds=settings.handshake_seconds,
                idle_seconds=settings.idle_seconds,
            )
        except ConfigError as error:
            raise ConfigError(f"control: {error.message}") from None
        service = FlightService(
            DoGetHandler(),
            DoPutHandler(self._context.uploads),
            ActionHandler(self._store, self._reload),
        )
        server.methods = {**service.methods(self._interceptor), **self._health.methods()}
        if settings.reflection:
            server.methods.update(_reflect())
        return server

    def _open_store(self) -> UploadStore:
        settings = self._settings
        assert settings.writable is not None
        quota = Quota(settings.writable_bytes, settings.upload_bytes)
        return UploadStore(settings.writable, self._context.catalog, quota)


def _reflect() -> dict[str, Method]:
    """Return the method of grpc.reflection.v1alpha, which describes the services."""
    try:
        from grpc_reflection.v1alpha import reflection
        from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
    except ImportError:
        raise MissingExtraError("reflection needs the package grpcio-reflection") from None
    names = (FLIGHT_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
    servicer: Any = reflection.aio.ReflectionServicer(names)

    async def serve(call: ServerCall) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (message := await call.read()) is not None:
                yield parse_message(ServerReflectionRequest, message)

        async for response in servicer.ServerReflectionInfo(requests(), call):
            await call.write(response.SerializeToString())

    path = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
    return {path: Method(serve, reads_one=False)}
