"""The state that a daemon shares with its sessions and its control plane."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from ..formats.flight_data import FlightData
from ..protocol.limits import Limits
from ..protocol.uri import DataUri
from .auth.access_control import AccessControl
from .catalog.catalog import Catalog
from .catalog.dataset import Encoding
from .config import Settings
from .metrics import DaemonMetrics, Metrics, RelayMetrics
from .reads import ReadsInProgress
from .refusals import RefusalLog
from .report import Reporter
from .shares import StreamMemory
from .shm.regions import SharedRegions
from .streams import ReadSlots, StreamRegistry
from .tracing import Tracer
from .usage import Usage


class RelayService(Protocol):
    """The relay that a server is, as its services see it. Any thread may use it."""

    @property
    def metrics(self) -> RelayMetrics:
        """Its metrics."""
        ...

    @property
    def is_offline(self) -> bool:
        """Whether no upstream can be reached."""
        ...

    def pin(self, names: Sequence[str], *, is_pinned: bool) -> dict[str, Any]:
        """Pin datasets, or unpin them, and return all pins, for JSON.

        Raises `NotFoundError` if there is no such dataset, and `InvalidRequestError` if it is not
        published.
        """
        ...

    def encode_description(self) -> bytes:
        """Return what other relays need to know about it, as JSON."""
        ...


class UploadService(Protocol):
    """What receives uploads, as the services see it."""

    async def receive(
        self, caller: Any, target: Any, messages: AsyncIterator[FlightData]
    ) -> dict[str, Any]:
        """Store an upload of a `Caller`, and return the response; see `UploadReceiver`."""
        ...


@dataclass(slots=True, eq=False)
class ServerContext:
    """The state that a daemon shares with its sessions and its control plane."""

    catalog: Catalog
    settings: Settings
    """The settings. A reload replaces them."""
    limits: Limits
    """Limits on what readers and clients send."""
    access: AccessControl
    encoding: Encoding
    """The defaults for the messages of packed streams."""
    regions: SharedRegions
    metrics: Metrics
    daemon_metrics: DaemonMetrics
    streams: StreamRegistry
    """The streams that the server is sending."""
    refusals: RefusalLog
    reads: ReadsInProgress
    """The reads of several parts, which the server finishes before it ends."""
    leased_by: Callable[[int | None], int]
    """Returns the bytes that a user, by ID, has leased over all connections."""
    read_slots: ReadSlots
    """The threads and filters of each principal."""
    memory: StreamMemory
    """The memory for messages that wait to be sent."""
    tracer: Tracer | None
    """Records traces. None if the server records none."""
    usage: Usage
    """What this process uses of the limits of the server."""
    reporter: Reporter
    """All processes of the server."""
    relay: RelayService | None = None
    """The relay that the server is; None if it is not one."""
    uploads: UploadService | None = None
    """Receives uploads, once the control plane is bound; None if the server accepts none."""
    uris: list[DataUri] = field(default_factory=list[DataUri])
    """The URIs of the bound listeners."""
    http: DataUri | None = None
    """The URI of the HTTP listener, once it answers; None if the server has none."""
    draining: anyio.Event = field(init=False)
    """Set when the server refuses new reads. It exists while the daemon runs."""
    threads: anyio.CapacityLimiter = field(init=False)
    """The worker threads that read datasets. It exists while the daemon runs."""
    loop: AbstractEventLoop = field(init=False)
    """The event loop, once the daemon runs."""
    sessions: TaskGroup = field(init=False)
    """The tasks that a draining daemon waits for. It exists while the daemon serves."""
