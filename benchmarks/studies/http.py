"""Data over HTTP beside nginx and DoGet: ``python -m splitarrow.benchmarks.studies.http``.

A file that is requested unchanged is compared with nginx, which sends it with ``sendfile``. A
selection is compared with DoGet of the same daemon: stock clients, urllib with pyarrow and
pyarrow.flight, count its rows. Both sides take turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ...testing import Daemon
from ..statistics import format_interval, median_interval

_ROWS = 64_000_000
_BATCH_ROWS = 65_536
_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ }}
http {{
  access_log off; sendfile on; tcp_nopush on;
  client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t;
  uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


def _write(path: Path) -> int:
    random = np.random.default_rng(1)
    table = pa.table(
        {"n": pa.array(np.arange(_ROWS)), "x": pa.array(random.standard_normal(_ROWS))}
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, _BATCH_ROWS)
    return path.stat().st_size


@contextmanager
def _run_nginx(program: str, folder: Path) -> Generator[str]:
    """Serve a folder, and yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    configuration = folder / "nginx.conf"
    configuration.write_text(_NGINX.format(folder=folder, port=port))
    folder.chmod(0o755)
    with subprocess.Popen([program, "-c", str(configuration)]) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _await(url)
            yield url
        finally:
            process.terminate()


def _await(url: str) -> None:
    address, deadline = urlsplit(url), time.monotonic() + 10
    while True:
        try:
            socket.create_connection((address.hostname, address.port or 80)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _download(url: str, nbytes: int) -> None:
    """Receive a response to its end, as fast as the socket allows."""
    address, buffer, received = urlsplit(url), bytearray(1 << 20), 0
    path = f"{address.path}?{address.query}" if address.query else address.path
    request = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((address.hostname, address.port or 80)) as connection:
        connection.sendall(request.encode())
        while count := connection.recv_into(buffer):
            received += count
    if not nbytes <= received < nbytes + 4096:
        raise RuntimeError(f"{url} sent {received} bytes instead of {nbytes}")


def _count_http(url: str, rows: int) -> None:
    found = 0
    with urllib.request.urlopen(url) as response, pa.ipc.open_stream(response) as reader:
        for batch in reader:
            found += batch.num_rows
    _check(found, rows)


def _count_flight(client: flight.FlightClient, ticket: bytes, rows: int) -> None:
    found = 0
    for chunk in client.do_get(flight.Ticket(ticket)):
        found += 0 if chunk.data is None else chunk.data.num_rows
    _check(found, rows)


def _check(found: int, rows: int) -> None:
    if found != rows:
        raise RuntimeError(f"a client read {found} instead of {rows} rows")


def compare(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> list[float]:
    """Return the ratio of their time to ours for each round, in which they take turns."""
    ratios: list[float] = []
    for number in range(-1, rounds):
        seconds = {}
        for side in (ours, theirs) if number % 2 else (theirs, ours):
            began = time.perf_counter()
            side()
            seconds[side] = time.perf_counter() - began
        if number >= 0:
            ratios.append(seconds[theirs] / seconds[ours])
    return ratios


def main() -> None:
    """Print the ratios; more than 1 means that HTTP is faster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nginx", default=shutil.which("nginx") or shutil.which("/usr/sbin/nginx"))
    options = parser.parse_args()
    with TemporaryDirectory(prefix="splitarrow-http-") as name:
        folder = Path(name)
        nbytes = _write(folder / "data.arrow")
        control, http = "grpc://127.0.0.1:0", "http://127.0.0.1:0"
        with Daemon({"data": folder / "data.arrow"}, control=control, http=http) as daemon:
            url = f"{daemon.http_uri}/v1/datasets/data/data"
            if options.nginx is None:
                print("nginx is not installed: the stored file is left out")
            else:
                with _run_nginx(options.nginx, folder) as peer:
                    _print(
                        "a stored file / nginx",
                        compare(
                            lambda: _download(f"{url}?format=arrow-file", nbytes),
                            lambda: _download(f"{peer}/data.arrow", nbytes),
                            options.rounds,
                        ),
                    )
            with flight.connect(daemon.control_uri) as client:
                for label, query, fields, rows in (
                    ("a column / DoGet", "columns=x", {"columns": ["x"]}, _ROWS),
                    ("no selection / DoGet", "", {}, _ROWS),
                ):
                    ticket = json.dumps({"dataset": "data", **fields}).encode()
                    ratios = compare(
                        lambda query=query, rows=rows: _count_http(f"{url}?{query}", rows),
                        lambda ticket=ticket, rows=rows: _count_flight(client, ticket, rows),
                        options.rounds,
                    )
                    _print(label, ratios)


def _print(label: str, ratios: list[float]) -> None:
    print(f"{label:<24}{median(ratios):.2f}  ({format_interval(median_interval(ratios))})")


if __name__ == "__main__":
    main()
