"""The daemon: listeners, sessions, draining. The same object serves a process and a notebook."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from socket import socket
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from ..errors import ConfigError, UsageError
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.request import Request
from ..protocol.uri import DataUri, StreamKind
from ..transport.base import Channel, Listener
from ..transport.certificates import TlsServerOptions
from ..transport.registry import transport_for
from ..transport.tls import TlsTransport
from .auth.rights import make_rights
from .auth.tickets import TicketOffice
from .catalog.base import Dataset, Encoding
from .catalog.catalog import Catalog
from .catalog.watching import Watcher
from .config import DEFAULT_LISTEN, ServerSettings, listener_uri
from .logs import get_logger
from .metrics import Counters
from .session import Session
from .shared.sharing import Sharing

if TYPE_CHECKING:
    from .control.plane import ControlPlane

_MAX_REQUEST_FRAME = 1 << 20
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WORKER_THREADS = 16


class Daemon:
    """Serves a catalog over the listeners that its settings name.

    Parameters
    ----------
    catalog : Catalog
        What to serve. It may change while the daemon runs.
    settings : ServerSettings
        How.
    limits : Limits
        Bounds on what readers may send.
    office : TicketOffice, optional
        Makes and checks tickets, where several processes share one.

    Attributes
    ----------
    uris : list of DataUri
        The addresses that are bound.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: ServerSettings,
        limits: Limits = DEFAULT_LIMITS,
        office: TicketOffice | None = None,
    ) -> None:
        self.catalog = catalog
        self.settings = settings
        self.limits = limits
        self.encoding = Encoding(settings.compression, settings.batch_rows)
        self.sharing = Sharing.of(settings)
        self.handshake_seconds = settings.handshake_seconds
        self.idle_seconds = settings.idle_seconds
        self.counters = Counters()
        self.uris: list[DataUri] = []
        self.rights = make_rights(settings, office)
        self.control_uri: str | None = None
        self._listeners: list[Listener] = []
        self._sessions: set[Session] = set()
        self._log = get_logger("daemon")

    def admit(self, ticket: bytes, kind: StreamKind) -> Request:
        """Return what a reader may have for a ticket; see `Rights.admit`."""
        return self.rights.admit(ticket, kind)

    def lookup(self, name: str) -> Dataset:
        """Return a dataset of the catalog.

        Raises
        ------
        NotFoundError
            If there is none of that name.
        """
        return self.catalog.lookup(name)

    def leased_by(self, user: int | None) -> int:
        """Return how many bytes a user holds leases on, over all its connections."""
        return sum(s.ledger.held_bytes for s in list(self._sessions) if s.user == user)

    async def run(
        self, *, task_status: TaskStatus[list[DataUri]] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve what is bound until `drain` or `cut`; return when the last stream has ended."""
        self.draining = anyio.Event()
        self.threads = anyio.CapacityLimiter(_WORKER_THREADS)
        listeners = self._listeners
        watcher = Watcher(self.catalog, self.settings.poll_seconds, self.settings.keep_versions)
        try:
            control = await self._bind_control()
            async with anyio.create_task_group() as background:
                background.start_soon(self.sharing.guards.run)
                background.start_soon(self.sharing.mappings.run)
                background.start_soon(watcher.run)
                async with anyio.create_task_group() as sessions:
                    self._scope = sessions.cancel_scope
                    if control is not None:
                        await sessions.start(control.run)
                    async with anyio.create_task_group() as accepting:
                        for listener in listeners:
                            accepting.start_soon(self._accept, listener, sessions)
                        task_status.started(self.uris)
                        await self.draining.wait()
                        accepting.cancel_scope.cancel()
                    for listener in listeners:
                        listener.close()
                    sessions.cancel_scope.deadline = (
                        anyio.current_time() + self.settings.drain_seconds
                    )
                background.cancel_scope.cancel()
        finally:
            for listener in listeners:
                listener.close()
            self.rights.close()
            self.sharing.store.close()
        if self.counters.streams:
            self._log.warning("streams cut", streams=self.counters.streams)

    async def _bind_control(self) -> ControlPlane | None:
        settings = self.settings
        if settings.control is None:
            return None
        from .control.plane import ControlPlane
        from .control.settings import ControlSettings

        chosen = ControlSettings(
            control=settings.control,
            advertise=settings.advertise,
            writable=settings.writable,
            writable_bytes=settings.writable_bytes,
            upload_bytes=settings.upload_bytes,
            tls_cert=settings.tls_cert,
            tls_key=settings.tls_key,
            tls_client_ca=settings.tls_client_ca,
            reflection=settings.reflection,
            insecure=settings.insecure,
        )
        guard, office = self.rights.guard, self.rights.office
        control = ControlPlane(self, guard, office, chosen, self.reload)
        self.control_uri = str(await control.bind())
        return control

    def bind(self, sockets: Mapping[str, socket] | None = None) -> None:
        """Bind the addresses of the settings: all of them or, with an error, none.

        Parameters
        ----------
        sockets : mapping, optional
            Sockets that are bound already, for several processes to share, by the address
            that they are bound for.

        Raises
        ------
        ConfigError
            If an address cannot be bound.
        """
        limits = Limits(body_bytes=_MAX_REQUEST_FRAME, metadata_bytes=_MAX_REQUEST_FRAME)
        listeners: list[Listener] = []
        try:
            uris = [listener_uri(text) for text in self.settings.listen]
            self.rights.check_exposure(
                uris,
                None,
                client_certificates=self.settings.tls_client_ca is not None,
                insecure=self.settings.insecure,
            )
            for text, uri in zip(self.settings.listen, uris, strict=True):
                sock = None if sockets is None else sockets[text]
                try:
                    listeners.append(self._listener(uri, limits, sock))
                except ConfigError as error:
                    if uri.scheme != "shm" or self.settings.listen != DEFAULT_LISTEN:
                        raise
                    self._log.warning("no shared memory for readers", reason=error.message)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self._listeners = listeners
        self.uris = [listener.uri for listener in listeners]

    def _listener(self, uri: DataUri, limits: Limits, sock: socket | None) -> Listener:
        settings = self.settings
        transport: Any = transport_for(uri)
        if uri.scheme == "shm":
            from ..transport.shm import ShmTransport

            transport = ShmTransport(frozenset(settings.shm_users))
        if uri.scheme == "ucx":
            from ..transport.ucx import UcxTransport

            transport = UcxTransport(self.sharing.mappings.region)
        if uri.scheme == "tcp+tls" and settings.tls_cert is not None:
            own = TlsServerOptions(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
            transport = TlsTransport(server_options=own)
        if sock is not None:
            return transport.listen(uri, limits, sock)
        return transport.listen(uri, limits)

    def reload(self) -> None:
        """Open the datasets of the settings anew, such as directories that have new shards.

        Raises
        ------
        DatasetError
            If one cannot be read; it, and those after it, stay as they were.
        """
        for name, source in self.settings.datasets.items():
            self.catalog.replace(name, source)

    def drain(self) -> None:
        """Take no new streams; return from `run` when those that run have ended."""
        self.draining.set()

    def cut(self) -> None:
        """End every stream now; the readers see broken connections."""
        self.draining.set()
        self._scope.cancel()

    def stats(self) -> dict[str, int]:
        """Return what is counted: what is open or held now, and totals since the start."""
        counters = self.counters
        sessions = list(self._sessions)  # whatever thread asks
        return {
            "connections": counters.connections,
            "connections_total": counters.connections_total,
            "streams": counters.streams,
            "streams_total": counters.streams_total,
            "leases": sum(session.ledger.held for session in sessions),
            "leased_bytes": sum(session.ledger.held_bytes for session in sessions),
            "lease_seconds": self._oldest_lease(),
            "bad_frees": counters.bad_frees + sum(s.ledger.bad_frees for s in sessions),
            "shared_bytes": self.sharing.store.nbytes,
            "bytes_sent": counters.bytes_sent + sum(session.bytes_sent for session in sessions),
            "bytes_lent": counters.bytes_lent,
            "messages": counters.messages,
            "rows": counters.rows,
            "failures": counters.failures,
            "protocol_errors": counters.protocol_errors,
            "refused": counters.refused,
        }

    def _oldest_lease(self) -> int:
        """Return how long the lease that is held longest has been held, in whole seconds."""
        oldest = (session.ledger.oldest for session in list(self._sessions))
        since = [moment for moment in oldest if moment is not None]
        return int(time.monotonic() - min(since)) if since else 0

    def uri(self, name: str, scheme: str | None = None, stream: str | None = None) -> str:
        """Return the complete URI of a dataset, ticket included.

        Parameters
        ----------
        name : str
            The dataset.
        scheme : str, optional
            The transport; None takes the first listener that fits.
        stream : {"both", "metadata", "body"}, optional
            Which streams the listener carries; None prefers both.

        Raises
        ------
        NotFoundError
            If there is no such dataset.
        UsageError
            If no listener fits.
        """
        found = self._listening(name, scheme, stream)
        return str(found.replace(ticket=self.rights.ticket(Request(name))))

    def address(self, name: str, scheme: str | None = None, stream: str | None = None) -> str:
        """Return the URI of a dataset for people and files; see `uri`.

        It has no ticket where only the control plane gives those: one would be used up by the
        first reader, and be a secret until then.
        """
        found = self._listening(name, scheme, stream)
        return str(found if self.rights.signed else found.replace(ticket=Request(name).ticket()))

    def _listening(self, name: str, scheme: str | None, stream: str | None) -> DataUri:
        self.catalog.lookup(name)
        fitting = [
            uri
            for uri in self.uris
            if scheme in (None, uri.scheme) and stream in (None, uri.stream.value)
        ]
        if not fitting:
            wanted = " ".join(part for part in (scheme, stream and f"stream={stream}") if part)
            raise UsageError(f"the server has no listener for {wanted or 'anything'}")
        fitting.sort(key=lambda uri: uri.stream is not StreamKind.BOTH)
        return _reachable(fitting[0])

    def ready(self, pid: int) -> dict[str, Any]:
        """Return what the ready file says: the process, its addresses and its datasets."""
        schemes = list(dict.fromkeys(uri.scheme for uri in self.uris))
        return {
            "pid": pid,
            "control": self.control_uri,
            "listen": [str(uri) for uri in self.uris],
            "datasets": {
                name: {scheme: self.address(name, scheme) for scheme in schemes}
                for name in self.catalog.names()
            },
        }

    async def _accept(self, listener: Listener, sessions: TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener.fileno())
            try:
                while (channel := listener.accept()) is not None:
                    sessions.start_soon(self._serve, channel, listener.uri)
                    await checkpoint()
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                self._log.error("cannot accept a connection", reason=error.strerror)
                await anyio.sleep(0.1)

    async def _serve(self, channel: Channel, uri: DataUri) -> None:
        counters = self.counters
        admitted = counters.connections < self.settings.max_connections
        counters.connections += 1
        counters.connections_total += 1
        counters.refused += not admitted
        session = Session(channel, uri, self, admitted=admitted)
        self._sessions.add(session)
        try:
            await session.run()
        except Exception:
            self._log.exception("session failed", peer=channel.peer)
        finally:
            counters.connections -= 1
            self._sessions.discard(session)


def _reachable(uri: DataUri) -> DataUri:
    """Return the address that a reader uses for a listener bound to every interface."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return uri.replace(host=loopback.get(uri.host, uri.host))
