"""Worker processes: several daemons that accept connections on the same sockets.

`WorkerPool` starts and restarts them. `Supervisor` runs, drains and ends them together with the
daemon of the parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnProcess
from socket import socket
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from ..errors import ConfigError, remote_error
from ..transport.registry import find_transport
from ..transport.tcp import bind_socket
from .config import Settings
from .config.settings import listener_uri
from .daemon import Daemon
from .logs import get_logger
from .metrics import MetricType, Sample, merge_samples
from .report import MAIN, ProcessReport
from .usage import UsageTable
from .worker_process import (
    RESPONSE_SECONDS,
    CancelRequest,
    CancelTicketRequest,
    CutRequest,
    DatasetsRequest,
    FinishRequest,
    ReadsRequest,
    ReloadRequest,
    ReportRequest,
    Request,
    WorkerLink,
    WorkerStart,
    name_worker,
    run_worker,
    settings_of_worker,
)

_RESTART_SECONDS = 1.0
"""The time between the death of a worker and the start of the next one."""
_RELOAD_SECONDS = 30.0
"""The time in which a worker opens all datasets again."""
_DATASET_SECONDS = 10.0
"""The time in which a worker opens an uploaded dataset unless it hangs."""


def bind_shared_sockets(settings: Settings) -> dict[str, socket]:
    """Bind a socket for each listener that processes can share, for all workers to accept on."""
    shared = [
        text for text in settings.listen if find_transport(listener_uri(text)).traits.shares_socket
    ]
    if not shared:
        raise ConfigError(
            f"workers: {settings.workers} workers have no listener to share; listen on a tcp:// or "
            "tcp+tls:// address as well, or set workers to 1"
        )
    sockets: dict[str, socket] = {}
    try:
        for text in shared:
            sockets[text] = bind_socket(listener_uri(text))
    except BaseException:
        for sock in sockets.values():
            sock.close()
        raise
    return sockets


class WorkerPool:
    """Keeps a number of worker processes running. It starts a new one for each that dies.

    The daemon of this process has the control plane, the uploads, and the listeners that processes
    cannot share. The pool makes the changes of its catalog at the workers too.
    """

    def __init__(self, daemon: Daemon, sockets: Mapping[str, socket], usage: UsageTable) -> None:
        self._daemon = daemon
        self._sockets = dict(sockets)
        self._usage = usage
        self._settings = settings_of_worker(daemon.settings, tuple(sockets))
        self._workers: dict[SpawnProcess, WorkerLink] = {}
        self._changes = threading.Lock()
        """Held while the settings or datasets of the workers change, and while one starts."""
        self._new_datasets: dict[str, str] = {}
        self._draining = False
        self.has_ended = False
        """Whether the server drains and no worker runs any more."""
        self._ended: list[Sample] = []
        self._last = dict[str, ProcessReport]()
        self._log = get_logger("daemon")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the workers. Return when they have ended after `drain`."""
        async with anyio.create_task_group() as background:
            async with anyio.create_task_group() as keepers:
                for number in range(1, self._settings.workers + 1):
                    await keepers.start(self._keep_worker, number, background)
                task_status.started()
            background.cancel_scope.cancel()
        self.has_ended = True

    # Changes

    def reload(self, settings: Settings) -> None:
        """Let every worker apply changed settings, also those that start later.

        A worker that does not respond in time is replaced.

        Raises `RemoteError` with the code UNAVAILABLE if a worker refuses. None applies them then.
        """
        with self._changes:
            changed = settings_of_worker(settings, self._settings.listen)
            reason = self._change_all(ReloadRequest(changed), _RELOAD_SECONDS)
            if reason:
                raise remote_error("UNAVAILABLE", f"a worker cannot reload: {reason}")
            self._settings = changed

    def replicate(self, sources: Mapping[str, Any], removed: Sequence[str]) -> None:
        """Change the datasets of every worker, also of those that start later.

        A worker that does not respond in time is replaced.

        Raises `RemoteError` with the code UNAVAILABLE if a worker cannot serve a dataset. All then
        serve what they served before.
        """
        paths = {name: os.fspath(source) for name, source in sources.items()}
        with self._changes:
            reason = self._change_all(DatasetsRequest(paths, tuple(removed)), _DATASET_SECONDS)
            if reason:
                reason = f"a worker cannot serve the dataset: {reason}"
                raise remote_error("UNAVAILABLE", reason, stream=next(iter(paths), None))
            self._new_datasets = paths

    def _change_all(self, request: ReloadRequest | DatasetsRequest, seconds: float) -> str:
        """Let all workers make a change, or none; return the reason of one that refuses.

        No worker starts meanwhile, because the caller holds the lock. One that does not respond in
        time is killed, and its successor starts with what is in force then.
        """
        links = list(self._workers.values())
        responses: list[str | None] = _ask_all(links, request, seconds)
        reason = next(filter(None, responses), "")
        asked = [link for link, found in zip(links, responses, strict=True) if found is not None]
        finished = _ask_all(asked, FinishRequest(applies=not reason), seconds)
        done = [link for link, found in zip(asked, finished, strict=True) if found is not None]
        for worker, link in list(self._workers.items()):
            if link not in done and worker.is_alive():
                self._log.error("worker does not respond; killing it", pid=worker.pid)
                self._kill(worker, signal.SIGKILL)
        return reason

    def _list_uploads(self) -> dict[str, str]:
        """Return the datasets that workers serve beside those of the settings, with their paths."""
        catalog = self._daemon.catalog
        found = {name: catalog.location(name) for name in catalog.names()}
        found.update(self._new_datasets)
        configured = self._settings.datasets
        return {
            name: path
            for name, path in found.items()
            if path is not None and name not in configured
        }

    # Reports

    @property
    def draining(self) -> bool:
        """Whether the server refuses new reads."""
        return self._draining

    def responds(self) -> bool:
        """Return whether the event loop of this process runs."""
        return self._daemon.responds()

    def reports(self, *, streams: bool = False) -> list[ProcessReport]:
        """Return the reports of this process and of the workers that respond; see `Reporter`.

        What workers that have ended counted is in the report of this process, so that totals never
        decrease.
        """
        links = list(self._workers.values())
        main = self._daemon.report(streams=streams)
        responses: list[ProcessReport | None] = _ask_all(links, ReportRequest(streams))
        found = [report for report in responses if report is not None]
        for report in found:
            self._last[report.process] = report
        main.samples = merge_samples([main.samples, self._ended])
        return [main, *found]

    def cancel(self, process: str, number: int, owner: str | None) -> bool:
        """Cancel a stream of a process, and return whether it exists."""
        links = [link for link in list(self._workers.values()) if link.name == process]
        return self._daemon.cancel(process, number, owner) or any(
            _ask_all(links, CancelRequest(number, owner))
        )

    def cancel_number(self, number: int, owner: str | None) -> bool:
        """Cancel a stream of any process, and return whether it exists."""
        links = list(self._workers.values())
        return self._daemon.cancel_number(number, owner) or any(
            _ask_all(links, CancelRequest(number, owner))
        )

    def cancel_ticket(self, ticket: bytes, principal: str) -> bool:
        """Cancel a principal's streams of one signed ticket, and return whether there are any."""
        links = list(self._workers.values())
        found = _ask_all(links, CancelTicketRequest(ticket, principal))
        return self._daemon.cancel_ticket(ticket, principal) or any(found)

    # The end

    def find_reads(self) -> dict[str, frozenset[str]]:
        """Return the datasets of which parts are being read, by the name of the worker."""
        return self._exchange({}, drains=False)

    def drain(self, elsewhere: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        """Let every worker drain, or continue to do so; see `find_reads`."""
        if not self._draining:
            self._draining = True
            for worker, link in list(self._workers.items()):
                if not link.is_ready:
                    self._kill(worker, signal.SIGTERM)
        return self._exchange(elsewhere, drains=True)

    def cut(self) -> None:
        """Let every worker cut its streams."""
        _ask_all(list(self._workers.values()), CutRequest())

    def kill(self) -> None:
        """Kill the workers that have not ended."""
        for worker in list(self._workers):
            if worker.is_alive():
                self._log.error("worker does not end; killing it", pid=worker.pid)
                self._kill(worker, signal.SIGKILL)

    def _exchange(
        self, elsewhere: Mapping[str, frozenset[str]], *, drains: bool
    ) -> dict[str, frozenset[str]]:
        links = list(self._workers.values())

        def ask(link: WorkerLink) -> frozenset[str] | None:
            others = (names for process, names in elsewhere.items() if process != link.name)
            return link.ask(ReadsRequest(frozenset[str]().union(*others), drains))

        if not links:
            return {}
        with ThreadPoolExecutor(len(links)) as threads:
            found = zip(links, threads.map(ask, links), strict=True)
            return {link.name: names for link, names in found if names is not None}

    @staticmethod
    def _kill(worker: SpawnProcess, number: signal.Signals) -> None:
        if worker.pid is not None and worker.is_alive():
            os.kill(worker.pid, number)

    # Processes

    async def _keep_worker(
        self, number: int, background: TaskGroup, *, task_status: TaskStatus[None]
    ) -> None:
        was_ready = False
        while not self._draining:
            worker, link = await to_thread.run_sync(self._start_worker, number)
            try:
                await anyio.wait_readable(link.fileno())  # it is ready, or has died
                if not was_ready:
                    was_ready = True
                    task_status.started()
                await anyio.wait_readable(worker.sentinel)
                worker.join()
            finally:
                del self._workers[worker]
                background.start_soon(to_thread.run_sync, link.close)
                self._usage.clear(number)
                self._keep_totals(link.name)
            if not self._draining:
                self._daemon.daemon_metrics.worker_restarts += 1
                status = worker.exitcode
                self._log.error("worker died; starting another", pid=worker.pid, status=status)
                await anyio.sleep(_RESTART_SECONDS)
            worker.close()

    def _start_worker(self, number: int) -> tuple[SpawnProcess, WorkerLink]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        link = WorkerLink(name_worker(number), ours)
        with self._changes:
            signer = self._daemon.access.signer
            start = WorkerStart(
                number, self._settings, self._list_uploads(), self._sockets, signer, self._usage
            )
            worker = context.Process(
                target=run_worker, args=(start, theirs), name="splitarrow-worker", daemon=True
            )
            worker.start()
            self._workers[worker] = link
        theirs.close()
        return worker, link

    def _keep_totals(self, name: str) -> None:
        """Keep the totals of a worker that has ended, as far as it reported them."""
        report = self._last.pop(name, None)
        if report is not None:
            totals = [sample for sample in report.samples if _is_total(sample)]
            self._ended = merge_samples([self._ended, totals])


def _ask_all(
    links: Sequence[WorkerLink], request: Request, seconds: float = RESPONSE_SECONDS
) -> list[Any]:
    """Return the responses of workers, which they prepare at the same time; see `WorkerLink`."""
    if not links:
        return []
    with ThreadPoolExecutor(len(links)) as threads:
        return list(threads.map(lambda link: link.ask(request, seconds), links))


def _is_total(sample: Sample) -> bool:
    """Return whether a value counts for the daemon, even if its process has ended."""
    metric = sample.metric
    return metric.type is not MetricType.GAUGE and "process" not in metric.labels


_EXCHANGE_SECONDS = 0.1
"""The time between two exchanges of the reads in progress. It is short beside `LINGER_SECONDS`."""
_END_SECONDS = 5.0
"""The time after the end of a drain, or after a cut, in which a worker ends by itself."""


class Supervisor:
    """A daemon and its workers; see `Drainable`.

    The daemon of this process has the control plane, the uploads, and the listeners that processes
    cannot share. The workers serve the readers of the others. They all drain together: as long as a
    read of several parts is in progress at one of them, the others serve its further parts.
    """

    def __init__(self, daemon: Daemon, pool: WorkerPool) -> None:
        self._daemon = daemon
        self._pool = pool

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `drain` or `cut` is called, and return when the last stream has ended."""
        self._draining, self._cut = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as background:
            background.start_soon(self._wait_for_cut)
            async with anyio.create_task_group() as serving:
                # Before the first worker starts, because workers serve the uploads that it finds.
                await serving.start(self._daemon.run)
                await serving.start(self._pool.run)
                task_status.started()
                await self._draining.wait()
                await self._drain_all()
            background.cancel_scope.cancel()

    def drain(self) -> None:
        """Refuse new reads. `run` returns when those in progress have ended."""
        self._draining.set()

    def cut(self) -> None:
        """End every stream now. Readers see broken connections."""
        self._draining.set()
        self._cut.set()

    async def _drain_all(self) -> None:
        """Drain all processes. Until the workers have ended, exchange the reads in progress."""
        reads = self._daemon.context.reads
        kill_at = anyio.current_time() + self._daemon.settings.drain_seconds + _END_SECONDS
        found = await to_thread.run_sync(self._pool.find_reads)
        while not self._pool.has_ended:
            reads.set_elsewhere(frozenset[str]().union(*found.values()))
            self._daemon.drain()
            elsewhere = {**found, MAIN: reads.names()}
            found = await to_thread.run_sync(self._pool.drain, elsewhere)
            if anyio.current_time() >= kill_at:
                self._pool.kill()
            await anyio.sleep(_EXCHANGE_SECONDS)
        reads.set_elsewhere(())

    async def _wait_for_cut(self) -> None:
        await self._cut.wait()
        self._daemon.cut()
        await to_thread.run_sync(self._pool.cut)
        await anyio.sleep(_END_SECONDS)
        self._pool.kill()
