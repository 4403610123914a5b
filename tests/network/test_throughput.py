"""The rates of streams: beside pyarrow.flight's and the link's, and beside each other's.

The link is slow enough that a busy machine hardly matters. The goals of `make bench-network` are
stricter; these tests have a tolerance for the few rounds that they measure.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.publication import publish
from network.link import SERVER, Link, RemotePython
from splitarrow.publication.version_store import VersionStore

ROUNDS = 3
RATE = 400
"""In Mbit/s."""
BYTES = 32 << 20
PAYLOAD = 1448 / 1500
"""What TCP leaves of a packet."""


@pytest.fixture
def flight_uri(link: Link, random_numbers: Path) -> str:
    """A server of pyarrow.flight in the server's namespace."""
    port = link.python("server").value(f"""
import pyarrow as pa
from pyarrow import flight
table = pa.ipc.open_file(pa.memory_map('{random_numbers}')).read_all()
class Server(flight.FlightServerBase):
    def do_get(self, context, ticket):
        return flight.RecordBatchStream(table)
server = Server('grpc://{SERVER}:0')
server.port
""")
    return f"grpc://{SERVER}:{port}"


def use(link: Link, control: str) -> None:
    if control not in link.congestion_controls():
        pytest.skip(f"this kernel has not loaded {control}")
    link.set_congestion_control(control)


def best_seconds(python: RemotePython, reads: dict[str, str]) -> dict[str, float]:
    """Run each read several times, in turns; return the shortest time of each after the first."""
    seconds: dict[str, list[float]] = {name: [] for name in reads}
    for _ in range(ROUNDS + 1):
        for name, code in reads.items():
            outcome = python(code)
            assert outcome.message == ""
            assert outcome.value == BYTES
            seconds[name].append(outcome.seconds)
    return {name: min(taken[1:]) for name, taken in seconds.items()}


@pytest.mark.parametrize(
    ("delay_ms", "loss", "control"),
    [(20, 0, "bbr"), (100, 0, "cubic"), (20, 0.001, "bbr")],
)
def test_a_stream_is_as_fast_as_flight(
    link: Link,
    serve: StartDaemon,
    random_numbers: Path,
    flight_uri: str,
    delay_ms: float,
    loss: float,
    control: str,
) -> None:
    use(link, control)
    server = serve({"numbers": random_numbers})
    python = link.python()
    link.set(delay_ms=delay_ms, rate_mbit=RATE, loss=loss)
    python.value(f"""
from pyarrow import flight
peer = flight.connect('{flight_uri}')
client = splitarrow.connect('{server.control_uri}')
0
""")
    seconds = best_seconds(
        python,
        {
            "flight": "peer.do_get(flight.Ticket(b'')).read_all().nbytes",
            "tcp": "client.read('numbers', transport='tcp').read_all().nbytes",
        },
    )
    share = {name: BYTES * 8 / taken / (RATE * 1e6 * PAYLOAD) for name, taken in seconds.items()}
    assert share["tcp"] >= 0.93 * share["flight"], share
    if delay_ms == 20 and not loss:
        assert share["tcp"] >= 0.8, share


def test_several_parts_are_not_slower_than_one(
    link: Link, serve: StartDaemon, random_numbers: Path, tmp_path: Path
) -> None:
    values = np.random.default_rng(1).random(BYTES // 8)
    parts = [pa.table({"x": pa.array(part)}) for part in np.array_split(values, 4)]
    publish(VersionStore(tmp_path / "parts"), "job", *parts)
    server = serve({"one": random_numbers, "parts": tmp_path / "parts"})
    python = link.python()
    link.set(delay_ms=20, rate_mbit=RATE)
    python.value(f"client = splitarrow.connect('{server.control_uri}')\n0")
    code = "client.read('{}', transport='tcp').read_all().nbytes"
    seconds = best_seconds(python, {name: code.format(name) for name in ("one", "parts")})
    assert seconds["parts"] <= 1.05 * seconds["one"], seconds


@pytest.fixture(scope="module")
def long_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of 256 MiB in batches of 1 MiB: random numbers, and such that LZ4 halves."""
    folder = tmp_path_factory.mktemp("long")
    generator = np.random.default_rng(1)
    rows = 1 << 22
    columns = {
        "random": pa.array(generator.random(rows)),
        "small": pa.array(generator.integers(0, 100, rows)),
    }
    return {
        name: write_file(
            folder / f"{name}.arrow",
            pa.Table.from_batches(pa.table({"x": column}).to_batches(1 << 17) * 8),
        )
        for name, column in columns.items()
    }


TIMED = """
begin, late, nbytes = time.monotonic(), None, 0
with client.read('{name}', {options}) as stream:
    for batch in stream:
        now = time.monotonic() - begin
        if now > {end}:
            break
        if late is not None:
            nbytes += batch.nbytes
        elif now > {start}:
            late = now
0 if late is None else nbytes / max(now - late, 0.1)
"""
"""Returns the bytes per second after some time."""


@pytest.mark.parametrize("control", ["bbr", "cubic"])
def test_streams_share_a_link_fairly(
    link: Link, serve: StartDaemon, long_files: dict[str, Path], control: str
) -> None:
    use(link, control)
    server = serve({"random": long_files["random"]})
    readers = [link.python() for _ in range(4)]
    link.set(delay_ms=20, rate_mbit=100)
    for reader in readers:
        reader.value(f"client = splitarrow.connect('{server.control_uri}')\n0")
    code = TIMED.format(name="random", options="transport='tcp'", start=2, end=8)
    rates = [wait().value for wait in [reader.begin(code) for reader in readers]]
    index = sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))
    assert index >= 0.8, rates  # Cubic takes minutes to share a link evenly.


@pytest.mark.parametrize("rate", [100, 1000])
def test_auto_is_nearly_as_good_as_the_best_codec(
    link: Link, serve: StartDaemon, long_files: dict[str, Path], rate: float
) -> None:
    server = serve(long_files)
    python = link.python()
    link.set(delay_ms=2, rate_mbit=rate)
    python.value(f"client = splitarrow.connect('{server.control_uri}')\n0")
    rates = {
        codec: python.value(
            TIMED.format(
                name="small", options=f"compression='{codec}', transport='tcp'", start=1, end=2.5
            )
        )
        for codec in ("none", "lz4", "zstd", "auto")
    }
    assert rates["auto"] >= max(rates.values()) / 1.25, rates


def test_auto_takes_the_better_format(
    link: Link, serve: StartDaemon, long_files: dict[str, Path]
) -> None:
    server = serve(long_files)
    python = link.python()
    link.set(delay_ms=2, rate_mbit=1000)
    python.value(f"client = splitarrow.connect('{server.control_uri}')\n0")
    rates = {
        each: python.value(
            TIMED.format(
                name="random", options=f"format='{each}', transport='tcp'", start=1, end=2.5
            )
        )
        for each in ("arrow", "auto", "arrow", "auto")
    }
    assert rates["auto"] >= rates["arrow"] / 1.25, rates
