"""A worker process: a daemon that accepts connections on the sockets of its parent.

Parent and worker exchange requests over a pipe (`WorkerLink`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from socket import socket
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from ..errors import SplitArrowError
from ..formats.arrow.numpy_arrays import prevent_pandas_import
from .auth.access_control import AccessControl
from .auth.tickets import TicketSigner
from .catalog.catalog import Catalog, open_catalog
from .config import Settings
from .daemon import Daemon
from .logs import configure_logs, get_logger
from .signals import paused_collection, run_until_signalled
from .usage import SharedUsage, UsageTable

RESPONSE_SECONDS = 2.0
"""The time in which a worker responds unless it hangs."""
READY = "ready"
"""What a worker sends once it serves, before any response."""


class ReportRequest(NamedTuple):
    """Requests a `ProcessReport`."""

    streams: bool
    """Whether to report running streams and refusals too."""


class CancelRequest(NamedTuple):
    """Requests to cancel a stream; the response is whether it exists."""

    number: int
    owner: str | None


class CancelTicketRequest(NamedTuple):
    """Requests to cancel the streams of a ticket; the response is whether there are any."""

    ticket: bytes
    principal: str


class ReloadRequest(NamedTuple):
    """Requests to prepare for changed settings; the response is the reason why not, or empty.

    The worker changes nothing before a `FinishRequest`.
    """

    settings: Settings


class DatasetsRequest(NamedTuple):
    """Requests to prepare a change of the datasets, as `ReloadRequest` does one of settings."""

    sources: dict[str, str]
    """The names to add or replace, and the paths of their data."""
    removed: tuple[str, ...]
    """The names to remove. Those that do not exist are ignored."""


class FinishRequest(NamedTuple):
    """Requests to make the prepared change, or to forget it. The response is True."""

    applies: bool


class ReadsRequest(NamedTuple):
    """Requests the datasets of which parts are being read; see `ReadsInProgress.names`."""

    elsewhere: frozenset[str] = frozenset()
    """Those of the other processes."""
    drains: bool = False
    """Whether to drain."""


class CutRequest(NamedTuple):
    """Requests to end every stream now. The response is True."""


Request = (
    ReportRequest
    | CancelRequest
    | CancelTicketRequest
    | ReloadRequest
    | DatasetsRequest
    | FinishRequest
    | ReadsRequest
    | CutRequest
)
"""What a worker responds to, one after the other."""


class WorkerLink:
    """The parent's end of the pipe to a worker. Any thread may use it."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        """The name of the worker."""
        self.is_ready = False
        """Whether the worker serves, as far as it has been asked."""
        self._connection = connection
        self._lock = threading.Lock()
        self._awaits_response = True  # first, the worker sends that it is ready

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return self._connection.fileno()

    def ask(self, request: Request, seconds: float = RESPONSE_SECONDS) -> Any:
        """Return the response to a request, or None if the worker does not respond in time.

        At most one request waits at a worker. So a worker that hangs gets no further ones.
        """
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            return None
        try:
            with suppress(OSError, EOFError):
                if self._awaits_response and self._receive(deadline) is None:
                    return None
                self._awaits_response = True
                self._connection.send(request)
                response = self._receive(deadline)
                return None if response is None else response[0]
            return None
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the pipe. A worker that still runs drains then."""
        with self._lock:
            self._connection.close()

    def _receive(self, deadline: float) -> tuple[Any] | None:
        """Return the response that the worker owes, in a tuple; None if it is late."""
        if not self._connection.poll(max(0.0, deadline - time.monotonic())):
            return None
        response = self._connection.recv()
        self._awaits_response = False
        self.is_ready = True
        return (response,)


def name_worker(number: int) -> str:
    """Return the name of a worker in metrics."""
    return f"worker-{number}"


def settings_of_worker(settings: Settings, listen: tuple[str, ...]) -> Settings:
    """Return the settings of a worker: it serves readers of shared listeners, and nothing else.

    Only the parent prunes versions: it knows which ones readers were told about.
    """
    changes = {"control": None, "http": None, "writable": None, "ready_file": None}
    return settings.model_copy(update={**changes, "listen": listen, "keep_versions": None})


@dataclass(frozen=True)
class WorkerStart:
    """What a worker gets from its parent when it starts."""

    number: int
    """The number of the worker, from 1."""
    settings: Settings
    datasets: Mapping[str, str]
    """The datasets beside those of the settings, and the paths of their data."""
    sockets: Mapping[str, socket]
    """The sockets that the workers share."""
    signer: TicketSigner | None
    """Signs tickets, and remembers for all processes which ones were used."""
    usage: UsageTable
    """What the processes use of the limits that they share."""


def run_worker(start: WorkerStart, parent: Connection) -> None:
    """Run a daemon in this worker process.

    It sends `READY` to its parent once it is ready, and responds to the parent's requests. It ends
    when the parent is gone and its running streams have been sent.
    """
    # A terminal sends SIGINT and SIGHUP to all processes of the group. The parent handles them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = start.settings
    configure_logs(settings.log_level, settings.log_format)

    async def obey_parent() -> None:
        change = _PreparedChange()
        try:
            while True:
                await anyio.wait_readable(parent.fileno())
                response = await _respond(daemon, change, parent.recv())
                await to_thread.run_sync(parent.send, response)
        except (EOFError, OSError):
            # The ports are free for the next parent at once. Running streams may finish.
            daemon.context.reads.end()
            daemon.drain()

    def report_ready(tasks: TaskGroup) -> None:
        parent.send(READY)
        tasks.start_soon(obey_parent)

    prevent_pandas_import()
    with paused_collection(), open_catalog(settings.datasets, settings) as catalog:
        _add_datasets(catalog, start.datasets)
        access = AccessControl.from_settings(settings, start.signer)
        usage = SharedUsage(start.usage, start.number)
        name = name_worker(start.number)
        daemon = Daemon(catalog, settings, access=access, process=name, usage=usage)
        daemon.bind(start.sockets)
        anyio.run(run_until_signalled, daemon, [signal.SIGTERM], report_ready)


def _add_datasets(catalog: Catalog, sources: Mapping[str, str]) -> None:
    """Add uploaded datasets; log those that cannot be read any more."""
    for name, source in sources.items():
        try:
            catalog.add(name, source)
        except SplitArrowError as error:
            get_logger("daemon").error("cannot serve upload", dataset=name, reason=str(error))


class _PreparedChange:
    """A change that a worker can make, while its parent asks the other workers."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._apply: Callable[[], object] = lambda: None

    def prepare(self, change: AbstractContextManager[Callable[[], object]]) -> str:
        """Check a change. Log and return the reason why it cannot be made, or empty."""
        self.finish(applies=False)
        try:
            self._apply = self._resources.enter_context(change)
        except (SplitArrowError, OSError) as error:
            get_logger("daemon").error("worker refuses a change", reason=str(error))
            return str(error)
        return ""

    def finish(self, *, applies: bool) -> bool:
        """Make the change, if there is one, or forget it."""
        apply, self._apply = self._apply, lambda: None
        with self._resources.pop_all():
            if applies:
                apply()
        return True


async def _respond(daemon: Daemon, change: _PreparedChange, request: Request) -> Any:
    """Return the response of a worker to a request."""
    match request:
        case CancelRequest(number, owner):
            return daemon.streams.cancel(number, owner)
        case CancelTicketRequest(ticket, principal):
            return daemon.streams.cancel_ticket(ticket, principal)
        case ReadsRequest(elsewhere, drains):
            reads = daemon.context.reads
            if drains:
                reads.set_elsewhere(elsewhere)
                daemon.drain()
            return reads.names()
        case CutRequest():
            daemon.cut()
            return True
        case ReloadRequest(settings):
            return await to_thread.run_sync(change.prepare, daemon.reloader.prepare(settings))
        case DatasetsRequest(sources, removed):
            update = daemon.catalog.prepare_update(sources, removed)
            return await to_thread.run_sync(change.prepare, update)
        case FinishRequest(applies):
            return await to_thread.run_sync(partial(change.finish, applies=applies))
        case _:
            return await to_thread.run_sync(lambda: daemon.report(streams=request.streams))
