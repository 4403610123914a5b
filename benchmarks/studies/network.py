"""Measure splitarrow over an emulated link, beside the link, plain sockets and pyarrow.flight.

``make bench-network`` runs it as root in a checkout, whose ``tests/network/link.py`` emulates the
link. Every program keeps its connections from one round to the next. Programs that are compared
take turns, and a ratio is the median of the ratios of all rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from network.link import SERVER, Link, LinkUnavailableError, RemotePython

from ...errors import SplitArrowError
from ...publication.version_store import VersionStore
from ..datasets import make_dataset
from ..machine import machine_properties, software_versions
from ..statistics import UNKNOWN, format_interval, format_ratio, format_size, median_interval
from ..tables import insert_between, table_head, table_row
from .vortex import make_columns

BEGIN = "<!-- network: begin -->"
END = "<!-- network: end -->"
PARTS = ("throughput", "round-trips", "fairness", "compression")

_RATE = 1000.0
"""What the link carries, in Mbit/s."""
_FAIR_RATE = 100.0
_DELAYS, _LOSSES = (20, 100), (0.0, 0.001)
_SIZES = (64 << 10, 1 << 20, 8 << 20)
_BYTES = 64 << 20
_FEW_BYTES = 8 << 20
"""What is read where loss makes Cubic slow."""
_SHARDS = 4
_RATES = (100.0, 1000.0, 3000.0)
_KINDS = (
    "integers from 0 to 99",
    "floats with two decimals",
    "random floats",
    "URLs, all different",
)
_CODECS = ("none", "lz4", "zstd", "auto")
_FORMATS = ("arrow", "vortex", "auto")
_SMALL_ROWS = 1250

SERVERS = """
import atexit, signal, socket, sys, threading
import pyarrow as pa
from pyarrow import flight
from splitarrow.testing import Daemon

daemon = Daemon({datasets}, listen=['tcp://{host}:0', 'ucx://{host}:0'],
                control='grpc://{host}:0', insecure=True)
daemon.start()
atexit.register(daemon.close)  # also if the benchmark is interrupted or terminated
signal.signal(signal.SIGTERM, lambda *_: sys.exit())

class Server(flight.FlightServerBase):
    def _table(self, name):
        return pa.ipc.open_file(pa.memory_map(daemon_files[name])).read_all()
    def get_flight_info(self, context, descriptor):
        name = descriptor.path[0].decode()
        endpoint = flight.FlightEndpoint(name, [])
        return flight.FlightInfo(self._table(name).schema, descriptor, [endpoint], -1, -1)
    def do_get(self, context, ticket):
        return flight.RecordBatchStream(self._table(ticket.ticket.decode()))

daemon_files = {files}
server = Server('grpc://{host}:0')

def answer(peer):
    data = bytes(1 << 20)
    while request := peer.recv(8):
        left = int.from_bytes(request, 'little')
        while left:
            sent = data[:left]
            peer.sendall(sent)
            left -= len(sent)

def accept():
    while True:
        threading.Thread(target=answer, args=(plain.accept()[0],), daemon=True).start()

plain = socket.create_server(('{host}', 0))
threading.Thread(target=accept, daemon=True).start()
[daemon.control_uri, daemon.uri('small', 'tcp'), server.port, plain.getsockname()[1]]
"""

CLIENT = """
import socket
from pyarrow import flight

peer = flight.connect('grpc://{host}:{flight_port}')
client = splitarrow.connect('{control}')
plain = socket.create_connection(('{host}', {plain_port}))
buffer = memoryview(bytearray(1 << 20))

def read_plain(nbytes):
    plain.sendall(nbytes.to_bytes(8, 'little'))
    left = nbytes
    while left:
        left -= plain.recv_into(buffer[:left])
    return nbytes

def flight_batches(name):
    reader = peer.do_get(flight.Ticket(name))
    try:
        for chunk in reader:
            yield chunk.data
    finally:
        reader.cancel()

def batches(name, **options):
    with client.read(name, **options) as stream:
        yield from stream

def count(found):
    return sum(batch.nbytes for batch in found)

