"""The control plane: binds the port, runs the service, drains."""

from __future__ import annotations

from typing import Any

import anyio
import grpc
import grpc.aio
from anyio import to_thread
from anyio.abc import TaskStatus

from ...errors import ConfigError, MissingExtraError
from ...protocol.uri import DataUri
from ...transport.certificates import TlsServerOptions
from ..auth.exposure import check_exposure, in_the_clear
from ..logs import get_logger
from .actions import Actions, Reload
from .do_get import Sender
from .do_put import Receiver
from .handshake import Greeter
from .health import HEALTH_SERVICE, Health
from .info import Informer
from .ports import DaemonPort, Guard, Office, OpenGuard, OpenOffice
from .quota import Quota
from .reception import Reception
from .running import RunningStreams
from .service import FLIGHT_SERVICE, FlightService
from .settings import DEFAULT_PORT, ControlSettings
from .store import UploadStore
from .tls import Certificates

_LAST_WORDS_SECONDS = 1.0
"""How long those who watch the health of the server have to hear of its end."""
_SMALL_MESSAGE = 4 << 20
_CHANNEL = {
    # Without this, two servers may listen on one port, and each gets some of the clients.
    "grpc.so_reuseport": 0,
    # A client that vanished without a word is noticed within a minute.
    "grpc.keepalive_time_ms": 40_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    "grpc.max_send_message_length": -1,
}


class ControlPlane:
    """The Flight service of a daemon.

    Parameters
    ----------
    daemon : DaemonPort
        The daemon; it runs by the time that `run` is called.
    guard : Guard or None
        Who knows the callers; None lets everybody in.
    office : Office or None
        Makes the tickets; None makes plain ones.
    settings : ControlSettings
        How to serve.
    reload : callable, optional
        What the action ``reload`` does; it is called on a worker thread.
    """

    def __init__(
        self,
        daemon: DaemonPort,
        guard: Guard | None,
        office: Office | None,
        settings: ControlSettings,
        reload: Reload | None = None,
    ) -> None:
        self._daemon = daemon
        self._guard = guard or OpenGuard()
        self._office = office or OpenOffice()
        self._settings = settings
        self._reload = reload
        self._store: UploadStore | None = None
        self._server: Any = None
        self._uri: DataUri | None = None
        self._log = get_logger("control")

    @property
    def uri(self) -> DataUri | None:
        """The address that is bound; None before `bind`."""
        return self._uri

    async def bind(self) -> DataUri:
        """Bind the port, and serve what was uploaded earlier; no call is taken yet.

        Raises
        ------
        ConfigError
            If the port, the certificates or the directory of uploads cannot be used, or
            everybody would be let in from everywhere.
        MissingExtraError
            If gRPC's reflection is wanted and not installed.
        """
        settings, wanted = self._settings, self._settings.uri
        guarded = not isinstance(self._guard, OpenGuard)
        check_exposure(
            (),
            wanted,
            guarded=guarded,
            client_certificates=settings.tls_client_ca is not None,
            insecure=settings.insecure,
        )
        if guarded and in_the_clear((), wanted):
            self._log.warning("tokens travel unencrypted", control=wanted.address)
        try:
            if settings.writable is not None:
                self._store = await to_thread.run_sync(self._open_store)
            self._health = Health((FLIGHT_SERVICE,))
            self._server = self._new_server()
            port = self._bound(DEFAULT_PORT if wanted.port is None else wanted.port)
        except BaseException:
            await self.close()
            raise
        self._uri = wanted.replace(port=port, path="")
        return self._uri

    async def run(self, *, task_status: TaskStatus[DataUri] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until the daemon drains and the calls that run have ended, or until cancelled.

        While it drains, new calls are told UNAVAILABLE, and the health service NOT_SERVING.
        """
        if self._uri is None:
            await self.bind()
        assert self._uri is not None
        try:
            await self._server.start()
            task_status.started(self._uri)
            await self._daemon.draining.wait()
            self._health.drain()
            await self._reception.wait_idle()
            await self.close(_LAST_WORDS_SECONDS)
        finally:
            await self.close()

    async def close(self, grace: float | None = None) -> None:
        """End every call that runs, and let go of the port and the directory. Idempotent.

        Parameters
        ----------
        grace : float, optional
            How long calls may take to end by themselves, in seconds; no new one is taken.
        """
        server, self._server = self._server, None
        if server is not None:
            with anyio.CancelScope(shield=True):
                await server.stop(grace)
        if self._store is not None:
            self._store.close()

    def _new_server(self) -> Any:
        settings = self._settings
        informer = Informer(self._office, settings.advertise)
        running = RunningStreams()
        self._reception = Reception(self._daemon, self._guard)
        service = FlightService(
            informer,
            Sender(self._office, running),
            Receiver(self._store, settings.uploads),
            Greeter(self._guard, self._reception),
            Actions(self._office, informer, running, self._store, self._reload),
        )
        largest = _SMALL_MESSAGE if self._store is None else settings.message_bytes
        options = {**_CHANNEL, "grpc.max_receive_message_length": largest}
        server = grpc.aio.server(
            handlers=[service.handler(self._reception), self._health.handler()],
            options=list(options.items()),
            maximum_concurrent_rpcs=settings.calls,
        )
        if settings.reflection:
            _reflect(server)
        return server

    def _bound(self, port: int) -> int:
        settings = self._settings
        host = settings.uri.host or "::"
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if not settings.tls:
                return self._server.add_insecure_port(address)
            options = TlsServerOptions(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
            return self._server.add_secure_port(address, Certificates(options).credentials())
        except RuntimeError:
            raise ConfigError(
                f"control: cannot listen on {settings.uri.address}: the port is taken, or "
                "the address is not one of this machine"
            ) from None

    def _open_store(self) -> UploadStore:
        settings = self._settings
        assert settings.writable is not None
        quota = Quota(settings.writable_bytes, settings.upload_bytes)
        return UploadStore(settings.writable, self._daemon.catalog, quota)


def _reflect(server: Any) -> None:
    try:
        from grpc_reflection.v1alpha import reflection
    except ImportError:
        raise MissingExtraError("reflection needs the package grpcio-reflection") from None
    names = (FLIGHT_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
