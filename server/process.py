"""The daemon as a process: signals, the ready file, and workers that share the ports."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from ..errors import ConfigError, SplitArrowError
from ..transport.tcp import bound_socket
from .auth.tickets import TicketOffice
from .catalog.catalog import Catalog
from .config import DEFAULT_LISTEN, ServerSettings, listener_uri
from .daemon import Daemon
from .logs import configure_logs, get_logger
from .notify import notify, watchdog_seconds

_RESTART_SECONDS = 1.0


def serve_process(
    settings: ServerSettings, on_ready: Callable[[Daemon], None] | None = None
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status.

    The first signal drains: no new streams, and those that run may finish, up to
    ``drain_seconds``. The second one cuts.

    Parameters
    ----------
    settings : ServerSettings
        What to serve, and how.
    on_ready : callable, optional
        Called with the daemon once every listener is bound.

    Raises
    ------
    ConfigError
        If a setting is impossible or an address cannot be bound.
    DatasetError
        If a dataset cannot be read.
    """
    if not settings.datasets and settings.writable is None:
        raise ConfigError("there is nothing to serve: name a dataset, as in NAME=PATH")
    if settings.control is not None and settings.workers > 1:
        raise ConfigError("control: a server with a control plane has one worker in this version")
    if settings.workers > 1 and settings.listen == DEFAULT_LISTEN:
        # What is written into memory to be shared belongs to one process.
        settings = settings.model_copy(update={"listen": DEFAULT_LISTEN[:1]})
    configure_logs(settings.log_level, settings.log_format)
    catalog = Catalog(settings.datasets, settings.open_object_cache())
    try:
        daemon = Daemon(catalog, settings)
        if settings.workers == 1:
            daemon.bind()
            anyio.run(_serve, daemon, on_ready)
        else:
            sockets = _shared_sockets(settings)
            daemon.bind(sockets)
            anyio.run(_supervise, daemon, sockets, on_ready)
    except BaseExceptionGroup as errors:
        ours = errors.subgroup(SplitArrowError)
        while isinstance(ours, BaseExceptionGroup):
            ours = ours.exceptions[0]
        raise errors if ours is None else ours from None
    finally:
        catalog.close()
    return 0


async def _serve(daemon: Daemon, on_ready: Callable[[Daemon], None] | None) -> None:
    def drain() -> None:
        notify("STOPPING=1")
        daemon.drain()

    async with anyio.create_task_group() as group:
        await group.start(_run, daemon, group)
        await group.start(_drain_on_signal, drain, daemon.cut)
        group.start_soon(_say_alive)
        with _announced(daemon, on_ready):
            await anyio.sleep_forever()


async def _run(
    daemon: Daemon, group: TaskGroup, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    async with anyio.create_task_group() as inner:
        await inner.start(daemon.run)
        task_status.started()
    group.cancel_scope.cancel()


@contextmanager
def _announced(daemon: Daemon, on_ready: Callable[[Daemon], None] | None) -> Generator[None]:
    """Tell that the daemon serves; take the ready file away when it does so no more."""
    ready_file = daemon.settings.ready_file
    if ready_file is not None:
        _write_whole(ready_file, json.dumps(daemon.ready(os.getpid())))
    try:
        get_logger("daemon").info(
            "serving",
            listen=[uri.redacted() for uri in daemon.uris],
            datasets=daemon.catalog.names(),
        )
        if on_ready is not None:
            on_ready(daemon)
        notify("READY=1")
        yield
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


async def _say_alive() -> None:
    """Tell the service manager's watchdog, if there is one, that the loop turns."""
    seconds = watchdog_seconds()
    while seconds is not None:
        notify("WATCHDOG=1")
        await anyio.sleep(seconds)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody ever sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text + "\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"cannot write the ready file {path}: {error.strerror}") from None


async def _drain_on_signal(
    drain: Callable[[], None],
    cut: Callable[[], None],
    numbers: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT),
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    log = get_logger("daemon")
    with anyio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        await anext(signals)
        log.info("draining; another signal cuts what still runs")
        drain()
        await anext(signals)
        log.warning("cutting")
        cut()


def _shared_sockets(settings: ServerSettings) -> dict[str, socket.socket]:
    for text in settings.listen:
        if listener_uri(text).scheme not in ("tcp", "tcp+tls"):
            raise ConfigError(f"{text}: only tcp ports can be shared by several workers")
    sockets: dict[str, socket.socket] = {}
    try:
        for text in settings.listen:
            sockets[text] = bound_socket(listener_uri(text))
    except BaseException:
        for bound in sockets.values():
            bound.close()
        raise
    return sockets


async def _supervise(
    daemon: Daemon,
    sockets: dict[str, socket.socket],
    on_ready: Callable[[Daemon], None] | None,
) -> None:
    """Keep the workers running until a signal says otherwise."""
    draining = anyio.Event()
    workers: set[SpawnProcess] = set()

    def signal_all(number: int) -> None:
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, number)

    def drain() -> None:
        notify("STOPPING=1")
        draining.set()
        signal_all(signal.SIGTERM)

    async with anyio.create_task_group() as signals:
        await signals.start(_drain_on_signal, drain, lambda: signal_all(signal.SIGTERM))
        signals.start_soon(_say_alive)
        async with anyio.create_task_group() as keepers:
            for _ in range(daemon.settings.workers):
                await keepers.start(
                    _keep_worker, daemon.settings, sockets, daemon.rights.office, workers, draining
                )
            with _announced(daemon, on_ready):
                await draining.wait()
        signals.cancel_scope.cancel()


async def _keep_worker(
    settings: ServerSettings,
    sockets: dict[str, socket.socket],
    office: TicketOffice | None,
    workers: set[SpawnProcess],
    draining: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    """Run one worker, and another one in its place should it die."""
    context = multiprocessing.get_context("spawn")
    log = get_logger("daemon")
    started = False
    while not draining.is_set():
        here, there = context.Pipe()
        worker = context.Process(
            target=_work,
            args=(settings, sockets, office, there),
            name="splitarrow-worker",
            daemon=True,
        )
        await to_thread.run_sync(worker.start)
        there.close()
        workers.add(worker)
        try:
            await anyio.wait_readable(here.fileno())
            if not started:
                started = True
                task_status.started()
            await anyio.wait_readable(worker.sentinel)
            worker.join()
        finally:
            workers.discard(worker)
            here.close()
        if not draining.is_set():
            log.error("worker died; starting another", pid=worker.pid, status=worker.exitcode)
            await anyio.sleep(_RESTART_SECONDS)
        worker.close()


def _work(
    settings: ServerSettings,
    sockets: dict[str, socket.socket],
    office: TicketOffice | None,
    parent: Connection,
) -> None:
    """Be a worker; `parent` is told when it serves, and closes when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    configure_logs(settings.log_level, settings.log_format)
    catalog = Catalog(settings.datasets, settings.open_object_cache())
    daemon = Daemon(catalog, settings, office=office)
    daemon.bind(sockets)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            await group.start(_run, daemon, group)
            await group.start(_drain_on_signal, daemon.drain, daemon.cut, (signal.SIGTERM,))
            parent.send_bytes(b"ready")
            await anyio.wait_readable(parent.fileno())
            daemon.drain()

    try:
        anyio.run(main)
    finally:
        catalog.close()
