"""The daemons of a run, the clients' side of it, and what has to be true.

`Cluster` starts, kills and restarts daemons and relays, and checks what they hold at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from splitarrow.client.tokens import parse_token
from splitarrow.errors import SplitArrowError
from splitarrow.protocol.uri import DataUri
from splitarrow.relay.relay import Relay, RelayOptions
from splitarrow.server.auth.access_control import AccessControl
from splitarrow.server.catalog.catalog import open_catalog
from splitarrow.server.config import Configuration, Settings
from splitarrow.server.daemon import Daemon
from splitarrow.server.metrics import Histogram, MetricType
from splitarrow.server.shares import MemoryShare
from splitarrow.server.uploads.publication import ShardKey

from . import disk
from .clock import EventLoop, SimulationError, World
from .disk import Disk
from .history import History
from .network import Network
from .processes import Process

PRINCIPALS = ("alice", "bob")
_TOKENS = {name: f"token-of-{name}-0123456789" for name in (*PRINCIPALS, "operator")}
_GROUP_BYTES = 512 << 10
"""What a stream may hold beyond its share: the group that it sends."""
_STEPS_PER_CHECK = 32
_OVERHEAD_BYTES = 2 << 10
"""What a connection or a request may carry besides its stream."""
_QUIET_SECONDS = 75.0
"""The time after the last fault in which reads may still fail."""


@dataclass(frozen=True, slots=True)
class DaemonPlan:
    """A daemon, or a relay of the other daemons."""

    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    is_relay: bool = False


class Host:
    """A host with a daemon, which may start several times."""

    def __init__(self, cluster: Cluster, number: int, plan: DaemonPlan) -> None:
        self.cluster = cluster
        self.number = number
        self.plan = plan
        self.name = f"relay {number}" if plan.is_relay else f"daemon {number}"
        self.address = f"10.0.0.{number + 1}"
        self.uri = f"grpc://{self.address}:8815"
        self.disk = Disk(cluster.folder / f"host{number}")
        self.process: Process | None = None
        self.daemon: Daemon | None = None
        self.socket = cluster.folder / f"run{number}" / "data.sock"
        self.socket.parent.mkdir()
        self.guests: list[Process] = []
        """The clients on this host."""
        self.counters: dict[tuple[str, tuple[str, ...]], float] = {}
        """The counters of the daemon, as last seen."""
        self.starts = 0
        self.has_stopped = False
        """Whether the daemon has ended by itself."""

    @property
    def is_running(self) -> bool:
        """Whether the process runs, or is stopped."""
        return self.process is not None and not self.process.is_done

    def start(self) -> None:
        """Start the daemon."""
        if self.is_running:
            return
        self.starts += 1
        name = self.name if self.starts == 1 else f"{self.name}, start {self.starts}"
        self.process = Process(name, self.address)
        self.has_stopped, self.daemon, self.counters = False, None, {}
        World.current.record("starts", self.name)
        self.process.start(self._serve)

    def _serve(self) -> None:
        folder = Path(self.disk.folder)
        given: dict[str, Any] = {
            "listen": (f"tcp://{self.address}:7001", f"shm://{self.socket}"),
            "shm_copy": True,
            "control": self.uri,
            "insecure": True,
            "poll_seconds": 2.0,
            "drain_seconds": 20.0,
            **self.plan.settings,
        }
        if self.plan.is_relay:
            given |= {"object_cache": folder / "cache" / "objects"}
        else:
            given |= {"writable": folder / "uploads"}
        if self.cluster.has_tokens:
            path = folder / "tokens.toml"
            path.write_text(_format_tokens())  # as an administrator would
            given |= {"token_file": path}
        try:
            settings = Settings(**given)
            with open_catalog({}, settings) as catalog:
                if not self.plan.is_relay:
                    self._run(Daemon(catalog, settings, configuration=Configuration()), None)
                    return
                upstreams = tuple(DataUri.parse(host.uri) for host in self.cluster.origins)
                token = parse_token(_TOKENS["operator"]) if self.cluster.has_tokens else None
                options = RelayOptions(upstreams, folder / "cache", token)
                with closing(Relay(options, settings)) as relay:
                    relay.start(catalog)
                    access = AccessControl.from_settings(settings, identify=relay.identify)
                    daemon = Daemon(catalog, settings, access=access)
                    relay.attach(daemon)
                    self._run(daemon, relay)
        except (SplitArrowError, OSError) as error:
            World.current.record(f"ends: {error}")
            if not self.cluster.is_faulty:
                raise

    def _run(self, daemon: Daemon, relay: Relay | None) -> None:
        async def run() -> None:
            daemon.bind()
            async with anyio.create_task_group() as tasks:
                if relay is not None:
                    tasks.start_soon(relay.run)
                await daemon.run()
                tasks.cancel_scope.cancel()

        self.daemon = daemon
        anyio.run(run, backend_options={"loop_factory": EventLoop})
        self.has_stopped = True
        disk.release_locks(Process.current())
        World.current.record("has ended")

    def kill(self, *, power: bool) -> None:
        """Kill the daemon; with `power`, the host loses what is not durable."""
        if self.process is None or not self.is_running:
            return
        self.process.kill(power=power)
        for guest in self.guests if power else ():
            guest.kill(power=True)
        disk.release_locks(self.process)
        if power:
            self.disk.lose_power()
            self.socket.unlink(missing_ok=True)

    def call(self, function: Callable[[Daemon], object]) -> None:
        """Call a function on the event loop of the daemon, if it runs."""
        daemon = self.daemon
        if self.is_running and daemon is not None and hasattr(daemon, "loop"):
            daemon.loop.call_soon_threadsafe(function, daemon)


class Cluster:
    """The hosts, the datasets and their histories."""

    def __init__(self, plans: list[DaemonPlan], folder: Path, *, has_tokens: bool) -> None:
        self.folder = folder
        self.has_tokens = has_tokens
        self.histories: dict[str, History] = {}
        self.last_fault = float("-inf")
        self.last_drain = float("-inf")
        self.faults = 0
        """The number of faults that last."""
        self.owners: dict[str, int] = {}
        """The host to which the writer of each dataset writes."""
        self.has_failing_disks = False
        """Whether a daemon may have started without some of its datasets."""
        self.published: set[str] = set()
        self.replicated: set[str] = set()
        self._steps = 0
        self.hosts = [Host(self, number, plan) for number, plan in enumerate(plans)]

    @property
    def origins(self) -> list[Host]:
        """The hosts that have the data."""
        return [host for host in self.hosts if not host.plan.is_relay]

    @property
    def is_faulty(self) -> bool:
        """Whether calls may fail now."""
        return self.faults > 0 or World.current.now < self.last_fault + _QUIET_SECONDS

    @property
    def is_draining(self) -> bool:
        """Whether daemons may refuse calls, because they end or have just started again."""
        return World.current.now < self.last_drain + _QUIET_SECONDS

    def note_drain(self) -> None:
        """Record that a daemon is asked to end."""
        self.last_drain = World.current.now

    def note_fault(self) -> None:
        """Record that something has just failed."""
        self.last_fault = World.current.now

    def token(self, principal: str) -> str | None:
        """Return the token of a principal; None if the daemons require none."""
        return _TOKENS[principal] if self.has_tokens else None

    def history(self, name: str) -> History:
        """Return the history of a dataset."""
        if name not in self.histories:
            self.histories[name] = History(name)
        return self.histories[name]

    # What is checked

    def check_step(self) -> None:
        """Check what must be true at any time."""
        self._steps += 1
        if self._steps % _STEPS_PER_CHECK:
            return
        for host in self.hosts:
            daemon = host.daemon
            if daemon is None or not host.is_running:
                continue
            limit = daemon.settings.stream_memory
            held = daemon.context.memory.held
            if held > limit + _GROUP_BYTES * daemon.context.memory._streams:
                raise SimulationError(f"{host.name} holds {held} bytes of {limit}")
            most = daemon.settings.max_streams_per_principal
            if most is not None:
                for principal, count in _counts(daemon.context.usage.streams).items():
                    if count > most:
                        raise SimulationError(f"{principal} reads {count} streams of {most}")

    def check_counters(self) -> None:
        """Check that no counter goes down while a daemon runs."""
        for host in self.hosts:
            daemon = host.daemon
            if daemon is None or not host.is_running or daemon.metrics.moving().locked():
                continue
            before, host.counters = host.counters, _list_counters(daemon)
            for key, value in before.items():
                now = host.counters.get(key, 0.0)
                if now < value:
                    raise SimulationError(f"{host.name}: {key} falls from {value:g} to {now:g}")

    def is_idle(self) -> bool:
        """Return whether all daemons run, and hold nothing for clients."""
        return all(
            host.is_running
            and (host.address, 8815) in Network.current.listening
            and host.daemon is not None
            and not host.daemon.draining
            and not _list_held(host)
            for host in self.hosts
        )

    def check_idle(self) -> None:
        """Check that the daemons hold nothing once all clients are gone."""
        for host in self.hosts:
            daemon = host.daemon
            if daemon is None or not host.is_running:
                raise SimulationError(f"{host.name} does not run")
            left = _list_held(host)
            if left:
                raise SimulationError(f"{host.name} still holds {left}")
            values = _list_values(daemon)
            self._check_metrics(host, values)
            self._check_uploads(host)

    def _check_metrics(self, host: Host, values: dict[str, float]) -> None:
        """Compare the metrics of a daemon with what the network has carried."""
        assert host.daemon is not None
        assert host.process is not None
        metrics, network = host.daemon.metrics, Network.current
        started, ended = metrics.started_streams, metrics.ended_streams
        carried = network.carried[host.process.name, 7001]
        local = network.carried[host.process.name, 0]  # over shared memory
        sent = sum(value for labels, value in metrics.sent_bytes.items() if labels[1] == "tcp")
        streams = sum(value for labels, value in started.items() if labels[1] == "tcp")
        found = {
            "streams that began": (sum(started.values()), sum(ended.values())),
            "durations of streams": (
                sum(sum(each.counts) for each in metrics.stream_seconds.values()),
                sum(ended.values()),
            ),
            "connections that are open": (values["connections"], 0),
            "rows": (sum(metrics.sent_rows.values()), metrics.rows),
        }
        failed = sum(count for labels, count in ended.items() if labels[-1] == "failed")
        if failed > metrics.failures:
            raise SimulationError(f"{host.name} counts {failed} failures of {metrics.failures}")
        for name, (counted, actual) in found.items():
            if counted != actual:
                raise SimulationError(f"{host.name} counts {counted} {name}; expected {actual}")
        # A client may have gone again before it is accepted.
        accepted = carried.connections + local.connections
        least = 0 if self.last_fault > float("-inf") else accepted
        if not least <= metrics.connections_total <= accepted:
            raise SimulationError(
                f"{host.name} counts {metrics.connections_total} connections of {accepted}"
            )
        # Prefaces, refusals and keep-alives are not bytes of a stream.
        most = carried.nbytes
        least = most - _OVERHEAD_BYTES * (carried.connections + carried.requests)
        if not least <= sent <= most:
            raise SimulationError(
                f"{host.name} counts {sent} bytes of {streams} streams; the network carried "
                f"{carried.nbytes} over {carried.connections} connections"
            )

    def _check_uploads(self, host: Host) -> None:
        folder = Path(host.disk.folder, "uploads")
        if host.plan.is_relay or not folder.is_dir():
            return
        left = [path.name for path in folder.iterdir() if path.name.startswith(".upload-")]
        if left and not host.disk.has_kept_files:
            raise SimulationError(f"{host.name} has left {left}")
        assert host.daemon is not None
        store: Any = host.daemon.context.uploads
        for owner, nbytes in store.store._quota._used.items():
            if isinstance(owner, str):
                actual = store.store._folder.make_path(owner).stat().st_size
                if actual != nbytes:
                    raise SimulationError(f"the quota counts {nbytes} bytes of {owner}: {actual}")
            elif not isinstance(owner, (tuple, ShardKey)):  # a job may go on with its shards
                raise SimulationError(f"the quota of {host.name} still counts {owner}")

    def find_open_sockets(self, host: Host) -> int:
        """Return how many connections the process of a host has."""
        ends = Network.current.ends.values()
        return sum(end.process is host.process for end in ends)


_grant = MemoryShare.grant


def grant_memory(share: MemoryShare) -> None:
    """Give memory to a stream, if there is room in the half of its principal, and in all."""
    memory = share._memory
    own = memory._held[share.principal] + share.wanted
    if own > memory._limit // 2 or memory.held + share.wanted > memory._limit:
        text = f"{share.principal} gets {own} bytes of {memory._limit}"
        World.current.fail(SimulationError(text))
    _grant(share)


def _list_held(host: Host) -> dict[str, float]:
    """Return what a daemon still holds for clients."""
    daemon = host.daemon
    assert daemon is not None
    context, values = daemon.context, _list_values(daemon)
    acceptor = daemon._acceptor
    uploads: Any = context.uploads
    running = 0 if uploads is None else uploads._slots._running.total()
    found = {
        "running streams in the metrics": values["streams"],
        "counted connections": 0 if acceptor is None else sum(acceptor._connection_shares._used),
        "counted descriptors": 0 if acceptor is None else sum(acceptor._descriptor_shares._used),
        "refused connections": 0 if acceptor is None else acceptor._refusal_descriptors,
        "running uploads": running,
        "streams": len(list(context.streams)),
        "sessions": len(daemon._sessions),
        "bytes of messages": context.memory.held,
        "streams that share memory": context.memory._streams,
        "streams of principals": len(_counts(context.usage.streams)),
        "addresses": len(_counts(context.usage.addresses)),
        "threads": daemon._thread_shares._used.total(),
        "reads": bool(context.reads),
        "leases": values["leases"],
        "leased bytes": values["leased_bytes"],
        "freed offsets that nobody had leased": values["bad_frees"],
        "connections": values["connections"],
    }
    return {name: value for name, value in found.items() if value}


def _counts(counter: Any) -> dict[str, int]:
    return counter._counts


def _list_counters(daemon: Daemon) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (metric.name, labels): value
        for metric, labels, value in daemon.metrics.samples()
        if metric.type is MetricType.COUNTER and not isinstance(value, Histogram)
    }


def _list_values(daemon: Daemon) -> dict[str, float]:
    return {name: float(value) for name, value in daemon.stats().items()}


def _format_tokens() -> str:
    entries = [
        f'[[tokens]]\nname = "{name}"\ntoken = "{_TOKENS[name]}"\n'
        f'datasets = ["{name}-*", "shared-*"]\nwrite = ["{name}-*", "shared-*"]\n'
        for name in PRINCIPALS
    ]
    entries.append(
        f'[[tokens]]\nname = "operator"\ntoken = "{_TOKENS["operator"]}"\n'
        'datasets = ["*"]\nwrite = ["*"]\n'
    )
    return "\n".join(entries)
