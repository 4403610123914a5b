"""The daemon: it accepts connections, runs their sessions and drains them.

A process (`process`), a thread (`embedded`) or a test runs the same object.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from socket import socket
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus

from ..errors import MissingExtraError, install_hint
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.request import Request
from ..protocol.uri import DataUri
from ..transport.base import Channel, Listener
from ..transport.registry import find_transport
from .addresses import http_uri
from .auth.access_control import AccessControl
from .catalog.catalog import Catalog
from .catalog.dataset import Budget, Encoding
from .catalog.decoding_shares import DecodingShares
from .catalog.published import VersionWatcher
from .config import Configuration, Settings
from .context import ServerContext
from .listeners import Acceptor, bind_listeners, select_listener
from .logs import get_logger
from .metrics import CacheUses, DaemonMetrics, Labelled, Metrics, list_stats
from .reads import ReadsInProgress
from .refusals import RefusalLog
from .reload import Reloader
from .report import (
    MAIN,
    ProcessReport,
    StreamReport,
    call_in_time,
    has_free_descriptors,
    measure_process,
    responds,
)
from .session import MemoryReturn, Session, StallWatch, yield_to_writers
from .shares import StreamMemory, ThreadShares
from .shm.regions import SharedRegions
from .streams import ReadSlots, StreamRegistry
from .tracing import open_tracer
from .usage import Usage, measure_host_memory

if TYPE_CHECKING:
    from .control.plane import ControlPlane
    from .http.listener import HttpListener


def open_http_listener(settings: Settings) -> HttpListener | None:
    """Return the HTTP listener of a server, which serves already; None if it has none."""
    uri = http_uri(settings)
    if uri is None:
        return None
    try:
        from .http.listener import HttpListener
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("splitarrow"):
            raise
        raise MissingExtraError(
            f"http: the HTTP listener needs the package {error.name}, which is not installed; "
            f"run: {install_hint('http')}"
        ) from None
    return HttpListener(settings, uri)


_WORKER_THREADS = 16


class Daemon:
    """Serves a catalog over the listeners that its settings name.

    Call `bind`, then `run`. While it runs, `drain` and `cut` end it. It is the `Reporter` of a
    server with one process. The access control is built from the settings by default.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        limits: Limits = DEFAULT_LIMITS,
        access: AccessControl | None = None,
        configuration: Configuration | None = None,
        process: str = MAIN,
        usage: Usage | None = None,
    ) -> None:
        self.catalog = catalog
        self.process = process
        """The name of this process in metrics."""
        usage = Usage() if usage is None else usage
        nbytes = settings.parquet_decoding_bytes or measure_host_memory() // 2 // usage.processes
        self.decoding = DecodingShares(nbytes, self.lend_threads)
        """The memory in which readers decode row groups of Parquet files."""
        memory = StreamMemory(settings.stream_memory)
        budget = Budget.from_settings(settings, self.decoding, lambda: memory.batch_bytes)
        self._thread_shares = ThreadShares(_WORKER_THREADS, len(os.sched_getaffinity(0)))
        self.regions = SharedRegions(settings, usage.processes, budget)
        self.metrics = Metrics()
        self.metrics.add_collector(self._collect)
        self.daemon_metrics = DaemonMetrics(
            last_reload_successful=1, last_reload_success_timestamp_seconds=time.time()
        )
        self.streams = StreamRegistry(self.metrics, lambda: self.settings.principal_limit, usage)
        self.refusals = RefusalLog(self.metrics, catalog)
        self.access = AccessControl.from_settings(settings) if access is None else access
        self.control_uri: str | None = None
        """The URI of the control plane, once it is bound."""
        self.http_uri: str | None = None
        self.loop: asyncio.AbstractEventLoop
        """The event loop, once the daemon runs."""
        self.context = ServerContext(
            catalog=catalog,
            settings=settings,
            limits=limits,
            access=self.access,
            encoding=Encoding(settings.compression, settings.batch_rows, budget=budget),
            regions=self.regions,
            metrics=self.metrics,
            daemon_metrics=self.daemon_metrics,
            streams=self.streams,
            refusals=self.refusals,
            reads=ReadsInProgress(),
            leased_by=self._leased_by,
            read_slots=ReadSlots(
                max(1, settings.filter_threads // usage.processes), self._thread_shares
            ),
            memory=memory,
            usage=usage,
            reporter=self,
            tracer=open_tracer(settings, process),
        )
        self.reloader = Reloader(self.context, configuration)
        self._listeners: list[Listener] = []
        self._leaves_shared = False
        self._sessions: set[Session] = set()
        self._acceptor: Acceptor | None = None
        self._log = get_logger("daemon")

    @property
    def settings(self) -> Settings:
        """The settings. A reload replaces them."""
        return self.context.settings

    @property
    def uris(self) -> list[DataUri]:
        """The URIs that are bound."""
        return self.context.uris

    def bind(
        self, sockets: Mapping[str, socket] | None = None, *, leaves_shared: bool = False
    ) -> None:
        """Bind the listeners for readers; see `bind_listeners` for parameters and errors."""
        traced = self.context.tracer is not None
        self._listeners = bind_listeners(
            self.settings, self.access, self.regions, sockets, traced=traced
        )
        self.context.uris = [listener.uri for listener in self._listeners]
        self._leaves_shared = leaves_shared

    async def run(
        self, *, task_status: TaskStatus[list[DataUri]] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `drain` or `cut` is called, and return when the last stream has ended."""
        self.loop = self.context.loop = asyncio.get_running_loop()
        self.context.draining = anyio.Event()
        self.context.threads = anyio.CapacityLimiter(_WORKER_THREADS)
        seconds, versions = self.settings.poll_seconds, self.settings.keep_versions
        watcher = VersionWatcher(self.catalog.datasets, seconds, versions)
        try:
            control = await self._bind_control()
            async with anyio.create_task_group() as background:
                background.start_soon(self.regions.run)
                background.start_soon(watcher.run)
                background.start_soon(yield_to_writers, self._sessions)
                background.start_soon(StallWatch(self.context, self._sessions).run)
                background.start_soon(MemoryReturn(self.streams).run)
                await self._serve(control, task_status)
                background.cancel_scope.cancel()
        finally:
            self._close_listeners()
            self.access.close()
            self.regions.close()
            await self._close_tracer()
        if self.metrics.streams:
            self._log.warning("streams cut", streams=self.metrics.streams)

    async def _bind_control(self) -> ControlPlane | None:
        if self.settings.control is None:
            return None
        from .control.plane import ControlPlane  # protobuf takes time to import

        control = ControlPlane(self.context, self.reloader.reload)
        self.control_uri = str(await control.bind())
        return control

    async def _serve(
        self, control: ControlPlane | None, task_status: TaskStatus[list[DataUri]]
    ) -> None:
        """Accept connections until the daemon drains. Then wait for the streams, within bounds."""
        async with anyio.create_task_group() as sessions:
            self.context.sessions = sessions
            self._scope = sessions.cancel_scope
            if control is not None:
                await sessions.start(control.run)
            async with anyio.create_task_group() as acceptors:
                listeners = self._list_accepting()
                self._acceptor = Acceptor(listeners, self.context, self._run_session)
                acceptors.start_soon(self._acceptor.run, sessions)
                task_status.started(self.uris)
                await self.context.draining.wait()
                sessions.cancel_scope.deadline = anyio.current_time() + self.settings.drain_seconds
                await self.context.reads.wait_idle()
                for session in list(self._sessions):
                    session.end_unless_streaming()
                acceptors.cancel_scope.cancel()
            self._close_listeners()

    async def _close_tracer(self) -> None:
        """Export the last spans."""
        if self.context.tracer is not None:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self.context.tracer.close)

    def _list_accepting(self) -> list[Listener]:
        """Return the listeners whose connections this process accepts."""
        return [
            listener
            for listener in self._listeners
            if not self._leaves_shared or not find_transport(listener.uri).traits.shares_socket
        ]

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _run_session(self, channel: Channel, listener: Listener, admitted: bool) -> None:
        metrics = self.metrics
        metrics.connections += 1
        metrics.connections_total += 1
        if not admitted:
            self.refusals.record_connection(listener.uri.scheme)
        session = Session(channel, listener, self.context, admitted=admitted)
        self._sessions.add(session)
        try:
            await session.run()
        except Exception:
            get_logger("session").exception("session failed", peer=channel.peer)
        finally:
            metrics.connections -= 1
            self._sessions.discard(session)

    def drain(self) -> None:
        """Refuse new reads. `run` returns when those in progress have ended."""
        self.context.draining.set()

    def cut(self) -> None:
        """End every stream now. Readers see broken connections."""
        self.context.draining.set()
        self._scope.cancel()

    def lend_threads(self, change: int) -> None:
        """Change the number of worker threads. Any thread may call this."""

        def apply() -> None:
            self.context.threads.total_tokens += change
            self._thread_shares.lend(change)

        self.loop.call_soon_threadsafe(apply)

    def _leased_by(self, user: int | None) -> int:
        return sum(s.lease_table.held_bytes for s in list(self._sessions) if s.user == user)

    # What a `Reporter` does. The event loop runs on another thread.

    @property
    def draining(self) -> bool:
        """Whether the daemon refuses new reads. It has to run, or have run."""
        return self.context.draining.is_set()

    def responds(self) -> bool:
        """Return whether the event loop runs."""
        return responds(self.loop)

    def reports(self, *, streams: bool = False) -> list[ProcessReport]:
        """Return the report of this process."""
        return [self.report(streams=streams)]

    def cancel(self, process: str, number: int, owner: str | None) -> bool:
        """Cancel a stream, and return whether it exists."""
        return process == self.process and self.cancel_number(number, owner)

    def cancel_number(self, number: int, owner: str | None) -> bool:
        """Cancel a stream, and return whether it exists."""
        return bool(call_in_time(self.loop, lambda: self.streams.cancel(number, owner)))

    def cancel_ticket(self, ticket: bytes, principal: str) -> bool:
        """Cancel a principal's streams of one signed ticket, and return whether there are any."""
        return bool(call_in_time(self.loop, lambda: self.streams.cancel_ticket(ticket, principal)))

    def report(self, *, streams: bool) -> ProcessReport:
        """Return what this process does now. Any thread may call this."""
        acceptor = self._acceptor
        report = ProcessReport(
            self.process,
            list(self.metrics.samples()),
            serves=acceptor is not None and not self._leaves_shared,
            has_room=acceptor is not None and acceptor.has_room and has_free_descriptors(),
        )
        if streams:
            report.streams = [StreamReport.of(stream, self.process) for stream in self.streams]
            report.refusals = self.refusals.recent()
        return report

    def stats(self) -> dict[str, int]:
        """Return current values and totals since the start, by name. Any thread may call this."""
        return list_stats(self.metrics.samples())

    def _collect(self) -> dict[str, float | Labelled]:
        """Return the values that sessions keep, for the metrics."""
        sessions = list(self._sessions)
        tables = [session.lease_table for session in sessions]
        # Readers change the tables meanwhile: each is read once.
        ages = [table.oldest for table in tables]
        oldest = min((age for age in ages if age is not None), default=None)
        return {
            "leases": sum(table.held for table in tables),
            "leased_bytes": sum(table.held_bytes for table in tables),
            "lease_seconds": 0 if oldest is None else int(time.monotonic() - oldest),
            "bad_frees": sum(table.bad_frees for table in tables),
            "shared_bytes": self.regions.store.nbytes + self.regions.vortex_store.nbytes,
            "bytes_sent": sum(session.bytes_sent for session in sessions),
            **measure_process(self.process),
            **self._count_cache_uses(),
            **self._measure_object_cache(),
            "dataset_version": {
                (self.streams.label_of(name),): number
                for name, number in self.catalog.list_versions()
            },
        }

    def _count_cache_uses(self) -> dict[str, Labelled]:
        objects = self.catalog.cache
        uses = {
            ("objects",): CacheUses() if objects is None else objects.uses,
            ("shared_memory",): self.regions.store.uses,
            ("vortex",): self.regions.vortex_store.uses,
        }
        return {
            "cache_hits": {cache: counted.hits for cache, counted in uses.items()},
            "cache_misses": {cache: counted.misses for cache, counted in uses.items()},
        }

    def _measure_object_cache(self) -> dict[str, Labelled]:
        cache = self.catalog.cache
        if cache is None:
            return {}
        values = {
            "cache_bytes": cache.measure(),
            "cache_limit_bytes": cache.max_bytes,
            "cache_evictions": cache.uses.evictions,
            "cache_rejections": cache.uses.rejections,
            "cache_waiting_readers": cache.uses.waiting,
        }
        return {name: {("objects",): value} for name, value in values.items()}

    def uri(self, name: str, scheme: str | None = None, stream: str | None = None) -> str:
        """Return the URI of a dataset, with a ticket; see `select_listener`."""
        self.catalog.lookup(name)
        ticket = self.access.issue_ticket(Request(name))
        return str(select_listener(self.uris, scheme, stream).replace(ticket=ticket))

    def printable_uri(self, name: str, scheme: str, stream: str | None = None) -> str:
        """Return the URI of a dataset for people and files; see `uri`.

        It has no ticket if tickets are signed. Such a ticket is a secret, and good once only.
        """
        self.catalog.lookup(name)
        uri = select_listener(self.uris, scheme, stream)
        if not self.access.signs_tickets:
            uri = uri.replace(ticket=Request(name).ticket())
        return str(uri)

    def ready(self, pid: int) -> dict[str, Any]:
        """Return the contents of the ready file: the process, its URIs and its datasets."""
        schemes = list(dict.fromkeys(uri.scheme for uri in self.uris))
        return {
            "pid": pid,
            "control": self.control_uri,
            "http": self.http_uri,
            "listen": [str(uri) for uri in self.uris],
            "datasets": {
                name: {scheme: self.printable_uri(name, scheme) for scheme in schemes}
                for name in self.catalog.names()
            },
        }
