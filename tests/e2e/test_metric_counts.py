"""Every exported metric has the value that an independent count of a fixed workload predicts."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from cryptography.x509 import load_pem_x509_certificate
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import flight
from pyarrow import parquet as pq

import splitarrow
from helpers.daemons import StartDaemon
from helpers.ending_peers import Step, Way, WirePeer
from helpers.files import write_file
from helpers.http_requests import request
from helpers.pki import Pki
from helpers.publication import publish
from helpers.waiting import wait_until
from splitarrow.errors import DeniedError, ExhaustedError, NotFoundError, SplitArrowError
from splitarrow.filters import encode_filter
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.testing import Daemon
from splitarrow.transport.tls_options import TlsOptions

Range = tuple[float, float]
"""The least and the largest possible value."""
Series = tuple[str, frozenset[tuple[str, str]]]
"""The name of a sample and its labels."""

ROWS, BATCHES = 40_000, 10
TABLE = pa.table({"n": pa.array(range(ROWS), pa.int64())})
BIG_ROWS, BIG_BATCH = 4_000_000, 40_000
BIG_BYTES = 8 * BIG_ROWS
MAX_LEASED = 1_000_000
TOKEN = "operator-of-a-token-0123456789"
MAX_PER_ADDRESS = 12
WAIT_SECONDS = 0.3
BUCKETS = {
    "first_batch_seconds": "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf",
    "stream_seconds": "0.01 0.1 1 10 60 600 3600 +Inf",
}


def series(name: str, **labels: str) -> Series:
    return f"splitarrow_{name}", frozenset(labels.items())


class Workload:
    """What the clients of one daemon do, and what they count."""

    def __init__(self, daemon: Daemon, signer: TicketSigner, pki: Pki, config: Path) -> None:
        self.daemon, self.pki, self.config = daemon, pki, config
        self._signer = signer
        self.begun = time.monotonic()
        self.ranges = dict[Series, Range]()
        self.client = flight.FlightClient(daemon.control_uri)
        header: Any = (b"authorization", f"Bearer {TOKEN}".encode())
        self._options = flight.FlightCallOptions(headers=[header])

    def add(self, name: str, amount: float | Range = 1, **labels: str) -> None:
        """Expect a sample to be larger by an amount."""
        low, high = (amount, amount) if isinstance(amount, (int, float)) else amount
        key = series(name, **labels)
        before = self.ranges.get(key, (0, 0))
        self.ranges[key] = before[0] + low, before[1] + high

    def add_stream(
        self,
        dataset: str,
        transport: str,
        outcome: str,
        *,
        rows: float | Range,
        messages: float | Range,
        sent: float | Range,
        mapped: float = 0,
        waited: Range = (0, 0),
    ) -> None:
        """Expect what one stream adds that has ended."""
        labels = {"dataset": dataset, "transport": transport}
        self.add("streams", 0, **labels)
        self.add("streams_started_total", 1, **labels)
        self.add("streams_ended_total", 1, outcome=outcome, **labels)
        self.add("sent_rows_total", rows, **labels)
        self.add("sent_bytes_total", sent, **labels)
        self.add("mapped_bytes_total", mapped, **labels)
        self.add("mapped_bytes", mapped)
        self.add("sent_messages_total", messages)
        self.add("reader_wait_seconds_total", (waited[0], waited[1] + 60), **labels)
        for name, bounds in BUCKETS.items():
            if rows == 0 and name == "first_batch_seconds":
                continue
            self.add(f"{name}_count", transport=transport)
            self.add(f"{name}_sum", (0, 60), transport=transport)
            for bound in bounds.split():
                amount = 1 if bound == "+Inf" else (0, 1)
                self.add(f"{name}_bucket", amount, transport=transport, le=bound)

    def ticket(self, dataset: str, **fields: Any) -> bytes:
        """Return a signed ticket."""
        return self._signer.sign(Request(dataset, **fields), "operator")

    def listener(self, scheme: str) -> DataUri:
        """Return the address of a listener."""
        return DataUri.parse(self.daemon.uri("numbers", scheme))

    def open(self, scheme: str, dataset: str, **fields: Any) -> Any:
        """Open a stream of the stock client."""
        uri = self.listener(scheme).replace(ticket=self.ticket(dataset, **fields))
        self.add("accepted_connections_total")
        return splitarrow.open(str(uri), tls=TlsOptions(ca_file=self.pki.path("ca")))

    def read(self, scheme: str, dataset: str, **fields: Any) -> pa.Table:
        """Read a stream to its end, and count it."""
        with self.open(scheme, dataset, **fields) as stream:
            table = stream.read_all()
        mapped = 0
        size: float | Range = stream.bytes_received
        if scheme == "shm":
            mapped = sum(chunk.nbytes for chunk in table["n"].chunks)
            size = stream.bytes_received - mapped
        elif scheme != "tcp":  # the channel counts other bytes than those of frames
            size = (table.nbytes if scheme == "tcp+tls" else 0, 1.1 * table.nbytes + 20_000)
        chunks = len(table["n"].chunks)
        self.add_stream(
            dataset,
            scheme,
            "complete",
            rows=table.num_rows,
            messages=1 + chunks,
            mapped=mapped,
            sent=size,
        )
        return table

    def do_get(self, dataset: str) -> Iterator[bytes]:
        """Yield the messages of a stream of Flight."""
        ticket = flight.Ticket(self.ticket(dataset)).serialize()
        metadata = (("authorization", f"Bearer {TOKEN}"),)
        with grpc.insecure_channel(self.daemon.control_uri.partition("://")[2]) as channel:
            method = channel.unary_stream("/arrow.flight.protocol.FlightService/DoGet")
            yield from method(ticket, metadata=metadata)

    def act(self, name: str, body: bytes = b"") -> dict[str, Any]:
        """Run an action of the control plane."""
        (result,) = self.client.do_action(flight.Action(name, body), self._options)
        return json.loads(result.body.to_pybytes())

    def running(self) -> list[dict[str, Any]]:
        """Return the running streams."""
        return self.act("status")["streams"]

    def wait_idle(self) -> None:
        """Wait until the daemon has noticed the end of everything."""
        wait_until(lambda: not self.act("status")["stats"]["connections"])


def read_over_each_transport(work: Workload) -> None:
    for scheme in ("tcp", "tcp+tls", "shm", "ucx"):
        assert work.read(scheme, "numbers") == TABLE
    sizes = [len(message) for message in work.do_get("numbers")]
    work.add_stream(
        "numbers", "flight", "complete", rows=ROWS, messages=1 + BATCHES, sent=sum(sizes)
    )


def read_parts(work: Workload) -> None:
    where = encode_filter("n < 6000", TABLE.schema)
    assert work.read("tcp", "numbers", filter=where).num_rows == 6000
    assert work.read("tcp", "numbers", limit=10).num_rows == 10
    assert work.read("tcp", "published", shard=0) == TABLE


def use_caches(work: Workload) -> None:
    """The second reader finds what was made for the first one."""
    for use in ("misses", "hits"):
        assert work.read("shm", "rows") == TABLE
        work.add(f"cache_{use}_total", cache="shared_memory")
        assert work.read("tcp", "rows", format="vortex") == TABLE
        work.add(f"cache_{use}_total", cache="vortex")
    # A copy of the Parquet file, and its encoding in Vortex, which is small.
    nbytes = scrape(work.daemon)[series("shared_memory_bytes")]
    assert 8 * ROWS <= nbytes <= 8 * ROWS + 10_000


def leave(work: Workload) -> None:
    """One reader leaves in the middle of a stream, and another breaks the protocol."""
    for way in (Way.RESET, Way.VIOLATION):
        peer = WirePeer(work.listener("tcp"), work.ticket("big"))
        work.add("accepted_connections_total")
        peer.advance(Step.BETWEEN)
        peer.leave(way)
        wait_until(lambda: not work.running())
        peer.close()
        batches = BIG_ROWS // BIG_BATCH
        # The kernel took more than the reader.
        work.add_stream(
            "big",
            "tcp",
            "disconnected",
            rows=(0, BIG_ROWS),
            messages=(2, 1 + batches),
            sent=(8 * BIG_BATCH, BIG_BYTES),
        )
    work.add("protocol_errors_total")


def cancel_a_stream(work: Workload) -> None:
    """The stream waits for its reader before."""
    with work.open("tcp", "big") as stream:
        next(stream)
        (running,) = work.running()
        before = scrape(work.daemon)
        assert before[series("streams", dataset="big", transport="tcp")] == 1
        assert before[series("connections")] == 1
        time.sleep(WAIT_SECONDS)
        work.act("cancel", json.dumps({"stream": running["stream"]}).encode())
        with pytest.raises(SplitArrowError):
            stream.read_all()
    batches = BIG_ROWS // BIG_BATCH
    work.add_stream(
        "big",
        "tcp",
        "cancelled",
        rows=(0, BIG_ROWS),
        messages=(2, 1 + batches),
        sent=(8 * BIG_BATCH, BIG_BYTES),
        waited=(WAIT_SECONDS, 60),
    )


def hold_leases(work: Workload) -> None:
    """A reader holds all that it may, so that its stream fails, and frees what it does not hold."""
    lent = MAX_LEASED // (8 * BIG_BATCH)
    with work.open("shm", "big") as stream:
        held = [next(stream) for _ in range(lent)]
        with pytest.raises(ExhaustedError, match="max-leased"):
            next(stream)
        size = stream.bytes_received - lent * 8 * BIG_BATCH
    work.add_stream(
        "big",
        "shm",
        "failed",
        rows=lent * BIG_BATCH,
        messages=1 + lent,
        mapped=lent * 8 * BIG_BATCH,
        sent=(0, size),
    )
    del held
    peer = WirePeer(work.listener("shm"), work.ticket("numbers"))
    work.add("accepted_connections_total")
    peer.advance(Step.LEASED)
    wait_until(lambda: scrape(work.daemon)[series("oldest_lease_seconds")] == 1)
    now = scrape(work.daemon)
    assert (now[series("leases")], now[series("leased_bytes")]) == (BATCHES, 8 * ROWS)
    peer.leave(Way.SURPLUS)
    wait_until(lambda: scrape(work.daemon)[series("leases")] == 0)
    peer.close()
    work.add_stream(
        "numbers",
        "shm",
        "complete",
        rows=ROWS,
        messages=1 + BATCHES,
        mapped=8 * ROWS,
        sent=(0, 20_000),
    )
    work.add("bad_frees_total", 1001)
    work.add("protocol_errors_total")


def be_refused(work: Workload) -> None:
    with pytest.raises(NotFoundError):
        work.open("tcp", "nothing")
    with pytest.raises(NotFoundError):
        work.open("tcp", "numbers", columns=("no",))
    work.add("refused_requests_total", 2, plane="data", reason="not_found")
    work.add_stream("numbers", "tcp", "failed", rows=0, messages=0, sent=(0, 1000))
    used = work.ticket("numbers", limit=0)
    uri = str(work.listener("tcp").replace(ticket=used))
    work.add("accepted_connections_total", 2)
    with splitarrow.open(uri) as stream:
        assert stream.read_all().num_rows == 0
    work.add_stream(
        "numbers", "tcp", "complete", rows=0, messages=(1, 2), sent=stream.bytes_received
    )
    with pytest.raises(DeniedError):
        splitarrow.open(uri)
    work.add("refused_requests_total", plane="data", reason="unauthenticated")
    with pytest.raises(pa.ArrowNotImplementedError):
        work.act("nothing")
    work.add("refused_requests_total", plane="control", reason="unimplemented")
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(work.client.list_flights())
    work.add("refused_requests_total", plane="control", reason="unauthenticated")
    assert request(work.daemon.http_uri, "/metrics").status == 401
    work.add("refused_requests_total", plane="http", reason="unauthenticated")


def connect_too_often(work: Workload) -> None:
    work.wait_idle()
    address = "127.0.0.9"
    kept = [
        WirePeer(work.listener("tcp"), work.ticket("numbers"), address)
        for _ in range(MAX_PER_ADDRESS)
    ]
    wait_until(lambda: scrape(work.daemon)[series("connections")] == MAX_PER_ADDRESS)
    extra = WirePeer(work.listener("tcp"), work.ticket("numbers"), address)
    extra.advance(Step.REQUESTED)
    assert extra.finish() is None
    for peer in (*kept, extra):
        peer.close()
    work.add("accepted_connections_total", MAX_PER_ADDRESS + 1)
    work.add("refused_connections_total")
    work.add("refused_requests_total", plane="data", reason="resource_exhausted")


def change_datasets(work: Workload) -> None:
    """Upload, publish, and reload with a valid configuration and another one."""
    path = flight.FlightDescriptor.for_path("uploaded")
    writer, _ = work.client.do_put(path, TABLE.schema, work._options)
    with writer:
        writer.write_table(TABLE)
    work.add("datasets")
    publish(VersionStore(work.config.parent / "published"), "again", TABLE)
    key = series("dataset_version", dataset="published")
    wait_until(lambda: scrape(work.daemon)[key] == 2)
    work.add("dataset_version", dataset="published")
    text = work.config.read_text()
    work.config.write_text("stall_seconds = 0")
    with pytest.raises(pa.ArrowException):
        work.act("reload")
    work.add("reloads_total", result="failure")
    work.add("refused_requests_total", plane="control", reason="failed_precondition")
    assert scrape(work.daemon)[series("last_reload_successful")] == 0
    work.config.write_text(text)
    before = time.time()
    work.act("reload")
    work.add("reloads_total", result="success")
    work.add("last_reload_success_timestamp_seconds", (before, time.time()))


WORK: tuple[Callable[[Workload], None], ...] = (
    read_over_each_transport,
    read_parts,
    use_caches,
    leave,
    cancel_a_stream,
    hold_leases,
    be_refused,
    connect_too_often,
    change_datasets,
)


def scrape(daemon: Daemon) -> dict[Series, float]:
    """Return all samples."""
    answer = request(daemon.http_uri, "/metrics", token=TOKEN)
    assert answer.status == 200, answer
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def measure(pid: int) -> dict[str, float]:
    """Return what the kernel reports of a process."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return {
        "process_open_fds": len(os.listdir(folder / "fd")),
        "process_max_fds": resource.prlimit(pid, resource.RLIMIT_NOFILE)[0],
        "process_resident_memory_bytes": int((folder / "statm").read_text().split()[1])
        * resource.getpagesize(),
        "process_cpu_seconds_total": sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"),
    }


