"""A server in a process: it names its datasets, ends with its process, and never keeps it alive."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import splitarrow
from splitarrow.errors import ConfigError, UsageError

TABLE = pa.table({"n": [1, 2, 3]})


def read(server: splitarrow.Server, name: str) -> pa.Table:
    with server, splitarrow.open(server.uri(name)) as stream:
        return stream.read_all()


def test_a_path_names_its_dataset(tmp_path: Path) -> None:
    file = tmp_path / "flights.arrow"
    feather.write_feather(TABLE, file, compression="uncompressed")
    parquet.write_table(TABLE, tmp_path / "trips.parquet")
    for path in (file, str(file)):
        assert read(splitarrow.serve(path), "flights") == TABLE
    both = [file, str(tmp_path / "trips.parquet")]
    assert read(splitarrow.serve(both), "flights") == TABLE
    assert read(splitarrow.serve(both), "trips") == TABLE


@pytest.mark.parametrize("data", [TABLE, TABLE.to_batches(), TABLE.to_reader()], ids=type)
def test_other_data_is_named_table(data: Any) -> None:
    assert read(splitarrow.serve(data), "table") == TABLE


def test_two_paths_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "flights.arrow" for folder in "ab"]
    with pytest.raises(UsageError, match=r"two datasets are named 'flights': .*; pass a dict from"):
        splitarrow.serve(paths)


@pytest.mark.parametrize("data", [3, None, ["flights.arrow", TABLE]])
def test_what_is_no_dataset_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match=r"expected|serve"):
        splitarrow.serve(data)


SERVE = """
import multiprocessing, os, signal, sys, threading
import pyarrow as pa
import splitarrow

LISTENERS = ["tcp://127.0.0.1:0", "shm:///", "ucx://127.0.0.1:0"]

def serve(listen="tcp://127.0.0.1:0", **settings):
    return splitarrow.serve({"t": pa.table({"n": range(100_000)})}, listen=listen, **settings)

def count_rows(uri):
    with splitarrow.open(uri) as stream:
        print(stream.read_all().num_rows, flush=True)
"""
SERVE_ALL = """
server = serve(LISTENERS, control="grpc://127.0.0.1:0", http="http://127.0.0.1:0")
for scheme in ("tcp", "shm", "ucx"):
    count_rows(server.uri("t", scheme))
client = splitarrow.connect(server.control_uri)
client["t"].to_arrow()
"""


def run(code: str, *options: str, stdin: str | None = None) -> tuple[int, str, str]:
    """Return the status of a script and what it writes to standard output and error."""
    process = subprocess.run(
        [sys.executable, *options, "-c", SERVE + code],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


def test_a_script_ends_with_its_server_running() -> None:
    assert run('server = serve(control="grpc://127.0.0.1:0")') == (0, "", "")


@pytest.mark.slow
def test_open_streams_and_clients_do_not_delay_the_end() -> None:
    code = SERVE_ALL + "streams = [iter(splitarrow.open(server.uri('t', 'tcp'))), client.read('t')]"
    assert run(code) == (0, "100000\n" * 3, "")


@pytest.mark.slow
def test_exceptions_and_statuses_stay_as_they_are() -> None:
    status, _, errors = run("server = serve()\n1 / 0")
    assert status == 1
    assert errors.startswith("Traceback")
    assert errors.endswith("ZeroDivisionError: division by zero\n")
    assert run("server = serve()\nsys.exit(7)") == (7, "", "")
    handle = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a job may ignore it
    status, _, errors = run(f"{handle}\nserver = serve()\nsignal.raise_signal(signal.SIGINT)")
    assert status == -signal.SIGINT
    assert errors.startswith("Traceback")
    assert errors.endswith("KeyboardInterrupt\n")


READ = """
import sys, splitarrow
with splitarrow.connect(sys.argv[1]) as client, client.read("t") as stream:
    print(stream.transport, stream.read_all()["n"].to_pylist())
"""


def test_readers_on_the_host_map_the_data_by_default() -> None:
    table = pa.table({"n": [1, 2, 3]})
    with splitarrow.serve({"t": table}, control="grpc://127.0.0.1:0") as server:
        uri = str(server.control_uri)
        output = subprocess.check_output([sys.executable, "-c", READ, uri], text=True, timeout=60)
        assert output == "shm [1, 2, 3]\n"
        with splitarrow.connect(uri) as client, client.read("t") as stream:
            assert stream.transport == "shm"
            assert stream.read_all() == table
        assert server.uri("t").startswith("tcp://")


@pytest.mark.slow
def test_an_interactive_session_ends() -> None:
    status, output, _ = run("server = serve()", "-i", "-q", stdin="count_rows(server.uri('t'))\n")
    assert (status, output) == (0, "100000\n")


@pytest.mark.slow
def test_a_thread_reads_to_its_end() -> None:
    code = """
server = serve()
main = threading.current_thread()
threading.Thread(target=lambda: (main.join(), count_rows(server.uri("t")))).start()
"""
    assert run(code) == (0, "100000\n", "")


@pytest.mark.slow
def test_a_blocked_source_does_not_delay_the_end() -> None:
    code = """
def wait_forever():
    yield pa.record_batch({"n": [1]})
    reading.set()
    threading.Event().wait()

reading = threading.Event()
reader = pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), wait_forever())
server = splitarrow.serve({"t": reader})
stream = splitarrow.open(server.uri("t"))
threading.Thread(target=lambda: list(stream), daemon=True).start()
reading.wait()
"""
    assert run(code) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["", 'LISTENERS, http="http://127.0.0.1:0"'])
@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "server.close(); os._exit(3)", "del server; sys.exit(3)"]
)
def test_a_forked_process_leaves_the_server_to_its_parent(settings: str, end: str) -> None:
    code = f"""
server = serve({settings})
pid = os.fork()
if not pid:
    {end}
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
count_rows(server.uri("t"))
"""
    assert run(code, "-W", "ignore::DeprecationWarning") == (0, "100000\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_read_and_end(method: str) -> None:
    code = f"""
from multiprocessing import get_context
server = serve(["tcp://127.0.0.1:0", "shm:///"])
read = f"__import__('splitarrow').open({{server.uri('t')!r}}).close()"
process = get_context({method!r}).Process(target=eval, args=(read,))
process.start()
process.join()
print(process.exitcode)
"""
    assert run(code, "-W", "ignore::DeprecationWarning") == (0, "0\n", "")


TLS: Any = {"tls": "server.pem"}


def test_a_file_as_tls_is_an_error_that_names_what_to_pass() -> None:
    with pytest.raises(ConfigError, match="tls: no such setting; pass the files as 'tls_cert'"):
        splitarrow.serve({"t": pa.table({"n": [1]})}, listen="tcp+tls://127.0.0.1:0", **TLS)
    expected = "tls is 'server.pem'; expected splitarrow.TlsOptions"
    for address in ("grpc+tls://127.0.0.1:1", "grpc://127.0.0.1:1"):
        with pytest.raises(UsageError, match=expected):
            splitarrow.connect(address, **TLS)
    for uri in ("tcp+tls://127.0.0.1:1?want_data=1&ticket=t", "grpc://127.0.0.1:1/t"):
        with pytest.raises(UsageError, match=expected):
            splitarrow.open(uri, **TLS)
