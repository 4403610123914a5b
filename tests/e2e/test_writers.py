"""Files that another process writes to: a reader gets one state of them, or an error."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from splitarrow.errors import ConnectionLostError, DatasetError, RemoteError, SplitArrowError

READS = 20
BATCHES, ROWS = 16, 32 << 10  # 256 KiB each: the server sends them as regions of the file
LISTEN = ("tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0")
TRANSPORTS = ("tcp", "shm", "ucx", "flight")
each_transport = pytest.mark.parametrize(
    "transport",
    ["tcp", "shm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ucx", "flight"))],
)

# A state of the file has the same byte everywhere in its bodies. Each writer makes one state after
# another until its standard input ends.
WRITER = """
import json, mmap, os, select, sys, time
path, spans = sys.argv[1], json.loads(sys.argv[2])
def ended(seconds):
    return bool(select.select([sys.stdin], [], [], seconds)[0])
def states():
    while True:
        for state in range(1, 120):
            yield state
"""
MAPPING = """
with open(path, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
for state in states():
    for offset, length in spans:
        memory[offset : offset + length] = bytes([state]) * length
    if state == 2:
        print("writing", flush=True)
    if state >= 2 and ended(0.001):
        break
"""
PWRITE = """
for state in states():
    with open(path, "r+b") as file:
        for offset, length in spans:
            os.pwrite(file.fileno(), bytes([state]) * length, offset)
    if state == 1:
        print("writing", flush=True)
    if ended(0.01):
        break
"""
RENAME = """
data = bytearray(open(path, "rb").read())
for state in states():
    for offset, length in spans:
        data[offset : offset + length] = bytes([state]) * length
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.rename(path + ".new", path)
    if state == 1:
        print("writing", flush=True)
    if ended(0.01):
        break
"""


@contextmanager
def writing(program: str, path: Path, spans: list[tuple[int, int]]) -> Generator[None]:
    """Run a writer in another process."""
    command = [sys.executable, "-I", "-c", WRITER + program, str(path), json.dumps(spans)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "writing\n"
            yield
            assert process.poll() is None, "the writer died"
        finally:
            process.stdin.close()
            process.wait(30)


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, list[tuple[int, int]]]:
    """A file in the state 127, and the offset and length of the values of each batch."""
    return make_data(tmp_path / "data.arrow", BATCHES)


def make_data(path: Path, batches: int) -> tuple[Path, list[tuple[int, int]]]:
    values = pa.py_buffer(b"\x7f" * (8 * ROWS))
    batch = pa.record_batch([pa.Array.from_buffers(pa.int64(), ROWS, [None, values])], ["n"])
    write_file(path, [batch] * batches)
    spans: list[tuple[int, int]] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        at = memory.find(values.to_pybytes())
        while at >= 0:
            spans.append((at, values.size))
            at = memory.find(values.to_pybytes(), at + values.size)
    assert len(spans) == batches
    return path, spans


Read = Callable[[str], "tuple[list[int | None], SplitArrowError | None]"]


@pytest.fixture
def start(
    daemon: StartDaemon, data: tuple[Path, list[tuple[int, int]]]
) -> Iterator[Callable[..., Read]]:
    """Start a daemon that serves the file over every transport, and states what it does."""
    clients: list[splitarrow.Client] = []

    def start(writers: str = "refused", **options: object) -> Read:
        control = "grpc://127.0.0.1:0"
        server = daemon({"data": data[0]}, listen=LISTEN, control=control, **options)
        client = splitarrow.connect(server.control_uri)
        clients.append(client)
        assert client.info("data").writers == writers

        def read(transport: str) -> tuple[list[int | None], SplitArrowError | None]:
            """Read all batches; return the state of each (None: torn) and the error."""
            states: list[int | None] = []
            try:
                if transport == "flight":
                    with client.read("data", transport="flight", resume_attempts=0) as stream:
                        states += [state_of(batch) for batch in stream]
                else:
                    with splitarrow.open(server.uri("data", transport)) as stream:
                        states += [state_of(batch) for batch in stream]
            except SplitArrowError as error:
                return states, error
            return states, None

        return read

    yield start
    for client in clients:
        client.close()


def state_of(batch: pa.RecordBatch) -> int | None:
    """Return the state that the whole batch has, or None if it is torn."""
    found = set(batch.column("n").to_numpy().tobytes())
    return found.pop() if len(found) == 1 else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "transport",
    ["tcp", *(pytest.param(name, marks=pytest.mark.long) for name in ("shm", "ucx", "flight"))],
)
def test_a_file_that_is_mapped_for_writing_is_refused(
    start: Callable[..., Read], data: tuple[Path, list[tuple[int, int]]], transport: str
) -> None:
    read = start()
    assert read(transport) == ([127] * BATCHES, None)
    with writing(MAPPING, *data):
        for _ in range(READS):
            states, error = read(transport)
            assert states == []
            assert isinstance(error, RemoteError | DatasetError)
            assert "open for writing" in str(error)
            assert "'data'" in str(error)
            assert "rename" in str(error)
    states, error = read(transport)
    assert error is None
    assert states == states[:1] * BATCHES
    assert states[0] not in (None, 127)


@pytest.mark.parametrize(
    "program",
    [pytest.param(PWRITE, id="pwrite", marks=pytest.mark.slow), pytest.param(RENAME, id="rename")],
)
@each_transport
def test_a_reader_gets_one_state_of_a_file_that_changes(
    start: Callable[..., Read],
    data: tuple[Path, list[tuple[int, int]]],
    transport: str,
    program: str,
) -> None:
    read = start()
    with writing(program, *data):
        for _ in range(READS):
            states, error = read(transport)
            assert None not in states  # not even a batch before an error is torn
            assert len(set(states)) <= 1
            if error is None:
                assert len(states) == BATCHES
            else:
                assert isinstance(error, RemoteError | DatasetError | ConnectionLostError), error


HOLD = """
with open(path, "r+b") as file:
    print("writing", flush=True)
    sys.stdin.read()
"""
CHANGES = {
    "overwrite": "os.pwrite(file.fileno(), bytes([state]) * length, offset)",
    "truncate": "os.ftruncate(file.fileno(), offset)",
    "append": "file.seek(0, 2), file.write(b'more'), file.flush()",
}
LATER = """
offset, length = spans[-1]
with open(path, "r+b") as file:
    print("writing", flush=True)
    sys.stdin.readline()
    state = 1
    {change}
    print("changed", flush=True)
    sys.stdin.read()
"""


@contextmanager
def make_reader(path: Path) -> Generator[Callable[[str], Any]]:
    """Serve a file in this process, and open streams of it."""
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with (
        splitarrow.serve({"data": path}, listen=listen, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):

        def open_stream(transport: str) -> Any:
            if transport == "flight":
                return client.read("data", transport="flight", resume_attempts=0)
            return splitarrow.open(server.uri("data", transport))

        yield open_stream


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def open_writers(path: Path, table: pa.Table) -> list[tuple[Path, Any]]:
    """Write files with writers that keep them open."""
    found: list[tuple[Path, Any]] = []
    for suffix, make in (
        ("arrow", pa.ipc.new_file),
        ("arrows", pa.ipc.new_stream),
        ("csv", pyarrow.csv.CSVWriter),
        ("parquet", pq.ParquetWriter),
    ):
        file = path / f"data.{suffix}"
        with make(str(file), table.schema) as writer:
            writer.write_table(table)
        found.append((file, writer))
    return found


def test_a_file_that_pyarrows_writer_keeps_open_is_served(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(100_000), pa.int64())})
    writers = open_writers(tmp_path, table)
    sources = {file.suffix[1:]: file for file, _ in writers}
    with splitarrow.serve(sources, listen=["tcp://127.0.0.1:0", "shm://"]) as server:
        for name, file in sources.items():
            for scheme in ("tcp", "shm"):
                with splitarrow.open(server.uri(name, scheme)) as stream:
                    assert stream.read_all() == table
                    assert not is_mapped(file)
        writers.clear()
        for name in ("arrow", "arrows"):
            with splitarrow.open(server.uri(name, "shm")) as stream:
                batch = next(stream)
                assert is_mapped(sources[name])
                del batch


def test_a_daemon_serves_a_file_that_another_process_keeps_open(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    path, _ = make_data(tmp_path / "data.arrow", 2)
    table = pa.ipc.open_file(str(path)).read_all()
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    server = daemon({"data": path}, listen=LISTEN)
    for scheme in ("tcp", "shm", "ucx"):
        with splitarrow.open(server.uri("data", scheme)) as stream:
            assert stream.read_all() == table
    del writer
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        with pytest.raises(SplitArrowError, match=rf"open for writing by process {os.getpid()} \("):
            daemon({"data": path})
        with pytest.raises(RemoteError, match="open for writing by process"):
            splitarrow.open(server.uri("data", "tcp"))


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_folders_and_columns_of_files_that_are_open_are_served(tmp_path: Path, scheme: str) -> None:
    values = pa.array(range(200_000), pa.int64())
    table = pa.table({"n": values, "m": values})
    for name in ("a", "b"):
        write_file(tmp_path / "folder" / f"{name}.arrow", table)
    with (
        (tmp_path / "folder" / "b.arrow").open("r+b"),
        splitarrow.serve(
            {"d": tmp_path / "folder"}, listen=["tcp://127.0.0.1:0", "shm://"]
        ) as server,
    ):
        with splitarrow.open(server.uri("d", scheme)) as stream:
            assert stream.read_all() == pa.concat_tables([table, table])
        with splitarrow.open(server.uri("d", scheme), columns=["n"]) as stream:
            assert stream.read_all() == pa.concat_tables([table, table]).select(["n"])


def test_an_incomplete_file_names_its_writer(tmp_path: Path) -> None:
    path, batch = tmp_path / "data.arrow", pa.record_batch({"n": pa.array([1])})
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
        with pytest.raises(DatasetError, match=r"open for writing in this process .*`del w`"):
            splitarrow.serve({"data": path}).close()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
def test_a_change_of_a_file_that_is_open_for_writing_ends_its_reads(
    tmp_path: Path, transport: str, change: str
) -> None:
    path, spans = make_data(tmp_path / "data.arrow", 160)
    code = WRITER + LATER.format(change=CHANGES[change])
    command = [sys.executable, "-I", "-c", code, str(path), json.dumps(spans)]
    pipe = subprocess.PIPE
    states: list[int | None] = []
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        with make_reader(path) as open_stream:
            with open_stream(transport) as stream:
                states.append(state_of(next(stream)))
                writer.stdin.write("go\n")
                writer.stdin.flush()
                assert writer.stdout.readline() == "changed\n"
                with pytest.raises((RemoteError, DatasetError), match="open for writing by proc"):
                    states += [state_of(batch) for batch in stream]
            assert set(states) == {127}
            assert len(states) < len(spans)
            if change == "append":  # the footer is not at the end any more
                with pytest.raises(SplitArrowError, match="open for writing by process"):
                    open_stream(transport)
        writer.stdin.close()


@pytest.mark.slow
@each_transport
def test_readers_get_copies_while_a_file_is_open_and_the_file_afterwards(
    start: Callable[..., Read], data: tuple[Path, list[tuple[int, int]]], transport: str
) -> None:
    with writing(HOLD, *data):
        read = start()
        for _ in range(3):
            assert read(transport) == ([127] * BATCHES, None)
    assert read(transport) == ([127] * BATCHES, None)


@pytest.mark.slow
def test_writers_are_allowed_at_the_operators_risk(
    start: Callable[..., Read], data: tuple[Path, list[tuple[int, int]]]
) -> None:
    with writing(MAPPING, *data):
        with pytest.raises(SplitArrowError, match="open for writing"):
            start()
        read = start("allowed", allow_writers=True)
        for transport in TRANSPORTS:
            states, error = read(transport)
            assert error is None
            assert len(states) == BATCHES
    for transport in TRANSPORTS:  # no reader gets an old copy
        states, error = read(transport)
        assert error is None
        assert states == states[:1] * BATCHES
        assert states[0] not in (None, 127)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [BATCHES, 400], ids=["in the sockets", "beyond the sockets"])
@pytest.mark.parametrize("scheme", ["tcp", "shm", pytest.param("ucx", marks=pytest.mark.slow)])
def test_a_writer_does_not_wait_for_a_reader_that_pauses(
    daemon: StartDaemon, tmp_path: Path, scheme: str, batches: int
) -> None:
    path, spans = make_data(tmp_path / "data.arrow", batches)
    server = daemon({"data": path}, listen=LISTEN)
    with splitarrow.open(server.uri("data", scheme)) as stream:
        states = [state_of(next(stream))]
        begin = time.monotonic()
        with writing(PWRITE, path, spans):
            assert time.monotonic() - begin < 15
            try:
                states += [state_of(batch) for batch in stream]
            except (RemoteError, DatasetError, ConnectionLostError):
                assert len(states) < batches
            else:
                assert len(states) == batches
    assert set(states) == {127}