SLACK = {
    "process_open_fds": 2,
    "process_max_fds": 0,
    "process_resident_memory_bytes": 32 << 20,
    "process_cpu_seconds_total": 0.05,
}
"""By how much the figures of a process change during a request."""


@pytest.mark.slow
def test_every_metric_has_the_value_of_an_independent_count(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    pki, key = Pki(tmp_path), os.urandom(32)
    (tmp_path / "keys").write_text(f"{key.hex()}\n")
    (tmp_path / "tokens").write_text(
        f'[[tokens]]\nname = "operator"\ntoken = "{TOKEN}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    for name in ("keys", "tokens"):
        (tmp_path / name).chmod(0o600)
    big = pa.table({"n": pa.array(np.arange(BIG_ROWS))})
    datasets = {
        "numbers": write_file(tmp_path / "numbers.arrow", TABLE, batch_rows=ROWS // BATCHES),
        "big": write_file(tmp_path / "big.arrow", big, batch_rows=BIG_BATCH),
        "rows": tmp_path / "rows.parquet",
        "published": tmp_path / "published",
    }
    pq.write_table(TABLE, datasets["rows"])
    publish(VersionStore(datasets["published"]), "first", TABLE)
    config = tmp_path / "splitarrow.toml"
    lines = [f"{name} = '{path}'" for name, path in datasets.items()]
    config.write_text("\n".join(["[datasets]", *lines]))
    before = time.time()
    running = daemon(
        listen=["tcp://127.0.0.1:0", "tcp+tls://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"],
        control="grpc://127.0.0.1:0",
        http="http://127.0.0.1:0",
        config=config,
        token_file=tmp_path / "tokens",
        ticket_key_file=tmp_path / "keys",
        tls_cert=pki.path("server"),
        writable=tmp_path / "uploads",
        max_leased=MAX_LEASED,
        lease_seconds=0.2,
        max_connections_per_address=MAX_PER_ADDRESS,
        poll_seconds=0.1,
    )
    work = Workload(running, TicketSigner([key]), pki, config)
    try:
        work.add("build_info", version=splitarrow.__version__)
        work.add("start_time_seconds", (before, time.time()))
        for name in ("ready", "workers", "last_reload_successful"):
            work.add(name)
        for name in ("draining", "worker_restarts_total", "connections", "leases", "leased_bytes"):
            work.add(name, 0)
        work.add("oldest_lease_seconds", 0)
        work.add("datasets", len(datasets))
        work.add("dataset_version", dataset="published")
        for cache in ("objects", "shared_memory", "vortex"):
            work.add("cache_hits_total", 0, cache=cache)
            work.add("cache_misses_total", 0, cache=cache)
        work.add("cache_limit_bytes", 10 << 30, cache="objects")
        for name in ("bytes", "evictions_total", "rejections_total", "waiting_readers"):
            work.add(f"cache_{name}", 0, cache="objects")
        certificate = load_pem_x509_certificate(pki.path("server-cert").read_bytes())
        expiry = certificate.not_valid_after_utc.timestamp()
        work.add("certificate_expiry_timestamp_seconds", expiry, certificate="server")
        work.add("shared_memory_bytes", 0)  # the reload replaces the datasets of the copies
        for each in WORK:
            each(work)
            work.wait_idle()
        figures = measure(running.pid), scrape(running), measure(running.pid)
    finally:
        work.client.close()
    for name, slack in SLACK.items():
        first, last = sorted((figures[0][name], figures[2][name]))
        work.add(name, (first - slack, last + slack), process="main")
    del work.ranges[series("mapped_bytes")]
    check(work.ranges, figures[1])


def check(expected: dict[Series, Range], found: dict[Series, float]) -> None:
    """Compare all samples with their ranges."""
    wrong = {
        key: (value, expected.get(key, "not expected"))
        for key, value in found.items()
        if key not in expected or not expected[key][0] <= value <= expected[key][1]
    }
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert found.keys() == expected.keys()
