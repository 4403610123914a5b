"""What many hosts need: which bytes daemons and relays send, and what control calls take.

``python -m splitarrow.benchmarks.studies.scale`` prints Markdown tables of a simulation without
sockets. Its shards have one size. The placement, the eviction and the order of shards are those of
daemons, relays and loaders. All readers open a shard in each step, and announce two epochs; a relay
that serves other relays gets no announcements. Nothing is fetched ahead.

``--measure SHARDS …`` measures a daemon instead: the processor time of control calls, by the number
of shards, and the memory of clients that only connect.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa

from ... import connect
from ...client.cluster.publication import assign_shards, choose_nodes
from ...publication.version_store import VersionStore
from ...pytorch.order import Division, EpochOrder, Share, Spans
from ...server.catalog.eviction import EvictionPolicy
from ...testing import Daemon
from ..machine import process_seconds, read_memory

Layout = Literal["no relays", "a relay per host", "peers", "rack relays"]
"""What is between readers and storage."""
LAYOUTS: tuple[Layout, ...] = ("no relays", "a relay per host", "peers", "rack relays")
SHARES = (0.2, 0.5, 1.0)
"""The sizes of caches, as parts of the dataset."""
RACK_HOSTS = 40
_ROWS = 16
"""The rows of a shard."""
_RANKED = 16
"""How many relays are ranked for a shard. Later ones hardly ever fetch it from storage."""
_MIN_SHARDS = 200
_ALONE_HOSTS = (10, RACK_HOSTS)
_ALONE_SHARDS = 100
_NAME = "data"
_COLUMNS = (
    "hosts",
    "layout",
    "cache",
    "read",
    "storage, first epoch",
    "storage, last epoch",
    "busiest daemon / mean",
    "busiest relay",
)
_CONTROL = "grpc://127.0.0.1:0"
_CALLERS = 2
CALLS = ("relay", "versions", "one shard", "listing")
"""A relay polls the first two. A reader of one shard makes the third; the last describes all."""
_CALLER = """
import sys, time
from splitarrow import connect
from splitarrow.errors import RemoteError
from splitarrow.protocol.request import Request

uri, call, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with connect(uri) as client:
    print(flush=True)
    sys.stdin.readline()
    calls, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if call in ("relay", "versions"):
            try:
                client.act(call)
            except RemoteError:
                pass  # it is not a relay
        elif call == "one shard":
            client.describe(Request("data", shard=0))
        else:
            client.datasets()
        calls += 1
    print(calls, flush=True)
"""
_CONNECTOR = """
import sys
from splitarrow import connect
from splitarrow.benchmarks.machine import read_memory

