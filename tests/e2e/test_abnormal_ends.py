"""Whatever ends a stream, at any step: the daemon gets back everything that the stream held.

Each test opens readers of one daemon, ends them in one way, and observes the daemon from outside:
its metrics, its descriptors, mappings and file leases, and whether the next reader of the same
principal is served. The quick tests draw cases that cover each pair of properties.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import csv, flight
from pyarrow import parquet as pq

import splitarrow
from helpers.daemons import kill
from helpers.ending_peers import (
    PATIENCE,
    FlightPeer,
    Peer,
    Step,
    UcxPeer,
    Way,
    WirePeer,
    start_readers,
)
from helpers.files import write_file, write_shards, write_stream
from helpers.http_requests import request_over
from helpers.pki import Pki
from helpers.publication import publish
from helpers.waiting import wait_until
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import ExhaustedError
from splitarrow.filters import encode_filter
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.testing import Daemon

ROWS, BATCHES = 1 << 20, 8
RANDOM = np.random.default_rng(1)
COLUMNS: Any = {
    "n": pa.array(RANDOM.integers(-(1 << 63), 1 << 63, ROWS)),
    "x": pa.array(RANDOM.random(ROWS)),
}
TABLE = pa.Table.from_batches(pa.table(COLUMNS).to_batches(ROWS // BATCHES))
"""Its columns cannot be compressed, so that no stream fits into the buffers of a socket."""
SMALL_ROWS = 1 << 8
"""The rows of a batch where large bodies are not sent: a socket does not hold so many frames."""
FILTER = encode_filter("x > 0.1", TABLE.schema)
CACHE_BYTES = 24 << 20
EVICTING_ROWS = 4 << 20
RELEASE_SECONDS = 15.0
"""The longest time in which everything comes back: less than any timeout of the daemon."""

KINDS = ("tcp", "tcp+tls", "shm", "ucx", "flight")
SOURCES: dict[str, dict[str, Any]] = {
    "arrow": {"dataset": "arrow"},
    "stream": {"dataset": "stream"},
    "parquet": {"dataset": "parquet"},
    "vortex": {"dataset": "vortex"},
    "text": {"dataset": "text"},
    "folder": {"dataset": "folder"},
    "shard": {"dataset": "published", "shard": 0},
    "filtered": {"dataset": "parquet", "filter": FILTER},
    "projected": {"dataset": "arrow", "columns": ("x",)},
    "compressed": {"dataset": "arrow", "compression": "zstd"},
    "encoded": {"dataset": "arrow", "format": "vortex"},
}
"""What a reader requests."""


class Case(NamedTuple):
    """One reader, and its end."""

    kind: str
    source: str
    step: Step
    way: Way

    @property
    def is_possible(self) -> bool:
        kind, source, step, way = self
        if step is Step.LEASED and kind != "shm":
            return False
        if step is Step.WITHIN and kind in ("ucx", "flight"):
            return False
        if source == "encoded" and kind == "flight":
            return False
        if way in (Way.CANCEL, Way.TRUNCATE, Way.REMOVE) and step in (Step.CONNECTED, Step.ENDED):
            return False
        if way is Way.CANCEL and step is Step.LEASED:
            return False
        if way is Way.STALL and (
            step in (Step.LEASED, Step.ENDED) or (kind, step) == ("flight", Step.CONNECTED)
        ):
            return False
        if way in (Way.MALFORMED, Way.CUT, Way.SURPLUS) and kind in ("ucx", "flight"):
            return False
        if way is Way.SURPLUS and (kind != "shm" or step is Step.CONNECTED):
            return False
        return not (way is Way.VIOLATION and kind == "flight")

    def __str__(self) -> str:
        return " ".join(self)


POSSIBLE = [
    case for each in product(KINDS, SOURCES, Step, Way) if (case := Case(*each)).is_possible
]


def cover_pairs(cases: Sequence[Case]) -> list[Case]:
    """Return a few cases in which each possible pair of properties occurs."""

    def pairs_of(case: Case) -> set[Any]:
        return set(combinations(enumerate(case), 2))

    pairs = {case: pairs_of(case) for case in cases}
    left: set[Any] = set().union(*pairs.values())
    chosen: list[Case] = []
    while left:
        best = max(pairs, key=lambda case: len(pairs[case] & left))
        left -= pairs.pop(best)
        chosen.append(best)
    return chosen


class Site:
    """A daemon with all kinds of datasets, as operators and other processes see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pki = Pki(folder)
        keys = folder / "keys"
        key = os.urandom(32)
        keys.write_text(f"{key.hex()}\n")
        keys.chmod(0o600)
        self._signer = TicketSigner([key])
        self._datasets = dict(self._write_datasets())
        self._config = folder / "splitarrow.toml"
        self._write_config(self._datasets)
        self.daemon = Daemon(
            listen=["tcp://127.0.0.1:0", "tcp+tls://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"],
            control="grpc://127.0.0.1:0",
            http="http://127.0.0.1:0",
            config=self._config,
            ticket_key_file=keys,
            tls_cert=pki.path("server"),
            writable=folder / "uploads",
            max_streams_per_principal=2,
            filter_threads=1,
            shm_cache=CACHE_BYTES,
            vortex_cache=0,
            drain_seconds=60,
        )
        self.daemon.start()
        self._client = flight.FlightClient(self.daemon.control_uri)
        address = urlsplit(self.daemon.http_uri)
        self._http = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)

    def close(self) -> None:
        """End everything."""
        self._client.close()
        self._http.close()
        kill(self.daemon)

    def _write_datasets(self) -> Iterator[tuple[str, Path]]:
        folder, step = self.folder, ROWS // BATCHES
        yield "arrow", write_file(folder / "arrow.arrow", TABLE, batch_rows=step)
        yield "small", write_file(folder / "small.arrow", TABLE, batch_rows=SMALL_ROWS)
        yield "stream", write_stream(folder / "stream.arrows", TABLE.to_batches(step))
        pq.write_table(TABLE, folder / "parquet.parquet", row_group_size=step)
        yield "parquet", folder / "parquet.parquet"
        sink = open_sink(".vortex", folder / "vortex.vortex", TABLE.schema)
        for batch in TABLE.to_batches(step):
            sink.write(batch)
        sink.close()
        yield "vortex", folder / "vortex.vortex"
        csv.write_csv(TABLE, folder / "text.csv")
        yield "text", folder / "text.csv"
        write_shards(folder / "folder", [TABLE.slice(0, ROWS // 2), TABLE.slice(ROWS // 2)])
        yield "folder", folder / "folder"
        publish(VersionStore(folder / "published"), "job", TABLE)
        yield "published", folder / "published"
        large = pa.table({"n": pa.array(np.zeros(EVICTING_ROWS, "i8"))})
        yield "large", write_file(folder / "large.arrow", large, compression="lz4")

    def _write_config(self, datasets: dict[str, Path], **settings: float) -> None:
        lines = [f"{name} = {value}" for name, value in settings.items()]
        lines += ["[datasets]", *(f"{name} = '{path}'" for name, path in datasets.items())]
        self._config.write_text("\n".join(lines))

    @contextmanager
    def changed(self, *removed: str, **settings: float) -> Generator[None]:
        """Reload without some datasets, or with other settings, for the time of the context."""
        left = {name: path for name, path in self._datasets.items() if name not in removed}
        self._write_config(left, **settings)
        self.act("reload")
        try:
            yield
        finally:
            self._write_config(self._datasets)
            self.act("reload")

    def path(self, dataset: str) -> Path:
        """Return the file of a dataset; one of several."""
        path = self._datasets[dataset]
        return next(path.rglob("*.arrow")) if path.is_dir() else path

    def act(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Run an action of the control plane."""
        (result,) = self._client.do_action(flight.Action(name, json.dumps(arguments).encode()))
        return json.loads(result.body.to_pybytes())

    def ticket(self, principal: str, dataset: str, **request: Any) -> bytes:
        """Return a signed ticket."""
        return self._signer.sign(Request(dataset, **request), principal)

    def uri(self, scheme: str) -> DataUri:
        """Return the address of a listener."""
        return DataUri.parse(self.daemon.uri("arrow", scheme))

    def ticket_for(self, case: Case) -> bytes:
        """Return the ticket for a case, in the name of a principal of its own."""
        request = dict(SOURCES[case.source])
        if case.kind in ("shm", "ucx") and case.step not in (Step.LEASED, Step.ENDED):
            if request == {"dataset": "arrow"} or "format" in request:
                request["dataset"] = "small"  # sent unchanged, or encoded batch by batch
            else:
                request["batch_rows"] = SMALL_ROWS
        return self.ticket(str(case), **request)

    def connect(self, case: Case) -> Peer:
        """Connect a reader."""
        ticket = self.ticket_for(case)
        if case.kind == "flight":
            return FlightPeer(self.daemon.control_uri, ticket)
        if case.kind == "ucx":
            return UcxPeer(self.uri("ucx"), ticket)
        return WirePeer(self.uri(case.kind), ticket)

    def read(self, scheme: str, principal: str, dataset: str, **request: Any) -> int:
        """Return the rows that a stock client gets."""
        uri = self.uri(scheme).replace(ticket=self.ticket(principal, dataset, **request))
        with splitarrow.open(str(uri), stall_timeout=RELEASE_SECONDS) as stream:
            return sum(batch.num_rows for batch in stream)

    def streams(self) -> list[dict[str, Any]]:
        """Return the running streams."""
        answer = request_over(self._http, "/v1/streams")
        return json.loads(answer.text)["streams"]

    def metrics(self) -> Counter[str]:
        """Return the gauges that count what streams hold."""
        answer = request_over(self._http, "/metrics")
        assert answer.status == 200
        found = Counter[str]()
        for family in text_string_to_metric_families(answer.text):
            name = family.name.removeprefix("splitarrow_")
            if name in ("connections", "streams", "leases", "leased_bytes", "shared_memory_bytes"):
                found[name] += sum(int(sample.value) for sample in family.samples)
        return found

    def holdings(self) -> Counter[str]:
        """Return what the process holds, by name."""
        pid, found = self.daemon.pid, self.metrics()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                continue  # closed meanwhile
            if not target.startswith("anon_inode:"):
                target = target.partition(":")[0]
            found[f"descriptor {target}"] += 1
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            path = line.partition("/")[2]
            if path.startswith((str(self.folder)[1:], "memfd:")):
                found["mapping"] += 1
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "LEASE" and fields[4] == str(pid):
                found["file lease"] += 1
        found["uploads"] = len(list((self.folder / "uploads").glob(".upload-*")))
        return found

    def mapping_of(self, case: Case) -> Counter[str]:
        """Return what the daemon keeps for seconds after it has mapped what it sends over UCX."""
        paths = {str(self.path(name)) for name in datasets_of(case)}
        files = {f"descriptor {path}": 1 for path in paths}
        guard = {"descriptor socket": 2, "file lease": 1}
        return Counter({"descriptor /memfd": 1, "mapping": 1, **guard, **files})

    def check_released(self, before: Counter[str]) -> None:
        """Wait until the daemon holds no more than before."""
        # A stream that is larger than the cache evicts the others, unless they are in use.
        assert self.read("shm", "evicting", "large") == EVICTING_ROWS
        left = Counter[str]()

        def is_released() -> bool:
            nonlocal left
            left = self.holdings() - before
            return not left

        try:
            wait_until(is_released, seconds=RELEASE_SECONDS)
        except AssertionError:
            raise AssertionError(f"the daemon still holds {dict(left)}") from None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        # The first use of a library or file may open what stays.
        for kind, source in (*product(KINDS, ("parquet",)), *product(("tcp",), SOURCES)):
            peer = site.connect(Case(kind, source, Step.ENDED, Way.FIN))
            peer.advance(Step.ENDED)
            peer.close()
        site.read("tcp", "warming", "small")
        Group(site, cases_of(COVERING, Way.FIN)).warm_up()
        yield site
    finally:
        site.close()


class Group:
    """Readers of several cases that end in the same way."""

    def __init__(self, site: Site, cases: Sequence[Case]) -> None:
        self.site, self.cases = site, cases
        self.way = cases[0].way
        self._stack = ExitStack()
        self._companions: dict[Case, WirePeer] = {}
        self._peers: dict[Case, Peer] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._others: list[dict[str, Any]] = []

    def warm_up(self) -> None:
        """Connect all readers and leave, so that whatever is created once exists."""
        with self._stack:
            self._open()

    def run(self) -> None:
        """End all, and check what the daemon holds."""
        site = self.site
        with self._stack:
            wait_until(lambda: not site.metrics()["streams"])
            # A folder that was removed and made again is watched only after a while.
            wait_until(lambda: site.holdings()["descriptor anon_inode:inotify"] == 1, "a watch", 30)
            before = site.holdings()
            for case in self.cases:
                if case.kind == "ucx":
                    before += site.mapping_of(case)
            if self.way is Way.STALL:
                with site.changed(stall_seconds=0.3, handshake_seconds=2):
                    self._open()
                    wait_until(lambda: not site.metrics()["connections"], "the ends", 30)
            else:
                self._open_companions()
                self._others = self.site.streams()
                self._open()
                self._end()
                connections = before["connections"] + len(self.cases)
                wait_until(lambda: site.metrics()["connections"] <= connections, "the ends", 15)
            for peer in self._peers.values():
                peer.close()
            self._check_principals()
            for companion in self._companions.values():
                companion.reset()
            site.check_released(before)

    def _open_companions(self) -> None:
        """Let each principal evaluate a filter in another stream, which goes on."""
        for case in self.cases:
            self._companions[case] = self._open_companion(case)

    def _open_companion(self, case: Case) -> WirePeer:
        site = self.site
        ticket = site.ticket(str(case), "parquet", filter=FILTER)
        companion = WirePeer(site.uri("tcp"), ticket)
        self._stack.callback(companion.close)
        companion.advance(Step.BETWEEN)
        return companion

    def _open(self) -> None:
        for case in self.cases:
            if self.way is Way.KILL and case.kind in ("ucx", "flight"):
                continue
            peer = self._peers[case] = self.site.connect(case)
            self._stack.callback(peer.close)
            peer.advance(case.step)
        stock = [case for case in self.cases if case not in self._peers]
        if stock:
            site = self.site
            addresses = {"ucx": str(site.uri("ucx")), "flight": site.daemon.control_uri}
            readers = [
                (case.kind, addresses[case.kind], site.ticket_for(case).decode(), case.step.value)
                for case in stock
            ]
            self._processes.append(start_readers(readers))

    def _end(self) -> None:
        match self.way:
            case Way.KILL:
                self._kill()
            case Way.CANCEL:
                self._cancel()
            case Way.REMOVE:
                self._remove()
            case Way.TRUNCATE:
                self._truncate()
            case _:
                for peer in self._peers.values():
                    peer.leave(self.way)

    def _kill(self) -> None:
        for peer in self._peers.values():
            assert isinstance(peer, WirePeer)
            self._processes.append(peer.hand_over())
        for process in self._processes:
            process.kill()
            with process:
                pass

    def _cancel(self) -> None:
        site, others = self.site, {stream["stream"] for stream in self._others}
        count = len(others) + len(self.cases)
        wait_until(lambda: len(site.streams()) == count, "the beginning of all streams", 20)
        for stream in site.streams():
            if stream["stream"] not in others:
                site.act("cancel", stream=stream["stream"])
        wait_until(lambda: len(site.streams()) == len(others), "the end of the streams", 5)
        self._finish()

    def _remove(self) -> None:
        names = {name for case in self.cases for name in datasets_of(case)}
        with self.site.changed(*names - {"parquet"}):
            self._finish()

    def _truncate(self) -> None:
        """Cut the files while the readers wait, and put them back."""
        paths = [self.site.path(name) for case in self.cases for name in datasets_of(case)]
        contents = {path: path.read_bytes() for path in paths}
        threads = [
            threading.Thread(target=os.truncate, args=(path, len(contents[path]) // 2))
            for path in contents
        ]
        try:
            for thread in threads:
                thread.start()  # it waits until the daemon gives up its lease of the file
            for thread in threads:
                thread.join()
            self._finish()
        finally:
            for path, content in contents.items():
                beside = path.with_name("whole")
                beside.write_bytes(content)
                beside.rename(path)
            self.site.act("reload")

    def _finish(self) -> None:
        for case, peer in self._peers.items():
            check_rows(case, peer.finish())
            peer.close()

    def _check_principals(self) -> None:
        """Read again in the name of each case: its principal may have two streams."""
        for case in self.cases:
            if case not in self._companions:
                self._companions[case] = self._open_companion(case)
            wait_until(lambda case=case: self._reads_again(case), f"another stream for {case}", 10)

    def _reads_again(self, case: Case) -> bool:
        try:
            rows = self.site.read("tcp", str(case), "parquet", filter=FILTER, limit=100)
        except ExhaustedError:
            return False
        assert rows == 100
        return True


def datasets_of(case: Case) -> Iterator[str]:
    """Yield the datasets that a case may read."""
    dataset = SOURCES[case.source]["dataset"]
    yield dataset
    if dataset == "arrow":
        yield "small"


def check_rows(case: Case, found: pa.Table | None) -> None:
    """Check that a reader got the first rows of its stream, and nothing else."""
    if found is None:
        return
    expected = TABLE.filter(pc.field("x") > 0.1) if case.source == "filtered" else TABLE
    expected = expected.select(found.column_names)
    assert found == expected.slice(0, found.num_rows), case


def cases_of(cases: Iterable[Case], way: Way) -> list[Case]:
    return [case for case in cases if case.way is way]


COVERING = cover_pairs(POSSIBLE)


@pytest.mark.slow
@pytest.mark.xdist_group("abnormal_ends")
@pytest.mark.parametrize("way", Way)
def test_everything_comes_back(site: Site, way: Way) -> None:
    Group(site, cases_of(COVERING, way)).run()


@pytest.mark.long
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", Step)
def test_everything_comes_back_in_all_cases(site: Site, kind: str, step: Step, way: Way) -> None:
    cases = [case for case in cases_of(POSSIBLE, way) if case[0] == kind and case.step is step]
    if cases:
        Group(site, cases).run()


FULL = 24 << 10
"""The bytes of the dataset that these readers lease, and the most that their user may lease."""
LEASED = pa.Table.from_batches(
    [pa.record_batch({name: pa.array(np.zeros(1 << 7)) for name in "abc"}) for _ in range(8)]
)


@contextmanager
def serving_leases(folder: Path, **settings: Any) -> Generator[splitarrow.Server]:
    """Serve a table over shared memory, all of which one user may lease once."""
    listen = [f"shm://{folder}/socket"]
    with splitarrow.serve({"data": LEASED}, listen=listen, **settings) as server:
        yield server


@pytest.mark.parametrize("way", [None, Way.FIN, Way.RESET, Way.VIOLATION, Way.SURPLUS])
def test_the_end_of_a_reader_wakes_a_stream_that_waits_for_its_leases(
    tmp_path: Path, way: Way | None
) -> None:
    """Without a way, the reader frees its leases and stays."""
    with serving_leases(tmp_path, max_leased=FULL, lease_seconds=PATIENCE) as server:
        uri = DataUri.parse(server.uri("data"))
        holder, waiter = (WirePeer(uri, b"data") for _ in range(2))
        try:
            holder.advance(Step.LEASED)
            waiter.advance(Step.REQUESTED)
            freed = server._daemon.regions.freed  # pyright: ignore[reportPrivateUsage]
            wait_until(lambda: freed.statistics().tasks_waiting == 1, "a stream without room")
            if way is None:
                holder.free_all()
            else:
                holder.leave(way)
            begin = time.monotonic()
            assert waiter.finish() is None
            assert waiter.is_complete
            assert time.monotonic() - begin < PATIENCE / 2
        finally:
            for peer in (holder, waiter):
                peer.close()


@pytest.mark.parametrize("step", [Step.CONNECTED, Step.REQUESTED])
@pytest.mark.parametrize("way", [Way.FIN, Way.RESET, Way.VIOLATION, Way.MALFORMED, Way.CUT])
def test_connections_beyond_the_limit_give_their_descriptors_back(step: Step, way: Way) -> None:
    """A dozen such connections at a time are refused in words."""
    with splitarrow.serve({"data": LEASED}, max_connections=1) as server:
        uri = DataUri.parse(server.uri("data"))
        with WirePeer(uri, b"data").socket:
            wait_until(lambda: server.stats()["connections"] == 1)
            for _ in range(13):
                peer = WirePeer(uri, b"data")
                peer.advance(step)
                wait_until(lambda: server.stats()["connections"] == 2)
                peer.leave(way)
                wait_until(lambda: server.stats()["connections"] == 1)
                peer.close()
            with pytest.raises(ExhaustedError, match="limit of connections"):
                splitarrow.open(str(uri))
