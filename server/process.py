"""The daemon as a process: signals, the ready file, the service manager and workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from ..errors import ConfigError, SplitArrowError
from ..formats.arrow.numpy_arrays import prevent_pandas_import
from ..publication.atomic_files import write_atomic
from .auth.access_control import AccessControl, Identify
from .catalog.catalog import Catalog, open_catalog
from .config import Configuration, Settings
from .daemon import Daemon, open_http_listener
from .logs import configure_logs, get_logger
from .refusals import flatten_errors
from .signals import Drainable, paused_collection, run_until_signalled
from .usage import SharedUsage, UsageTable
from .workers import Supervisor, WorkerPool, bind_shared_sockets

if TYPE_CHECKING:
    from .http.listener import HttpListener


_SOCKET = "NOTIFY_SOCKET"
_WATCHDOG_TIMEOUT = "WATCHDOG_USEC"
_WATCHDOG_PID = "WATCHDOG_PID"


def notify(state: str) -> bool:
    """Send a state such as ``READY=1`` to the service manager."""
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket, which has no file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(state.encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """Return the interval for sending ``WATCHDOG=1``, or None if this process has no watchdog.

    It is half of the watchdog's timeout, in seconds.
    """
    timeout = os.environ.get(_WATCHDOG_TIMEOUT, "")
    pid = os.environ.get(_WATCHDOG_PID, "")
    if not (timeout.isascii() and timeout.isdigit() and int(timeout)):
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(timeout) / 2_000_000


_SIGNALS = (signal.SIGTERM, signal.SIGINT)

OnReady = Callable[[Daemon], None]


class Feed(Protocol):
    """What fills the catalog besides the configuration."""

    @property
    def identify(self) -> Identify | None:
        """What knows the tokens of readers that the settings do not know; None if nothing does."""
        ...

    def start(self, catalog: Catalog) -> None:
        """Add the first datasets; raise `SplitArrowError` if there are none."""
        ...

    def attach(self, daemon: Daemon) -> None:
        """Connect what the feed has to the daemon that will serve the catalog."""
        ...

    async def run(self) -> None:
        """Change the catalog until cancelled."""
        ...

    def close(self) -> None:
        """Release what `start` has opened."""
        ...


def serve_process(
    configuration: Configuration,
    on_ready: OnReady | None = None,
    open_feed: Callable[[Settings], Feed] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status.

    The first signal drains: the server refuses new streams and lets running ones finish, for up
    to ``drain_seconds``. The second signal cuts them. SIGHUP reloads the configuration.

    Raises `ConfigError` if a setting is wrong or an address cannot be bound. Raises `DatasetError`
    if a dataset cannot be read.
    """
    settings = configuration.load()
    if not settings.datasets and settings.writable is None and open_feed is None:
        raise ConfigError("nothing to serve: name a dataset, as in NAME=PATH")
    configure_logs(settings.log_level, settings.log_format)
    prevent_pandas_import()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon can reload
    with paused_collection(), _unwrapped_errors(), ExitStack() as stack:
        # It answers health checks while the catalog loads.
        http = open_http_listener(settings)
        if http is not None:
            stack.enter_context(http)
        catalog = stack.enter_context(open_catalog(settings.datasets, settings))
        feed = None
        if open_feed is not None:
            feed = stack.enter_context(closing(open_feed(settings)))
            feed.start(catalog)
        if settings.workers == 1:
            identify = None if feed is None else feed.identify
            access = AccessControl.from_settings(settings, identify=identify)
            daemon = Daemon(catalog, settings, configuration=configuration, access=access)
            if feed is not None:
                feed.attach(daemon)
            daemon.bind()
            server: Drainable = daemon
        else:
            daemon, server = _make_supervisor(catalog, settings, configuration)
        anyio.run(_run, server, daemon, http, on_ready, feed)
    return 0


def _make_supervisor(
    catalog: Catalog, settings: Settings, configuration: Configuration
) -> tuple[Daemon, Supervisor]:
    """Return the daemon of this process, and what runs it together with worker processes."""
    usage = UsageTable(settings.workers + 1)
    sockets = bind_shared_sockets(settings)
    daemon = Daemon(catalog, settings, configuration=configuration, usage=SharedUsage(usage, 0))
    try:
        daemon.bind(sockets, leaves_shared=True)
    except BaseException:
        for sock in sockets.values():
            sock.close()
        raise
    pool = WorkerPool(daemon, sockets, usage)
    daemon.context.reporter = pool
    daemon.reloader.followers.append(pool.reload)
    catalog.replicate = pool.replicate
    return daemon, Supervisor(daemon, pool)


async def _run(
    server: Drainable,
    daemon: Daemon,
    http: HttpListener | None,
    on_ready: OnReady | None,
    feed: Feed | None,
) -> None:
    with ExitStack() as stack:

        def announce(tasks: TaskGroup) -> None:
            stack.enter_context(_announced(daemon, http, on_ready))
            tasks.start_soon(_feed_watchdog)
            if feed is not None:
                tasks.start_soon(feed.run)

        async def reload() -> None:
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            with suppress(ConfigError):  # it has been logged
                await to_thread.run_sync(daemon.reloader.reload)
            notify("READY=1")

        stopping = partial(notify, "STOPPING=1")
        await run_until_signalled(server, _SIGNALS, announce, stopping, reload)


@contextmanager
def _announced(
    daemon: Daemon, http: HttpListener | None, on_ready: OnReady | None
) -> Generator[None]:
    """Report that the daemon is ready; remove the ready file when it has ended."""
    ready_file = daemon.settings.ready_file
    if http is not None:
        http.attach(daemon.context)
        daemon.http_uri = http.uri.address
    if ready_file is not None:
        _write_ready_file(ready_file, daemon)
        daemon.reloader.listeners.append(partial(_write_ready_file, ready_file, daemon))
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


def _write_ready_file(path: Path, daemon: Daemon) -> None:
    text = json.dumps(daemon.ready(os.getpid())) + "\n"
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise ConfigError(f"cannot write the ready file {path}: {error.strerror}") from None


async def _feed_watchdog() -> None:
    """Report to the service manager's watchdog, if it has one, that the event loop runs."""
    seconds = watchdog_seconds()
    while seconds is not None:
        notify("WATCHDOG=1")
        await anyio.sleep(seconds)


@contextmanager
def _unwrapped_errors() -> Generator[None]:
    """Raise the first `SplitArrowError` of an exception group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours = (one for one in flatten_errors(group) if isinstance(one, SplitArrowError))
        raise next(ours, group) from None
