"""The clients of a run: each uses the product as a user would, and checks what it gets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

import splitarrow
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.errors import (
    DeniedError,
    ExhaustedError,
    InvalidRequestError,
    NotFoundError,
    RemoteError,
    SplitArrowError,
)

from .clock import FIRST_SECONDS, SimulationError, World
from .cluster import Cluster, Host
from .history import History, Job, Selection, State, make_rows
from .network import Network
from .processes import Process

_STALL_SECONDS = 6.0
_LONGEST_SECONDS = _STALL_SECONDS + 5.0
"""The longest wait for a batch: `stall_timeout` and `RETRY_SECONDS`."""
_SLACK_SECONDS = 1.5
_DRAINED_SECONDS = 15.0
"""The time for which a daemon that drains certainly goes on with a read."""
_FOLLOW_SECONDS = 45.0
"""The time in which a relay has to follow its upstream: a keep-alive finds a dead connection."""
_BATCH_BYTES = 600_000
"""More than the largest batch has."""
_ROWS = (0, 40, 5000, 20_000, 20_000)


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """A client: what it does, with which dataset, how often, from which seed."""

    kind: str
    dataset: str
    host: int
    steps: int
    seed: int
    options: dict[str, Any] = field(default_factory=dict[str, Any])


class Actor:
    """A client process."""

    def __init__(self, cluster: Cluster, number: int, plan: ActorPlan) -> None:
        self.cluster = cluster
        self.plan = plan
        self.random = Random(plan.seed)
        self.host: Host = cluster.hosts[plan.host % len(cluster.hosts)]
        is_guest = bool(plan.options.get("local"))
        address = self.host.address if is_guest else f"10.0.1.{number + 1}"
        self.process = Process(f"{plan.kind} {number}", address, is_guest=is_guest)
        if is_guest:
            self.host.guests.append(self.process)
        self._client: Any = None
        self.principal = plan.dataset.partition("-")[0]
        if self.principal not in ("alice", "bob"):
            self.principal = "alice"

    def start(self) -> None:
        """Start the process."""
        self.process.start(lambda: KINDS[self.plan.kind](self))

    @contextmanager
    def connect(self, uris: str | list[str] | None = None) -> Generator[Any]:
        """Connect a client, or use the last one again until something fails."""
        client, self._client = self._client, None
        if client is None:
            uri: Any = self.host.uri if uris is None else uris
            token = self.cluster.token(self.principal)
            client = splitarrow.connect(uri, token, connect_timeout=5.0, timeout=10.0)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        if self.random.random() < 0.3:
            client.close()
        else:
            self._client = client

    def wait_for(self, history: History) -> None:
        """Wait until a dataset exists, but not forever."""
        end = World.current.now + 20.0
        while not history.acknowledged and World.current.now < end:
            time.sleep(0.05)

    def think(self) -> None:
        """Wait a little."""
        time.sleep(self.random.choice((0.0, 0.001, 0.05, 0.5)))

    def record(self, event: str) -> None:
        """Add an event to the story."""
        World.current.record(event, self.process.name)

    def expect_error(
        self,
        error: SplitArrowError,
        since: float,
        may_fail: bool = False,
        opened: float = float("inf"),
    ) -> None:
        """Raise if a call must not have failed.

        A drain lets a read finish that was open before, unless it takes too long.
        """
        self.record(f"{type(error).__name__}: {error}")
        cluster, now = self.cluster, World.current.now
        if opened < cluster.last_drain and now - opened < _DRAINED_SECONDS:
            drained = False
        else:
            drained = cluster.is_draining
        if not (may_fail or drained or cluster.is_faulty or cluster.last_fault >= since):
            raise SimulationError(
                f"{self.process.name} failed without a fault: {type(error).__name__}: {error}"
            ) from error


def draw_job(random: Random, number: int, shards: int | None = None) -> Job:
    """Return a job with random numbers of rows."""
    count = random.randrange(1, 4) if shards is None else shards
    return Job(number, tuple(random.choice(_ROWS) for _ in range(count)))


def _slice(random: Random, table: pa.Table) -> pa.RecordBatchReader:
    size = random.choice((7, 100, 10_000)) if table.num_rows < 1000 else 1000
    return pa.RecordBatchReader.from_batches(
        table.schema, iter(table.to_batches(max_chunksize=size))
    )


def upload(actor: Actor) -> None:
    """Upload a dataset again and again, and drop it now and then."""
    history, random = actor.cluster.history(actor.plan.dataset), actor.random
    for step in range(actor.plan.steps):
        since = World.current.now
        job = draw_job(random, step + 1, 1)
        drops = step > 0 and random.random() < 0.3

        def change(_: State, job: Job = job, drops: bool = drops) -> State:
            return None if drops else (job,)

        history.begin(change)
        try:
            with actor.connect() as client:
                if drops:
                    client.drop(history.name)
                else:
                    rows = make_rows(job.number, 0, job.shards[0])
                    client.put(history.name, _slice(random, rows), if_exists="replace")
            history.acknowledge(change)
            actor.record(
                f"{'dropped' if drops else f'uploaded job {job.number} to'} {history.name}"
            )
        except NotFoundError as error:
            actor.expect_error(error, since, drops and None in history.possible)
        except SplitArrowError as error:
            actor.expect_error(error, since, _may_be_full(actor, error))
        if step + 1 < actor.plan.steps:
            actor.think()
    actor.record("wrote all")


def publish(actor: Actor) -> None:
    """Publish versions, shard by shard. A job that fails is repeated until it is done."""
    history, random = actor.cluster.history(actor.plan.dataset), actor.random
    is_cluster = bool(actor.plan.options.get("replicas"))
    hosts = actor.cluster.origins if is_cluster else [actor.host]
    for step in range(actor.plan.steps):
        job = draw_job(random, step + 1)
        appends = step > 0 and random.random() < 0.5
        if step > 0 and not is_cluster and random.random() < 0.25:
            _drop(actor, history)
            if random.random() < 0.5:
                continue

        def change(state: State, job: Job = job, appends: bool = appends) -> State:
            if state is not None and job in state:
                return state
            return (*(state or ()), job) if appends else (job,)

        history.begin(change)
        tables = [make_rows(job.number, index, rows) for index, rows in enumerate(job.shards)]
        mode = "append" if appends else "overwrite"
        for _ in range(40):
            since, version = World.current.now, None
            try:
                if is_cluster:
                    publish_shards(
                        history.name,
                        [lambda table=table: table for table in tables],
                        [host.uri for host in hosts],
                        job=f"job-{job.number}",
                        mode=mode,
                        replicas=min(actor.plan.options["replicas"], len(hosts)),
                        token=actor.cluster.token(actor.principal),
                        connect_timeout=5.0,
                        timeout=20.0,
                    )
                else:
                    version = _publish_shards(actor, history.name, job, tables, mode)
            except SplitArrowError as error:
                actor.expect_error(error, since, _may_be_full(actor, error))
                time.sleep(random.uniform(0.1, 3.0))
                continue
            history.acknowledge(change)
            if version is not None:
                history.versions[version] = history.possible
            actor.record(f"published job {job.number} ({mode}) of {history.name}")
            break
        else:
            raise SimulationError(f"job {job.number} of {history.name} could not be published")
        if step + 1 < actor.plan.steps:
            actor.think()
    actor.record("wrote all")


def _drop(actor: Actor, history: History) -> None:
    """Drop a dataset, until that has happened."""

    def change(_: State) -> State:
        return None

    history.begin(change)
    for _ in range(40):
        since = World.current.now
        try:
            with actor.connect() as client:
                client.drop(history.name)
        except NotFoundError as error:
            actor.expect_error(error, since, None in history.possible)
            break
        except SplitArrowError as error:
            actor.expect_error(error, since)
            time.sleep(actor.random.uniform(0.1, 3.0))
        else:
            break
    history.acknowledge(change)
    actor.record(f"dropped {history.name}")


def _publish_shards(actor: Actor, name: str, job: Job, tables: list[pa.Table], mode: str) -> str:
    """Publish a job, and return the number of the version."""
    with actor.connect() as client:
        for ordinal, table in enumerate(tables):
            batches = _slice(actor.random, table)
            client.put_shard(name, batches, job=f"job-{job.number}", ordinal=ordinal)
        ordinals = range(len(tables))
        done = client.publish(name, job=f"job-{job.number}", ordinals=ordinals, mode=mode)
        return str(done.version)


def _may_be_full(actor: Actor, error: SplitArrowError) -> bool:
    settings = actor.host.plan.settings
    return isinstance(error, ExhaustedError) and "writable_bytes" in settings


def draw_selection(random: Random, rows: int) -> Selection:
    """Return what a read selects of a dataset with so many rows."""
    if random.random() < 0.5:
        return Selection()
    if rows and random.random() < 0.3:
        begin = random.randrange(rows + 1)
        return Selection(rows=(begin, random.randrange(begin, rows + 1)))
    columns = random.choice((None, ("job", "n"), ("text", "n"), ("n",)))
    below = random.choice((None, None, 0, 2500, 15_000))
    limit = random.choice((None, None, 1, 4000, 12_000, 30_000))
    return Selection(columns, below, limit)


def read(actor: Actor) -> None:
    """Read a dataset with changing options, and compare the rows with the history."""
    history, random, world = actor.cluster.history(actor.plan.dataset), actor.random, World.current
    is_cluster = bool(actor.plan.options.get("replicas"))
    is_stale = actor.host.plan.is_relay
    if random.random() < 0.8:
        actor.wait_for(history)
    for _ in range(actor.plan.steps):
        since = world.now
        selection = draw_selection(random, 0 if is_cluster else history.count_rows())
        version = pinned = None
        if history.versions and not is_stale and random.random() < 0.15:
            version, pinned = random.choice(list(history.versions.items()))
        options: dict[str, Any] = {
            "transport": random.choice(("auto", "auto", "auto", "tcp", "flight")),
            "stall_timeout": _STALL_SECONDS,
            "prefetch_bytes": random.choice((None, 0, 1 << 16)),
            "connect_timeout": 3.0,
            "parallel": random.choice((1, 4)),
        }
        if random.random() < 0.2:
            options["compression"] = random.choice(("lz4", "zstd"))
        leaves = random.random() < 0.25
        pause = random.choice((0.0, 0.0, 0.0, 0.3))
        opened = float("inf")
        try:
            uris = [host.uri for host in actor.cluster.origins]
            batches: list[pa.RecordBatch] = []
            with (
                actor.connect(uris if is_cluster else None) as client,
                client.read(
                    history.name, version=version, **selection.arguments(), **options
                ) as stream,
            ):
                schema, opened = stream.schema, world.now
                while (batch := _wait_for_batch(actor, stream)) is not None:
                    batches.append(batch)
                    if pause:
                        time.sleep(pause)
                    if leaves:
                        break
            if leaves:
                actor.record(f"left a read of {history.name}")
            else:
                table = pa.Table.from_batches(batches, schema).combine_chunks()
                if is_stale:
                    since = float("-inf")
                history.check_read(table, selection, since, pinned)
                actor.record(f"read {table.num_rows} rows of {history.name}, {selection}")
        except NotFoundError as error:
            absent = None in history.list_possible(since) or (
                is_stale and not _has_relayed(actor.host, history, since)
            )
            if not (absent or actor.cluster.has_failing_disks):
                raise SimulationError(f"{history.name} exists, but {error}") from error
            actor.expect_error(error, since, absent)
            if is_stale:
                time.sleep(0.5)  # until it has asked its upstream
        except ExhaustedError as error:
            limit = actor.host.plan.settings.get("max_streams_per_principal")
            actor.expect_error(error, since, limit is not None)
        except InvalidRequestError as error:
            end = 0 if selection.rows is None else selection.rows[1]
            fewer = history.has_fewer_rows(end, since, pinned)
            actor.expect_error(error, since, fewer or is_stale)
        except RemoteError as error:
            states = history.list_possible(since)
            # A version that has been planned stays for a time.
            stays = history.name in actor.cluster.published and None not in states
            changed = len(states) > 1 and not stays
            actor.expect_error(error, since, changed or is_stale or version is not None, opened)
        except SplitArrowError as error:
            actor.expect_error(error, since, is_stale, opened)
        actor.think()


def _has_relayed(relay: Host, history: History, before: float) -> bool:
    """Return whether a relay, which runs, has certainly known a dataset before a time."""
    if history.was_dropped or relay.process is None:
        return False
    start, event = f"{relay.process.name}/", f"dataset relayed dataset={history.name}"
    return any(
        each.startswith(start) and event in text and when + FIRST_SECONDS < before
        for when, each, text in World.current.events
    )


def _wait_for_batch(actor: Actor, stream: Any) -> pa.RecordBatch | None:
    """Return the next batch of a stream, which must not take too long."""
    begin = World.current.now
    try:
        return next(stream, None)
    finally:
        seconds = World.current.now - begin
        # A batch may arrive twice.
        longest = _LONGEST_SECONDS + 2 * Network.current.estimate_seconds(_BATCH_BYTES)
        if actor.host.plan.is_relay:  # it waits for its upstream as well
            longest += _LONGEST_SECONDS
        if seconds > longest + _SLACK_SECONDS and not actor.process.was_paused:
            raise SimulationError(f"{actor.process.name} waited {seconds:.1f} s for a batch")


def intrude(actor: Actor) -> None:
    """Try what only the owner of a dataset may do."""
    name, random = actor.plan.dataset, actor.random
    other = "bob" if actor.principal == "alice" else "alice"
    token = actor.cluster.token(other)
    attempts: list[Callable[[Any], object]] = [
        lambda client: client.read(name).read_all(),
        lambda client: client.info(name),
        lambda client: client.schema(name),
        lambda client: client.put(name, make_rows(999, 0, 3), if_exists="replace"),
        lambda client: client.drop(name),
        lambda client: client.put_shard(name, make_rows(999, 0, 3), job="intruder", ordinal=0),
        lambda client: client.publish(name, job="job-1", ordinals=[0]),
        lambda client: client.discard(name, "job-1"),
        lambda client: _cancel_other(actor, client),
        lambda client: _cancel_other(actor, client),
        lambda _: _use_ticket_twice(actor),
    ]
    for _ in range(actor.plan.steps):
        since = World.current.now
        try:
            with splitarrow.connect(actor.host.uri, token) as client:
                with suppress(NotFoundError, DeniedError):
                    random.choice(attempts)(client)
                    raise SimulationError(f"{other} may use {name}")
                if name in [info.name for info in client.datasets()]:
                    raise SimulationError(f"{other} sees {name}")
                if any(each["dataset"] == name for each in client.status()["streams"]):
                    raise SimulationError(f"{other} sees the streams of {name}")
        except SplitArrowError as error:
            actor.expect_error(error, since)
        actor.think()


def _cancel_other(actor: Actor, client: Any) -> None:
    """Cancel a stream of the owner of the dataset, once there is one."""
    for _ in range(200):
        daemon = actor.host.daemon
        streams = [] if daemon is None else list(daemon.streams)
        for stream in streams:
            if stream.principal == actor.principal:
                client.act("cancel", json.dumps({"stream": stream.number}).encode())
                return
        time.sleep(0.01)
    raise NotFoundError("there was no stream")


def _use_ticket_twice(actor: Actor) -> None:
    """Let the owner of the dataset use a ticket twice, which must be refused."""
    with splitarrow.connect(actor.host.uri, actor.cluster.token(actor.principal)) as client:
        (endpoint,) = client.info(actor.plan.dataset).endpoints
        uri = next(each for each in endpoint.locations if each.startswith("tcp"))
        splitarrow.open(uri, endpoint.ticket).read_all()
        splitarrow.open(uri, endpoint.ticket).read_all()


def hold(actor: Actor) -> None:
    """Begin reads and do not go on with them, until the process ends."""
    history, random = actor.cluster.history(actor.plan.dataset), actor.random
    actor.wait_for(history)
    since = World.current.now
    try:
        with actor.connect() as client, ExitStack() as streams:
            for _ in range(actor.plan.steps):
                transport = random.choice(("tcp", "flight"))
                stream = client.read(history.name, transport=transport, prefetch_bytes=0)
                next(streams.enter_context(stream), None)
            time.sleep(random.uniform(0.0, 20.0))
    except SplitArrowError as error:
        actor.expect_error(error, since, True)


def check_final(actor: Actor) -> None:
    """Read every dataset once all faults are over: it has a state that is possible now."""
    cluster = actor.cluster
    for name, history in sorted(cluster.histories.items()):
        actor.principal = "bob" if name.startswith("bob") else "alice"
        owner = cluster.hosts[cluster.owners[name]]
        for host in [owner, *(host for host in cluster.hosts if host.plan.is_relay)]:
            end = World.current.now + (_FOLLOW_SECONDS if host.plan.is_relay else 0.0)
            while True:
                try:
                    _check_dataset(actor, host, history)
                    break
                except SimulationError:
                    if World.current.now >= end:
                        raise
                time.sleep(1.0)


def _check_dataset(actor: Actor, host: Host, history: History) -> None:
    """Read a dataset at a host, or at all daemons that share it."""
    cluster, name = actor.cluster, history.name
    shares = name in cluster.replicated and not host.plan.is_relay
    source: Any = [each.uri for each in cluster.origins] if shares else host.uri
    try:
        with splitarrow.connect(source, cluster.token(actor.principal)) as client:
            table = client.read(name).read_all().combine_chunks()
        history.check_read(table, Selection(), World.current.now)
        actor.record(f"finally read {table.num_rows} rows of {name} at {host.name}")
        if not host.plan.is_relay:
            _check_versions(actor, host, history)
    except NotFoundError as error:
        if None not in history.possible:
            raise SimulationError(f"{name} is lost at {host.name}: {error}") from error
        actor.record(f"{name} does not exist at {host.name}")
    except SplitArrowError as error:
        raise SimulationError(
            f"{name} cannot be read at {host.name} after all faults: {error}"
        ) from error


def _check_versions(actor: Actor, host: Host, history: History) -> None:
    """Read all versions: each has its rows, or it has been removed."""
    for version, pinned in history.versions.items():
        try:
            with splitarrow.connect(host.uri, actor.cluster.token(actor.principal)) as client:
                table = client.read(history.name, version=version).read_all().combine_chunks()
        except RemoteError as error:
            if "removed" not in str(error) and "never had the version" not in str(error):
                raise
        else:
            history.check_read(table, Selection(), World.current.now, pinned)


KINDS: dict[str, Callable[[Actor], None]] = {
    "upload": upload,
    "publish": publish,
    "read": read,
    "intrude": intrude,
    "hold": hold,
    "check": check_final,
}