def timed(open, start, end):
    begin, now, late, nbytes = time.monotonic(), 0.0, None, 0
    while now < end:
        found = open()
        for batch in found:
            now = time.monotonic() - begin
            if late is not None:
                nbytes += batch.nbytes
            elif now > start:
                late = now
            if now >= end:
                break
        found.close()
    return 0 if late is None else nbytes / max(now - late, 0.1)
0
"""


@dataclass(slots=True)
class Figure:
    """The rounds of one program in one case."""

    part: str
    """One of `PARTS`."""
    case: dict[str, Any]
    """What the link and the data are."""
    program: str
    """The program, and how it reads."""
    values: list[float] = field(default_factory=list[float])
    """Bytes per second of each round, round trips of each read, or the index of each round."""


def jain_index(rates: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all rates are equal, 1/n if one has everything.

    >>> jain_index([2.0, 2.0]), jain_index([2.0, 0.0])
    (1.0, 0.5)
    """
    squares = sum(rate**2 for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0


class Study:
    """The servers behind one link, and what has been measured."""

    def __init__(self, link: Link, folder: Path, rounds: int, quick: bool) -> None:
        self.figures: list[Figure] = []
        self._link = link
        self._rounds = 1 if quick else rounds
        self._quick = quick
        self._files = self._write(folder)
        shards = self._write_shards(folder / "parts")
        self._server = link.python("server", environment={"UCX_TLS": "tcp"})
        datasets = {name: str(path) for name, path in self._files.items()}
        found = self._server.value(
            SERVERS.format(datasets={**datasets, "parts": str(shards)}, files=datasets, host=SERVER)
        )
        self._control, self._uri, self._flight_port, self._plain_port = found

    def close(self) -> None:
        """Stop the daemon."""
        self._server.value("daemon.close()")

    def _write(self, folder: Path) -> dict[str, Path]:
        files: dict[str, Path] = {}

        def write(name: str, table: pa.Table, batch_rows: int) -> None:
            files[name] = folder / f"{name}.arrow"
            with pa.ipc.new_file(str(files[name]), table.schema) as writer:
                writer.write_table(table, batch_rows)

        for size in self._sizes:
            for nbytes in (_BYTES, _FEW_BYTES):
                name = f"{size}-{nbytes}"
                dataset = make_dataset(folder / f"{name}.arrow", size, nbytes // size)
                files[name] = Path(dataset.path)
        write("small", pa.table({"n": range(_SMALL_ROWS)}), _SMALL_ROWS)
        columns = make_columns(_BYTES)
        for number, kind in enumerate(self._kinds):
            write(f"kind-{number}", pa.table({"value": columns[kind]()}), 1 << 16)
        return files

    def _write_shards(self, folder: Path) -> Path:
        """Publish the rows of the first file as several shards."""
        with pa.ipc.open_file(str(self._files[f"{1 << 20}-{_BYTES}"])) as reader:
            count = reader.num_record_batches // _SHARDS
            shards = [
                [reader.get_batch(shard * count + number) for number in range(count)]
                for shard in range(_SHARDS)
            ]
            schema = reader.schema
        store = VersionStore(folder)
        entries = [
            store.write_shard("job", f"{number:05d}.arrow", schema, iter(batches))
            for number, batches in enumerate(shards)
        ]
        store.commit("job", schema, entries, append=False)
        return folder

    @property
    def _controls(self) -> list[str]:
        """The congestion controls to measure, of those that this kernel has loaded."""
        found = [each for each in ("bbr", "cubic") if each in self._link.congestion_controls()]
        return found[:1] if self._quick else found

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (1 << 20,) if self._quick else _SIZES

    @property
    def _kinds(self) -> tuple[str, ...]:
        return _KINDS[:1] if self._quick else _KINDS

    @contextmanager
    def _client(self) -> Generator[RemotePython]:
        """Start a client, whose connections are new; it warms up at first."""
        python = self._link.python("client", environment={"UCX_TLS": "tcp"})
        try:
            code = CLIENT.format(
                host=SERVER,
                control=self._control,
                flight_port=self._flight_port,
                plain_port=self._plain_port,
            )
            python.value(code)
            yield python
        finally:
            python.process.kill()

    def _take_turns(
        self,
        part: str,
        case: dict[str, Any],
        programs: dict[str, Callable[[], float]],
    ) -> None:
        """Run each program in each round; the first round warms up."""
        figures = {name: Figure(part, case, name) for name in programs}
        self.figures += figures.values()
        for number in range(self._rounds + 1):
            for name, run in programs.items():
                value = run()
                if number:
                    figures[name].values.append(value)
        found = ", ".join(f"{name} {median(each.values):.4g}" for name, each in figures.items())
        print(f"{part} {case}: {found}", file=sys.stderr, flush=True)

    def measure_throughput(self) -> None:
        """Measure the rates of single reads, which begin on warm connections."""
        delays = _DELAYS[:1] if self._quick else _DELAYS
        losses = _LOSSES[:1] if self._quick else _LOSSES
        for delay, loss, control in product(delays, losses, self._controls):
            nbytes = _FEW_BYTES if loss and control == "cubic" else _BYTES
            self._link.set(delay_ms=0, rate_mbit=_RATE, loss=0.0)
            self._link.set_congestion_control(control)
            with self._client() as client:
                self._link.set(delay_ms=delay, loss=loss)
                for size in self._sizes:
                    codes = {
                        "plain sockets": f"read_plain({nbytes})",
                        "Flight": f"count(flight_batches('{size}-{nbytes}'))",
                        "tcp": f"count(batches('{size}-{nbytes}', transport='tcp'))",
                        "DoGet": f"count(batches('{size}-{nbytes}', transport='flight'))",
                    }
                    if size == 1 << 20 and nbytes == _BYTES:
                        codes["tcp, parts"] = "count(batches('parts', transport='tcp'))"
                    if delay == _DELAYS[0] and not loss and not self._quick:
                        codes["ucx"] = f"count(batches('{size}-{nbytes}', transport='ucx'))"
                    self._take_turns(
                        "throughput",
                        {"delay": delay, "loss": loss, "control": control, "size": size},
                        {name: self._rate_of(client, code) for name, code in codes.items()},
                    )

    def _rate_of(self, client: RemotePython, code: str) -> Callable[[], float]:
        def run() -> float:
            outcome = client(code, 600)
            if outcome.error is not None:
                raise SplitArrowError(f"{code}: {outcome.error}: {outcome.message}")
            return outcome.value / outcome.seconds

        return run

    def measure_round_trips(self) -> None:
        """Count the round trips of cold and warm reads of 10 KB at 100 ms."""
        control = self._control
        info = "peer.get_flight_info(flight.FlightDescriptor.for_path('small'))"
        connect_flight = f"peer = flight.connect('grpc://{SERVER}:{self._flight_port}')"
        programs = {
            "Flight, planned": (
                connect_flight,
                f"peer.do_get({info}.endpoints[0].ticket).read_all().num_rows",
            ),
            "Flight, known ticket": (
                connect_flight,
                "peer.do_get(flight.Ticket('small')).read_all().num_rows",
            ),
            "connect().read": (
                f"client = splitarrow.connect('{control}')",
                "client.read('small').read_all().num_rows",
            ),
            "connect().read, tcp": (
                f"client = splitarrow.connect('{control}')",
                "client.read('small', transport='tcp').read_all().num_rows",
            ),
            "connect().read, DoGet": (
                f"client = splitarrow.connect('{control}')",
                "client.read('small', transport='flight').read_all().num_rows",
            ),
            "open('grpc://…')": ("0", f"splitarrow.open('{control}/small').read_all().num_rows"),
            "open('grpc://…'), tcp": (
                "0",
                f"splitarrow.open('{control}/small', transport='tcp').read_all().num_rows",
            ),
            "open('tcp://…')": ("0", f"splitarrow.open('{self._uri}').read_all().num_rows"),
        }
        self._link.set(delay_ms=100, rate_mbit=_RATE, loss=0.0)
        for name, (connect, read) in programs.items():
            counts: list[tuple[int, int]] = []
            for _ in range(self._rounds + 1):
                client = self._link.python()
                with self._link.capture() as capture:
                    client.value("from pyarrow import flight\n0")
                    outcomes = [client(f"{connect}\n{read}"), client(read), client(read)]
                client.process.kill()
                for each in outcomes:
                    if each.value != _SMALL_ROWS:
                        raise SplitArrowError(f"{name}: {each.error}: {each.message}")
                cold, _, warm = (capture.round_trips(each.begin, each.end) for each in outcomes)
                counts.append((cold, warm))
            for state, found in zip(("cold", "warm"), zip(*counts, strict=True), strict=True):
                self.figures.append(Figure("round-trips", {"state": state}, name, [*found]))
            print(f"round trips of {name}: {counts}", file=sys.stderr, flush=True)

    def measure_fairness(self) -> None:
        """Measure how four streams share a link."""
        ours = "timed(lambda: batches('{name}', transport='tcp'), {start}, {end})"
        flight = "timed(lambda: flight_batches('{name}'), {start}, {end})"
        name = f"{1 << 20}-{_BYTES}"
        start, end = (1, 4) if self._quick else (3, 13)
        mixes = {"four of splitarrow": [ours] * 4, "four of Flight": [flight] * 4}
        mixes["two of each"] = [ours, ours, flight, flight]
        for control in self._controls:
            case = {"control": control, "delay": 20, "rate": _FAIR_RATE}
            self._link.set(delay_ms=0, rate_mbit=_FAIR_RATE, loss=0.0)
            self._link.set_congestion_control(control)
            for mix, codes in mixes.items():
                figure = Figure("fairness", case, mix)
                share = Figure("fairness", case, f"{mix}: share of the first two")
                self.figures += [figure, share]
                for _ in range(self._rounds):
                    rates = self._run_together(
                        [code.format(name=name, start=start, end=end) for code in codes]
                    )
                    figure.values.append(jain_index(rates))
                    share.values.append(sum(rates[:2]) / max(sum(rates), 1.0))
                found = f"{median(figure.values):.3f}, share {median(share.values):.3f}"
                print(f"fairness {case} {mix}: {found}", file=sys.stderr, flush=True)

    def _run_together(self, codes: list[str]) -> list[float]:
        self._link.set(delay_ms=0)
        with ExitStack() as stack:
            clients = [stack.enter_context(self._client()) for _ in codes]
            self._link.set(delay_ms=20)
            waits = [client.begin(code, 120) for client, code in zip(clients, codes, strict=True)]
            outcomes = [wait() for wait in waits]
        for outcome in outcomes:
            if outcome.error is not None:
                raise SplitArrowError(f"{outcome.error}: {outcome.message}")
        return [outcome.value for outcome in outcomes]

    def measure_compression(self) -> None:
        """Measure the rates of codecs and formats after a second, in bytes of Arrow."""
        rates = _RATES[1:2] if self._quick else _RATES
        for rate, (number, kind) in product(rates, enumerate(self._kinds)):
            self._link.set(delay_ms=2, rate_mbit=rate, loss=0.0)
            with self._client() as client:
                programs: dict[str, Callable[[], float]] = {}
                for option, values in (("compression", _CODECS), ("format", _FORMATS)):
                    for value in values:
                        code = (
                            f"timed(lambda: batches('kind-{number}', transport='tcp', "
                            f"{option}='{value}'), 1, 3)"
                        )
                        programs[f"{option} {value}"] = self._value_of(client, code)
                self._take_turns("compression", {"rate": rate, "kind": kind}, programs)

    def _value_of(self, client: RemotePython, code: str) -> Callable[[], float]:
        return lambda: client.value(code, 120)


# --- tables -------------------------------------------------------------------------------------


def _group(figures: list[Figure], part: str) -> dict[str, dict[str, Figure]]:
    """Return the figures of a part by their case and program."""
    groups: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        if figure.part == part:
            groups.setdefault(json.dumps(figure.case), {})[figure.program] = figure
    return groups


def _ratio(found: dict[str, Figure], program: str, other: str) -> str:
    """Return the median of the ratios of two programs, with its interval."""
    if program not in found or other not in found:
        return UNKNOWN
    pairs = zip(found[program].values, found[other].values, strict=True)
    ratios = [value / base for value, base in pairs if base]
    if not ratios:
        return UNKNOWN
    return f"{format_ratio(median(ratios))} ({format_interval(median_interval(ratios))})"


def markdown_tables(figures: list[Figure]) -> str:
    """Return the figures as tables in Markdown."""
    parts = (_throughput_table, _round_trip_table, _fairness_table, _compression_table)
    return "\n".join(line for part in parts for line in part(figures)) + "\n"


def _throughput_table(figures: list[Figure]) -> Iterator[str]:
    groups = _group(figures, "throughput")
    if not groups:
        return
    yield f"Shares of a link of {_RATE:g} Mbit/s, and ratios with their 95 % intervals:\n"
    heads = ["plain sockets", "Flight", "tcp", "tcp / Flight", "DoGet / Flight"]
    yield from table_head(
        ["round trip", "loss", "control", "batches", *heads, "parts / tcp", "ucx / tcp"],
        text_columns=4,
    )
    for case, found in groups.items():
        link = json.loads(case)
        shares = [
            format_ratio(median(found[name].values) * 8e-6 / _RATE)
            for name in ("plain sockets", "Flight", "tcp")
        ]
        yield table_row(
            [
                f"{link['delay']} ms",
                f"{link['loss'] * 100:g} %",
                link["control"],
                format_size(link["size"]),
                *shares,
                _ratio(found, "tcp", "Flight"),
                _ratio(found, "DoGet", "Flight"),
                _ratio(found, "tcp, parts", "tcp"),
                _ratio(found, "ucx", "tcp"),
            ]
        )
    yield ""


def _round_trip_table(figures: list[Figure]) -> Iterator[str]:
    groups = _group(figures, "round-trips")
    if not groups:
        return
    yield "Round trips to the last row of 10 KB, counted at 100 ms:\n"
    yield from table_head(["program", "cold", "warm"])
    cold, warm = groups.values()
    for program in cold:
        # A pause of the machine can add a round trip, and nothing can save one.
        yield table_row([program, *(f"{min(each[program].values):g}" for each in (cold, warm))])
    yield ""


def _fairness_table(figures: list[Figure]) -> Iterator[str]:
    groups = _group(figures, "fairness")
    if not groups:
        return
    yield f"Jain's index of streams that share {_FAIR_RATE:g} Mbit/s at 20 ms:\n"
    columns = ["four of splitarrow", "four of Flight", "two of each"]
    yield from table_head(["control", *columns, "share of splitarrow's two"])
    for case, found in groups.items():
        cells = [format_ratio(median(found[name].values)) for name in columns]
        share = median(found["two of each: share of the first two"].values)
        yield table_row([json.loads(case)["control"], *cells, format_ratio(share)])
    yield ""


def _compression_table(figures: list[Figure]) -> Iterator[str]:
    groups = _group(figures, "compression")
    if not groups:
        return
    yield "MB/s of Arrow after a second, and the ratio of `auto` to the best fixed choice:\n"
    codecs, formats = _CODECS[:-1], _FORMATS[:-1]
    yield from table_head(
        ["link", "data", *codecs, "auto", "auto / best", "vortex", "format auto / best"],
        text_columns=2,
    )
    for case, found in groups.items():
        link = json.loads(case)
        rates = {name: median(figure.values) for name, figure in found.items()}
        best = max(rates[f"compression {each}"] for each in codecs)
        best_format = max(rates[f"format {each}"] for each in formats)
        shown = [f"compression {each}" for each in _CODECS]
        yield table_row(
            [
                f"{link['rate'] / 1000:g} Gbit/s",
                link["kind"],
                *(f"{rates[name] * 1e-6:.0f}" for name in shown),
                format_ratio(rates["compression auto"] / best if best else None),
                f"{rates['format vortex'] * 1e-6:.0f}",
                format_ratio(rates["format auto"] / best_format if best_format else None),
            ]
        )
    yield ""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the tables in Markdown, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.network")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--quick", action="store_true", help="measure a small part, once")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="a page with markers")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; expected 1 or more")
    try:
        with TemporaryDirectory(prefix="splitarrow-network-") as folder, Link() as link:
            study = Study(link, Path(folder), options.rounds, options.quick)
            try:
                for part in options.only:
                    getattr(study, f"measure_{part.replace('-', '_')}")()
            finally:
                link.set(delay_ms=0, loss=0.0)
                study.close()
    except (SplitArrowError, LinkUnavailableError) as error:
        print(error, file=sys.stderr)
        return 1
    text = markdown_tables(study.figures)
    print(text, end="")
    if options.json is not None:
        report = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine_properties(),
            "versions": software_versions(),
            "figures": [asdict(each) for each in study.figures],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.markdown is not None:
        page = options.markdown.read_text()
        options.markdown.write_text(insert_between(BEGIN, END, text, page))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
