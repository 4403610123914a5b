"""Two programs in C, which know the wire document and UCX alone, and our two sides."""

from __future__ import annotations

import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import libucx
import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.streams import source_messages
from splitarrow.errors import NotFoundError, ProtocolError
from splitarrow.protocol.frames import OutgoingFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.splitter import Splitter
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.ucx.uri import find_remote_request_tag

if shutil.which("gcc") is None:
    pytest.skip("gcc is not installed: no C program can be made", allow_module_level=True)

WANT_DATA = (5 << 32) + 3


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled programs."""
    folder = tmp_path_factory.mktemp("programs")
    ucx = Path(next(iter(libucx.__path__)))
    for name in ("reader", "server"):
        source = Path(__file__).parent / "ucx" / f"{name}.c"
        subprocess.run(
            ["gcc", "-O1", "-Wall", "-Werror", "-I", ucx / "include", source, "-o", folder / name]
            + [ucx / "lib" / library for library in ("libucp.so", "libucs.so")]
            + [f"-Wl,-rpath,{ucx / 'lib'}", "-Wl,--disable-new-dtags"],
            check=True,
        )
    return folder


@cache
def some_table() -> pa.Table:
    """Batches of a few bytes and of megabytes, with nulls, strings and dictionaries."""
    batches: list[pa.RecordBatch] = []
    for size in (0, 1, 30, 2_000, 5, 400_000, 17):
        numbers = range(size)
        columns = [
            pa.array(numbers, pa.int64()),
            pa.array([None if n % 7 == 0 else f"text {n}" for n in numbers], pa.string()),
            pa.array([f"word {n % 3}" for n in numbers], pa.string()).dictionary_encode(),
        ]
        batches.append(pa.record_batch(columns, names=["n", "s", "d"]))
    return pa.Table.from_batches(batches).unify_dictionaries()


def run_reader(programs: Path, uri: str, mode: str, ticket: str = "data") -> Any:
    parsed = DataUri.parse(uri)
    arguments = [parsed.host, str(parsed.port), hex(parsed.require_want_data()), ticket, mode]
    return subprocess.run([programs / "reader", *arguments], capture_output=True, timeout=30)


@pytest.mark.parametrize("mode", ["peer", "none"])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_program_reads_from_our_server(
    programs: Path, tmp_path: Path, kind: str, mode: str
) -> None:
    table = some_table()
    source: Any = table
    if kind == "file":
        source = write_file(tmp_path / "data.arrow", table)
    with splitarrow.serve({"data": source}, listen=["ucx://127.0.0.1:0"], control=None) as server:
        for _ in range(2):
            done = run_reader(programs, server.uri("data"), mode)
            assert done.returncode == 0, done.stderr.decode()
            assert pa.ipc.open_stream(done.stdout).read_all() == table
        done = run_reader(programs, server.uri("data"), mode, "nothing")
        assert done.returncode == 1
        assert b"NOT_FOUND" in done.stderr
        with splitarrow.open(server.uri("data")) as stream:
            assert stream.read_all() == table


def test_real_flights_arrive(programs: Path, vega_test_data: Path) -> None:
    path = vega_test_data / "flights-200k.arrow"
    with splitarrow.serve({"data": path}, listen=["ucx://127.0.0.1:0"], control=None) as server:
        done = run_reader(programs, server.uri("data"), "peer")
        assert done.returncode == 0, done.stderr.decode()
        expected = pa.ipc.open_file(str(path)).read_all()
        assert pa.ipc.open_stream(done.stdout).read_all() == expected
        with splitarrow.open(server.uri("data")) as stream:
            assert stream.read_all() == expected


@pytest.mark.parametrize("mode", ["peer", "none"])
def test_a_program_reads_from_our_memory(programs: Path, vega_test_data: Path, mode: str) -> None:
    """Without error handling by reading across processes; with it UCX asks our server."""
    path = vega_test_data / "flights-200k.arrow"
    expected = pa.ipc.open_file(str(path)).read_all()
    with splitarrow.serve({"data": path}, listen=["ucx://127.0.0.1:0"], control=None) as server:
        uri = DataUri.parse(server.uri("data"))
        region = [hex(uri.require_want_data()), hex(uri.free_data or 0)]
        request_tag = hex(find_remote_request_tag(uri) or 0)
        arguments = [uri.host, str(uri.port), request_tag, "data", mode, *region]
        done = subprocess.run([programs / "reader", *arguments], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        assert pa.ipc.open_stream(done.stdout).read_all() == expected
        assert server.stats()["bytes_lent"] > 1 << 20
        assert server.stats()["bad_frees"] == 0


def write_frames(path: Path, frames: list[OutgoingFrame]) -> None:
    with path.open("wb") as file:
        for frame in frames:
            if isinstance(frame, UntaggedFrame):
                file.write(struct.pack("<BQQ", 0, 0, len(frame.payload)) + frame.payload)
            else:
                file.write(struct.pack("<BQQ", 1, frame.tag, frame.nbytes))
                file.writelines(frame.buffers)


def read_from(programs: Path, path: Path, mode: str, ticket: str = "data") -> pa.Table:
    """Return what our client reads from the program."""
    arguments = [hex(WANT_DATA), "data", str(path), mode]
    with subprocess.Popen(
        [programs / "server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            port = int(process.stdout.readline())
            uri = f"ucx://127.0.0.1:{port}?want_data={WANT_DATA}&ticket={ticket}"
            with splitarrow.open(uri, stall_timeout=10) as stream:
                table = stream.read_all()
            assert process.wait(10) == 0, process.stderr.read()
        finally:
            process.kill()
    return table


@pytest.mark.parametrize("mode", ["peer", "any"])
def test_our_client_reads_from_a_program(programs: Path, tmp_path: Path, mode: str) -> None:
    table = some_table()
    splitter = Splitter()
    frames = [*splitter.split(source_messages(table)), *splitter.end()]
    write_frames(tmp_path / "frames", frames)
    assert read_from(programs, tmp_path / "frames", mode) == table


def test_a_failure_of_a_program_is_told(programs: Path, tmp_path: Path) -> None:
    write_frames(tmp_path / "frames", Splitter().fail("NOT_FOUND", "no such dataset"))
    with pytest.raises(NotFoundError, match="no such dataset"):
        read_from(programs, tmp_path / "frames", "any")


def test_reserved_bits_in_a_tag_are_refused(programs: Path, tmp_path: Path) -> None:
    splitter = Splitter()
    frames: list[OutgoingFrame] = []
    for frame in splitter.split(source_messages(some_table())):
        if isinstance(frame, TaggedFrame) and frame.tag == 2:
            frame = frame._replace(tag=2 | 1 << 40)
        frames.append(frame)
    write_frames(tmp_path / "frames", [*frames, *splitter.end()])
    with pytest.raises(ProtocolError, match="reserved bits"):
        read_from(programs, tmp_path / "frames", "any")
