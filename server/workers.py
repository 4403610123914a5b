"""Worker processes: several daemons that accept connections on the same sockets."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from socket import socket

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from ..errors import ConfigError, SplitArrowError
from ..pandas_import import prevent_pandas_import
from ..transport.registry import find_transport
from ..transport.tcp import bind_socket
from .auth.access_control import AccessControl
from .auth.tickets import TicketSigner
from .catalog.catalog import open_catalog
from .config import ServerSettings
from .config.uris import listener_uri
from .daemon import Daemon
from .daemon_reporter import responds
from .logs import configure_logs, get_logger
from .metrics import MetricType, Sample, merge_samples
from .report import ProcessReport
from .signals import run_until_signalled
from .worker_link import READY, CancelRequest, ReportRequest, Request, WorkerLink

_RESTART_SECONDS = 1.0
"""The time between the death of a worker and the start of the next one."""


def bind_shared_sockets(settings: ServerSettings) -> dict[str, socket]:
    """Bind a socket for each listener, for all workers to accept connections on.

    Returns
    -------
    dict
        The sockets, by the URI in the settings.

    Raises
    ------
    ConfigError
        If an address cannot be bound, or a transport cannot share a socket.
    """
    for text in settings.listen:
        if not find_transport(listener_uri(text)).traits.shares_socket:
            raise ConfigError(f"{text}: several workers can share tcp and tcp+tls listeners only")
    sockets: dict[str, socket] = {}
    try:
        for text in settings.listen:
            sockets[text] = bind_socket(listener_uri(text))
    except BaseException:
        for sock in sockets.values():
            sock.close()
        raise
    return sockets


class WorkerPool:
    """Keeps a number of worker processes running. It starts a new one for each that dies.

    Parameters
    ----------
    settings : ServerSettings
        The settings of the server.
    sockets : mapping
        The sockets that the workers share; see `bind_shared_sockets`.
    signer : TicketSigner or None
        Signs tickets, and remembers for all workers which ones were used.
    main : Daemon
        The daemon of this process, which accepts no connections.

    Attributes
    ----------
    loop : AbstractEventLoop
        The event loop. It exists once the pool runs.
    """

    def __init__(
        self,
        settings: ServerSettings,
        sockets: Mapping[str, socket],
        signer: TicketSigner | None,
        main: Daemon,
    ) -> None:
        self._settings = settings
        self._sockets = dict(sockets)
        self._signer = signer
        self._workers: dict[SpawnProcess, WorkerLink] = {}
        self._draining = False
        self._main = main
        self._ended: list[Sample] = []
        self._last = dict[str, ProcessReport]()
        self._log = get_logger("daemon")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the workers. Return when they have ended after `drain`."""
        self.loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as keepers:
            for number in range(1, self._settings.workers + 1):
                await keepers.start(self._keep_worker, f"worker-{number}")
            task_status.started()

    def reload(self, settings: ServerSettings) -> None:
        """Let every worker apply changed settings, also those that start later."""
        self._settings = settings
        for link in list(self._workers.values()):
            link.apply(settings)

    @property
    def draining(self) -> bool:
        """Whether the workers refuse new reads."""
        return self._draining

    def responds(self) -> bool:
        """Return whether the event loop of this process runs."""
        return responds(self.loop)

    def reports(self, *, streams: bool = False) -> list[ProcessReport]:
        """Return the reports of this process and of the workers that respond; see `Reporter`.

        What workers that have ended counted is in the report of this process, so that totals never
        decrease.
        """
        main = self._main.report(streams=streams)
        request = ReportRequest(streams)
        found = [main]
        for link in list(self._workers.values()):
            report: ProcessReport | None = link.ask(request)
            if report is not None:
                self._last[link.name] = report
                found.append(report)
        main.samples = merge_samples([main.samples, self._ended])
        return found

    def cancel(self, process: str, number: int, owner: str | None) -> bool:
        """Cancel a stream of a worker, and return whether it exists."""
        links = [link for link in list(self._workers.values()) if link.name == process]
        return any(link.ask(CancelRequest(number, owner)) for link in links)

    def drain(self) -> None:
        """Let every worker drain."""
        self._draining = True
        self._terminate()

    def cut(self) -> None:
        """Let every worker cut its streams: a worker does so at its second SIGTERM."""
        self._terminate()

    def _terminate(self) -> None:
        for worker in self._workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, signal.SIGTERM)

    async def _keep_worker(self, name: str, *, task_status: TaskStatus[None]) -> None:
        context = multiprocessing.get_context("spawn")
        was_ready = False
        while not self._draining:
            ours, theirs = context.Pipe()
            worker = context.Process(
                target=_run_worker,
                args=(name, self._settings, self._sockets, self._signer, theirs),
                name="splitarrow-worker",
                daemon=True,
            )
            await to_thread.run_sync(worker.start)
            theirs.close()
            self._workers[worker] = WorkerLink(name, ours)
            try:
                await anyio.wait_readable(ours.fileno())  # it is ready, or has died
                if not was_ready:
                    was_ready = True
                    task_status.started()
                await anyio.wait_readable(worker.sentinel)
                worker.join()
            finally:
                del self._workers[worker]
                ours.close()
                self._keep_totals(name)
            if not self._draining:
                self._main.daemon_metrics.worker_restarts += 1
                status = worker.exitcode
                self._log.error("worker died; starting another", pid=worker.pid, status=status)
                await anyio.sleep(_RESTART_SECONDS)
            worker.close()

    def _keep_totals(self, name: str) -> None:
        """Keep the totals of a worker that has ended, as far as it reported them."""
        report = self._last.pop(name, None)
        if report is not None:
            totals = [sample for sample in report.samples if _is_total(sample)]
            self._ended = merge_samples([self._ended, totals])


