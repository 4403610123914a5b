"""Measure Vortex beside Arrow, LZ4 and ZSTD, over links of several speeds."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from ...errors import SplitArrowError
from ...testing import Daemon
from ..datasets import generate_trips
from ..machine import process_seconds
from ..tables import insert_between, table_head, table_row

_CHUNK_BYTES = 256 << 10
_BURST_SECONDS = 0.002
"""What the link may fall behind and make up for, which is less than a switch buffers."""


class TokenBucket:
    """Computes how long to wait before more bytes may pass. All times are in seconds."""

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._rate = bytes_per_second
        self._free_at = now

    def take(self, nbytes: int, now: float) -> float:
        """Record bytes that pass; return the seconds until the link is free again."""
        begins = max(self._free_at, now - _BURST_SECONDS)
        self._free_at = begins + nbytes / self._rate
        return max(0.0, self._free_at - now)


@contextmanager
def limited_link(host: str, port: int, bytes_per_second: float) -> Generator[int]:
    """Forward a port of this host to a server, at a limited speed towards the client."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(host, port, bytes_per_second, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
        process.close()


def _run(host: str, port: int, bytes_per_second: float, connection: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection.send(listener.getsockname()[1])
        while True:
            client = listener.accept()[0]
            server = socket.create_connection((host, port))
            for source, target, rate in (
                (server, client, bytes_per_second),
                (client, server, float("inf")),
            ):
                target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_forward, args=(source, target, rate), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, rate: float) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    bucket = TokenBucket(rate, time.monotonic())
    try:
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
            time.sleep(bucket.take(count, time.monotonic()))
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one side has closed its connection


BEGIN = "<!-- vortex: begin -->"
END = "<!-- vortex: end -->"

FORMATS = ("arrow", "lz4", "zstd", "vortex")
LINKS = {"loopback": None, "10 Gbit/s": 1.25e9, "1 Gbit/s": 0.125e9}
"""The links by their names, with the bytes per second that each carries."""

_BATCH_ROWS = 1 << 17
_TRIP_BYTES = 130
_GIB = 1 << 30

_CLIENT = """
import json, resource, sys, time, splitarrow
for line in sys.stdin:
    uri, format = json.loads(line)
    used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + \\
        sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before, began, rows = used(), time.perf_counter(), 0
    with splitarrow.open(uri, format=format) as stream:
        for batch in stream:
            rows += batch.num_rows
        received = stream.bytes_received
    seconds = time.perf_counter() - began
    print(json.dumps([rows, received, seconds, used() - before]), flush=True)
"""


