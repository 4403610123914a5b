"""The parent of worker processes: its own daemon and the workers run, drain and end as one."""

from __future__ import annotations

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus

from .daemon import Daemon
from .report import MAIN
from .workers import WorkerPool

_EXCHANGE_SECONDS = 0.1
"""The time between two exchanges of the reads in progress. It is short beside `LINGER_SECONDS`."""
_END_SECONDS = 5.0
"""The time after the end of a drain, or after a cut, in which a worker ends by itself."""


class Supervisor:
    """A daemon and its workers; see `Drainable`.

    The daemon of this process has the control plane, the uploads, and the listeners that processes
    cannot share. The workers serve the readers of the others. They all drain together: as long as a
    read of several parts is in progress at one of them, the others serve its further parts.

    Parameters
    ----------
    daemon : Daemon
        The daemon of this process.
    pool : WorkerPool
        The workers.
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