def _is_total(sample: Sample) -> bool:
    """Return whether a value counts for the daemon, even if its process has ended."""
    metric = sample.metric
    return metric.type is not MetricType.GAUGE and "process" not in metric.labels


def _run_worker(
    name: str,
    settings: ServerSettings,
    sockets: Mapping[str, socket],
    signer: TicketSigner | None,
    parent: Connection,
) -> None:
    """Run a daemon in this worker process.

    Parameters
    ----------
    name : str
        The name of the process in metrics.
    settings : ServerSettings
        The settings of the server.
    sockets : mapping
        The sockets that the workers share.
    signer : TicketSigner or None
        See `WorkerPool`.
    parent : Connection
        The pipe to the parent. The worker writes `READY` to it once it is ready, applies the
        settings and responds to the requests that it receives from it, and drains when the parent
        is gone.
    """
    # A terminal sends SIGINT and SIGHUP to all processes of the group. The parent handles them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    configure_logs(settings.log_level, settings.log_format)

    async def obey_parent() -> None:
        while True:
            await anyio.wait_readable(parent.fileno())
            try:
                message: ServerSettings | Request = parent.recv()
                if not isinstance(message, ServerSettings):
                    response = await _respond(daemon, message)
                    await to_thread.run_sync(parent.send, response)
                    continue
            except (EOFError, OSError):
                daemon.drain()
                return
            try:
                await to_thread.run_sync(daemon.reloader.apply, message)
            except SplitArrowError as error:  # a file has changed since the parent checked it
                get_logger("daemon").error("worker cannot reload", reason=str(error))

    def report_ready(tasks: TaskGroup) -> None:
        parent.send(READY)
        tasks.start_soon(obey_parent)

    prevent_pandas_import()
    with open_catalog(settings.datasets, settings) as catalog:
        access = AccessControl.from_settings(settings, signer)
        daemon = Daemon(catalog, settings, access=access, process=name)
        daemon.bind(sockets)
        anyio.run(run_until_signalled, daemon, [signal.SIGTERM], report_ready)


async def _respond(daemon: Daemon, request: Request) -> ProcessReport | bool:
    """Return the response of a worker to a request."""
    if isinstance(request, CancelRequest):
        return daemon.streams.cancel(request.number, request.owner)
    return await to_thread.run_sync(lambda: daemon.report(streams=request.streams))