def make_columns(nbytes: int) -> dict[str, Callable[[], Any]]:
    """Return the columns to measure by their names, each of about `nbytes` bytes in Arrow."""
    generator = np.random.default_rng(7)
    count = nbytes // 8

    def repeat(texts: list[str], size: int) -> Any:
        chosen: Any = pa.array(generator.integers(0, len(texts), size))
        return pa.array(texts).take(chosen)

    def seconds() -> Any:
        return pa.array(np.cumsum(generator.integers(0, 3, count)))

    def urls() -> Any:
        size = nbytes // 48
        numbers = generator.integers(0, 1 << 40, size)
        return pa.array([f"https://example.org/items/{n:012x}/page?q={n % 97}" for n in numbers])

    cities = [f"city of {number:02d}" for number in range(40)]
    return {
        "integers from 0 to 99": lambda: pa.array(generator.integers(0, 100, count)),
        "timestamps": lambda: seconds().cast(pa.timestamp("s")),
        "floats with two decimals": lambda: pa.array(np.round(generator.random(count) * 1000, 2)),
        "random floats": lambda: pa.array(generator.random(count)),
        "40 different texts": lambda: repeat(cities, nbytes // 14),
        "URLs, all different": urls,
    }


def make_tables(nbytes: int) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """Yield the tables by their names, each as record batches."""
    for name, make in make_columns(nbytes).items():
        yield name, iter(pa.table({"value": make()}).to_batches(max_chunksize=_BATCH_ROWS))
    yield "trips", generate_trips(nbytes // _TRIP_BYTES)


@dataclass(frozen=True, slots=True)
class Figure:
    """The medians of one table, format and link."""

    table: str
    """The name of the table."""
    format: str
    """One of `FORMATS`."""
    link: str
    """One of `LINKS`."""
    arrow_bytes: int
    """The size of the table in Arrow, without compression."""
    wire_bytes: int
    """The bytes that the client received."""
    rate: float
    """Bytes of Arrow delivered per second."""
    server_cpu: float
    """Processor seconds of the server per GiB of Arrow."""
    client_cpu: float
    """Processor seconds of the client, with its decoder process, per GiB of Arrow."""


def measure_table(
    name: str, batches: Iterator[pa.RecordBatch], folder: Path, rounds: int
) -> list[Figure]:
    """Measure one table in all formats over all links."""
    files = {codec: folder / f"{codec}.arrow" for codec in ("arrow", "lz4", "zstd")}
    arrow_bytes, rows = _write(batches, files)
    datasets = {codec: str(path) for codec, path in files.items()}
    figures: list[Figure] = []
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(datasets))
        client = stack.enter_context(_client())
        for link, speed in LINKS.items():
            uris = {
                each: stack.enter_context(linked(daemon.uri(_dataset(each)), speed))
                for each in FORMATS
            }
            samples: dict[str, list[tuple[float, ...]]] = {each: [] for each in FORMATS}
            for number in range(rounds + 1):
                for each in FORMATS:
                    before = process_seconds(daemon.pid)
                    reply = _read(client, uris[each], each)
                    server = process_seconds(daemon.pid) - before
                    if reply[0] != rows:
                        raise SplitArrowError(f"{each}: {reply[0]} rows arrived, not {rows}")
                    if number:  # the first round encodes and warms up
                        samples[each].append((*reply[1:], server))
            for each, taken in samples.items():
                received, seconds, client_cpu, server_cpu = (
                    median(values) for values in zip(*taken, strict=True)
                )
                gib = arrow_bytes / _GIB
                figures.append(
                    Figure(
                        name,
                        each,
                        link,
                        arrow_bytes,
                        int(received),
                        arrow_bytes / seconds,
                        server_cpu / gib,
                        client_cpu / gib,
                    )
                )
    return figures


def _dataset(format: str) -> str:
    return "arrow" if format == "vortex" else format


def _write(batches: Iterator[pa.RecordBatch], files: dict[str, Path]) -> tuple[int, int]:
    """Write the batches to a file in each codec; return their size in Arrow and their rows."""
    nbytes = rows = 0
    with ExitStack() as stack:
        writers: list[Any] = []
        for batch in batches:
            if not writers:
                for codec, path in files.items():
                    compression: Any = None if codec == "arrow" else codec
                    options = pa.ipc.IpcWriteOptions(compression=compression)
                    writer = pa.ipc.new_file(str(path), batch.schema, options=options)
                    writers.append(stack.enter_context(writer))
            for writer in writers:
                writer.write_batch(batch)
            nbytes += batch.nbytes
            rows += batch.num_rows
    return nbytes, rows


@contextmanager
def linked(uri: str, speed: float | None) -> Generator[str]:
    """Yield the URI of a dataset behind a link."""
    if speed is None:
        yield uri
        return
    parts = urlsplit(uri)
    assert parts.hostname is not None
    assert parts.port is not None
    with limited_link(parts.hostname, parts.port, speed) as port:
        yield parts._replace(netloc=f"127.0.0.1:{port}").geturl()


@contextmanager
def _client() -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-c", _CLIENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _read(client: subprocess.Popen[str], uri: str, format: str) -> tuple[float, ...]:
    """Return the rows, the bytes received, the seconds and the processor seconds of a read."""
    assert client.stdin is not None
    assert client.stdout is not None
    requested = "vortex" if format == "vortex" else "arrow"
    client.stdin.write(json.dumps([uri, requested]) + "\n")
    client.stdin.flush()
    line = client.stdout.readline()
    if not line:
        raise SplitArrowError(f"the client that read {format} ended; its error is above")
    return tuple(json.loads(line))


def markdown_tables(figures: list[Figure]) -> str:
    """Return the figures as tables in Markdown: one of sizes and times, and one of each link."""
    tables = list(dict.fromkeys(figure.table for figure in figures))
    known = {(each.table, each.format, each.link): each for each in figures}

    lines = ["How many times smaller than Arrow the bytes on the wire are:", ""]
    lines += table_head(["table", *FORMATS[1:]])
    for table in tables:
        found = [known[table, each, "loopback"] for each in FORMATS[1:]]
        lines.append(table_row([table, *(f"{f.arrow_bytes / f.wire_bytes:.1f}" for f in found)]))
    for link in dict.fromkeys(figure.link for figure in figures):
        lines += ["", f"GB/s of Arrow delivered, {link}:", ""]
        lines += table_head(["table", *FORMATS, "Vortex / ZSTD"])
        for table in tables:
            found = [known[table, each, link] for each in FORMATS]
            ratio = found[3].rate / found[2].rate
            cells = [f"{each.rate / 1e9:.2f}" for each in found]
            lines.append(table_row([table, *cells, f"{ratio:.1f}"]))
    lines += ["", "Processor seconds of server + client for each GiB of Arrow, loopback:", ""]
    lines += table_head(["table", *FORMATS])
    for table in tables:
        found = [known[table, each, "loopback"] for each in FORMATS]
        lines.append(
            table_row([table, *(f"{f.server_cpu:.2f} + {f.client_cpu:.2f}" for f in found)])
        )
    return "\n".join(lines) + "\n"


def save_markdown(figures: list[Figure], path: Path) -> None:
    """Write the tables between the markers of a page."""
    path.write_text(insert_between(BEGIN, END, markdown_tables(figures), path.read_text()))


def main(arguments: list[str] | None = None) -> int:
    """Measure all tables, print the figures in Markdown, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.vortex")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--mebibytes", type=int, default=128, metavar="N", help="size of a table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--markdown",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a page with markers",
    )
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    try:
        for name, batches in make_tables(options.mebibytes << 20):
            with TemporaryDirectory(prefix="splitarrow-vortex-") as folder:
                figures += measure_table(name, batches, Path(folder), options.rounds)
            print(f"measured {name}", file=sys.stderr)
    except SplitArrowError as error:
        print(error, file=sys.stderr)
        return 1
    text = markdown_tables(figures)
    print(text, end="")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in figures], indent=2) + "\n")
    for page in options.markdown:
        save_markdown(figures, page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