first = connect(sys.argv[1])
before = read_memory("self").anonymous
clients = [connect(sys.argv[1]) for _ in range(int(sys.argv[2]))]
print(read_memory("self").anonymous - before, flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """The hosts, their readers, the relays and the storage."""

    hosts: int
    shards: int
    layout: Layout = "no relays"
    readers: int = 1
    """The readers of each host."""
    ranks: int = 1
    """The readers that share the shards of an epoch: those of one job."""
    daemons: int = 1
    """The daemons that have the shards, each in one place."""
    share: float = 1.0
    """The size of each cache, as a part of the dataset."""
    listed: float = 1.0
    """The part of the other relays that each relay has in its list of peers."""
    failed: float = 0.0
    """The part of the relays that serve no peers."""


class Traffic(NamedTuple):
    """What was sent in an epoch, in datasets."""

    read: float
    """By all readers together."""
    storage: float
    """By all storage daemons together."""
    busiest: float
    """By the storage daemon that sent most."""
    relay: float
    """By the relay that sent most to its readers and to other relays."""


class _Cache:
    """The cache of a relay. A shard has one byte."""

    def __init__(self, nbytes: int, fetch: Callable[[str], None]) -> None:
        self.policy = EvictionPolicy(nbytes)
        self.sent = 0
        self._nbytes = nbytes
        self._fetch = fetch

    def open(self, shard: str) -> None:
        """Serve a shard, after fetching it if it is not in the cache."""
        self.sent += 1
        if shard in self.policy.sizes:
            self.policy.use(shard, 1)
            return
        excess = len(self.policy.sizes) + 1 - self._nbytes
        for victim in self.policy.make_room(excess, ()) or ():
            self.policy.remove(victim)
        self.policy.use(shard, 1)
        self._fetch(shard)
        self.policy.add(shard, 1)


class Simulation:
    """The traffic of epochs, one after the other."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._keys = [f"{_NAME}/{index}" for index in range(case.shards)]
        self._sizes = dict.fromkeys(self._keys, 1)
        placed = _place(case.shards, case.daemons)
        self._places = dict(zip(self._keys, placed, strict=True))
        self._sent: Counter[str] = Counter()
        nbytes = max(1, int(case.share * case.shards))
        racks = [
            _Cache(nbytes, self._send_from_storage)
            for _ in range(-(-case.hosts // RACK_HOSTS) if case.layout == "rack relays" else 0)
        ]
        self._racks = racks
        self._hosts: list[_Cache] = []
        self._names = [str(host) for host in range(case.hosts)]
        for host in range(case.hosts if case.layout != "no relays" else 0):
            fetch = self._send_from_storage
            if racks:
                fetch = racks[host // RACK_HOSTS].open
            elif case.layout == "peers":
                fetch = self._make_peer_fetch(host)
            self._hosts.append(_Cache(nbytes, fetch))

    def run(self, epochs: int) -> list[Traffic]:
        """Return the traffic of each epoch."""
        found: list[Traffic] = []
        orders = self._list_orders(0)
        for epoch in range(epochs):
            following = self._list_orders(epoch + 1)
            self._sent.clear()
            relays = [*self._hosts, *self._racks]
            for relay in relays:
                relay.sent = 0
            self._announce(orders, following)
            read = self._read(orders)
            shards = self._case.shards
            found.append(
                Traffic(
                    read / shards,
                    self._sent.total() / shards,
                    max(self._sent.values(), default=0) / shards,
                    max((relay.sent for relay in relays), default=0) / shards,
                )
            )
            orders = following
        return found

    def _list_orders(self, epoch: int) -> list[list[str]]:
        """Return the shards that each reader opens, in order."""
        case = self._case
        count = case.hosts * case.readers
        jobs = (
            order_shards(case.shards, case.ranks, seed, epoch)
            for seed in range(-(-count // case.ranks))
        )
        orders = [order for job in jobs for order in job][:count]
        return [[self._keys[shard] for shard in order] for order in orders]

    def _announce(self, orders: list[list[str]], following: list[list[str]]) -> None:
        for reader, (now, later) in enumerate(zip(orders, following, strict=True)):
            if self._hosts:
                policy = self._hosts[reader // self._case.readers].policy
                policy.announce(("", str(reader)), [*now, *later], self._sizes)

    def _read(self, orders: list[list[str]]) -> int:
        """Let all readers open their shards in turns; return how many they opened."""
        opened = 0
        for step in range(max(map(len, orders))):
            for reader, order in enumerate(orders):
                if step < len(order):
                    opened += 1
                    if self._hosts:
                        self._hosts[reader // self._case.readers].open(order[step])
                    else:
                        self._send_from_storage(order[step])
        return opened

    def _send_from_storage(self, shard: str) -> None:
        self._sent[self._places[shard]] += 1

    def _make_peer_fetch(self, host: int) -> Callable[[str], None]:
        """Return what fetches a shard for a relay from the first peer that it knows, or storage."""
        case, own = self._case, str(host)
        failures = np.random.default_rng(0).random(case.hosts) < case.failed
        lists = np.random.default_rng(host).random(case.hosts) < case.listed
        known = {str(peer) for peer in np.flatnonzero(lists & ~failures)}

        def fetch(shard: str) -> None:
            before = takewhile(lambda peer: peer != own, _rank(shard, case.hosts))
            first = next((peer for peer in before if peer in known), None)
            if first is None:
                self._send_from_storage(shard)
            else:
                self._hosts[int(first)].open(shard)

        return fetch


def order_shards(shards: int, ranks: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the shards that the loader of each rank of a job opens in an epoch, in order."""
    order = EpochOrder([_ROWS] * shards, seed, epoch, shuffle=True)
    rows, division = Spans([(0, len(order))]), Division(ranks, 1, 1, "drop")
    return [Share(rows, division, rank).list_blocks(order, [0], 0) for rank in range(ranks)]


@cache
def _place(shards: int, daemons: int) -> list[str]:
    """Return the daemon of each shard."""
    nodes = [f"grpc://storage{index}" for index in range(daemons)]
    return [first for (first,) in assign_shards(_NAME, shards, nodes)]


@cache
def _rank(shard: str, relays: int) -> list[str]:
    """Return the relays that rank first for a shard, best first."""
    return choose_nodes(shard, [str(index) for index in range(relays)], min(_RANKED, relays))


def measure_skew(shards: int, daemons: int) -> float:
    """Return how many times the mean the daemon with the most shards has."""
    return max(Counter(_place(shards, daemons)).values()) * daemons / shards


def simulate(hosts: Sequence[int], epochs: int) -> None:
    """Print the tables of the simulation."""
    print("Shards of the daemon with most, as a multiple of the mean:\n")
    daemons = (10, 100, 400)
    _print_heading("shards", *(f"{count} daemons" for count in daemons))
    for shards in (1_000, 10_000):
        _print_row(shards, *(f"{measure_skew(shards, count):.2f}" for count in daemons))

    print("\nAll hosts share each epoch, as the ranks of one job do. In datasets per epoch:\n")
    _print_heading(*_COLUMNS)
    for count in hosts:
        shards = max(_MIN_SHARDS, 2 * count)
        _print_cases(Case(count, shards, readers=1, ranks=count, daemons=shards // 40), epochs)

    print("\nEach of 10 readers of a host reads everything. In datasets per epoch:\n")
    _print_heading(*_COLUMNS)
    for count in _ALONE_HOSTS:
        _print_cases(Case(count, _ALONE_SHARDS, readers=10, daemons=_ALONE_SHARDS // 40), 1)

    print("\nDatasets that storage sends to peers which read everything once:\n")
    _print_heading("hosts", "listed", "failed", "storage")
    for listed, failed in ((1, 0), (0.9, 0), (0.5, 0), (1, 0.01), (1, 0.1), (0.9, 0.1)):
        case = Case(100, 400, "peers", readers=1, listed=listed, failed=failed)
        (traffic,) = Simulation(case).run(1)
        _print_row(case.hosts, f"{listed:.0%}", f"{failed:.0%}", f"{traffic.storage:.2f}")


def _print_cases(case: Case, epochs: int) -> None:
    """Print a row for each layout, and for each size of its caches."""
    for layout in LAYOUTS:
        for share in SHARES if layout != "no relays" else (0.0,):
            run = Simulation(replace(case, layout=layout, share=share)).run(epochs)
            _print_row(
                case.hosts,
                layout,
                f"{share:.0%}",
                f"{run[-1].read:.2f}",
                f"{run[0].storage:.2f}",
                f"{run[-1].storage:.2f}",
                f"{run[0].busiest / run[0].storage * case.daemons:.2f}",
                f"{max(traffic.relay for traffic in run):.4f}",
            )


class CallCost(NamedTuple):
    """What a call of the control plane takes."""

    per_second: float
    """The calls per second of all callers together."""
    seconds: float
    """The processor time of the daemon for one call."""


def measure(all_shards: Sequence[int], seconds: float, clients: int) -> None:
    """Print what calls and connected clients take at a daemon."""
    print("Calls of two processes, for datasets of so many shards:\n")
    _print_heading("shards", "call", "calls/s", "daemon, ms/call", "listing, KB")
    for shards in all_shards:
        with serve_shards(shards) as daemon, connect(daemon.control_uri) as client:
            nbytes = sum(map(len, client.channel.call_stream("ListFlights", b"")))
            for call in CALLS:
                cost = measure_call(daemon, call, seconds)
                rate, spent = f"{cost.per_second:,.0f}", f"{1000 * cost.seconds:.2f}"
                _print_row(f"{shards:,}", call, rate, spent, f"{nbytes / 1000:,.0f}")
    with serve_shards(1) as daemon:
        served, connected = measure_connections(daemon, clients)
    print(f"\n{clients} clients: {served / 1000:.0f} KB each at the daemon, ", end="")
    print(f"{connected / 1000:.0f} KB at the clients")


def measure_call(daemon: Daemon, call: str, seconds: float) -> CallCost:
    """Return what a call takes while two processes make it again and again."""
    with ExitStack() as stack:
        arguments = [_CALLER, daemon.control_uri, call, str(seconds)]
        callers = [stack.enter_context(_Child(*arguments)) for _ in range(_CALLERS)]
        before = process_seconds(daemon.pid)
        for caller in callers:
            caller.write_line()
        calls = sum(int(caller.read_line()) for caller in callers)
        return CallCost(calls / seconds, (process_seconds(daemon.pid) - before) / calls)


def measure_connections(daemon: Daemon, clients: int) -> tuple[float, float]:
    """Return the memory of a connected client at the daemon and at the client, in bytes."""
    with connect(daemon.control_uri), _Child(_CONNECTOR, daemon.control_uri, "1") as first:
        before = read_memory(daemon.pid).anonymous or 0
        with _Child(_CONNECTOR, daemon.control_uri, str(clients)) as child:
            after = read_memory(daemon.pid).anonymous or 0
            return (after - before) / clients, (int(child.line) - int(first.line)) / clients


class _Child:
    """A process that writes a line once it is ready, and ends when its input does."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self.line = self.read_line()
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()

    def write_line(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def serve_shards(shards: int) -> Generator[Daemon]:
    """Serve a dataset of some small shards."""
    with TemporaryDirectory(prefix="splitarrow-scale-") as folder:
        store, batch = VersionStore(folder), pa.record_batch({"x": pa.array([1.0])})
        entries = [
            store.write_shard("first", f"{index}.arrow", batch.schema, [batch])
            for index in range(shards)
        ]
        store.commit("first", batch.schema, entries, append=False)
        with Daemon({_NAME: folder}, control=_CONTROL) as daemon:
            yield daemon


def _print_heading(*columns: str) -> None:
    _print_row(*columns)
    _print_row(*["---:"] * len(columns))


def _print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    """Print the tables of the simulation, or those of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the job of all hosts")
    parser.add_argument("--measure", type=int, nargs="+", metavar="SHARDS", help="measure a daemon")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each kind of call")
    parser.add_argument("--clients", type=int, default=500, help="clients that only connect")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.seconds, options.clients)
    else:
        simulate(options.hosts, options.epochs)


if __name__ == "__main__":
    main()
