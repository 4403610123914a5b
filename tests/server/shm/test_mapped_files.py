"""Files that change while readers map them: batches keep their values, and no process dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.shm import find_mappings, make_filled_batches, make_table, read_table
from helpers.shm_servers import Program, Serve
from helpers.waiting import wait_until
from splitarrow.errors import DatasetError, RemoteError, SplitArrowError

# Reads 100 batches of 64 KiB. The values of batch k are 7000 + k.
READ = """
import sys, splitarrow
stream = splitarrow.open(sys.argv[1])
batches = [next(stream) for _ in range(10)]
print("holding", flush=True)
sys.stdin.readline()
for number, batch in enumerate(batches):
    assert batch.column("n").unique().to_pylist() == [7000 + number], number
try:
    for number, batch in enumerate(stream, 10):
        assert batch.column("n").unique().to_pylist() == [7000 + number], number
        batches.append(batch)
    print("whole", len(batches), flush=True)
except splitarrow.errors.SplitArrowError as error:
    print(type(error).__name__, len(batches), flush=True)
sys.stdin.readline()
for number, batch in enumerate(batches):
    assert batch.column("n").unique().to_pylist() == [7000 + number], number
print("right", flush=True)
"""
SENT = make_filled_batches(100, 64 << 10)


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def shorten(path: Path) -> None:
    os.truncate(path, 1 << 20)


def rewrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def overwrite_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * (6 << 20))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


CHANGES: list[Callable[[Path], None]] = [truncate, shorten, rewrite, overwrite_in_place, append]


def elsewhere(change: Callable[[Path], None], path: Path) -> None:
    """Change a file from another process."""
    code = {
        "truncate": "import os, sys; os.truncate(sys.argv[1], 0)",
        "shorten": "import os, sys; os.truncate(sys.argv[1], 1 << 20)",
        "rewrite": "import sys; open(sys.argv[1], 'wb').write(b'\\xff' * (7 << 20))",
        "overwrite_in_place": "import sys; open(sys.argv[1], 'r+b').write(b'\\xff' * (6 << 20))",
        "append": "import sys; open(sys.argv[1], 'ab').write(b'more')",
    }[change.__name__]
    subprocess.run([sys.executable, "-I", "-c", code, str(path)], check=True, timeout=30)


@pytest.mark.parametrize(
    "other_process",
    [
        pytest.param(False, id="this process", marks=pytest.mark.slow),
        pytest.param(True, id="another"),
    ],
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_survives_changes(
    serve: Serve,
    program: Callable[..., Program],
    tmp_path: Path,
    change: Callable[[Path], None],
    other_process: bool,
) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    reader = program(READ, server.uri("data"))
    assert reader.read_line() == "holding"
    assert server.stats()["shared_bytes"] == 0  # the reader maps the file itself
    begin = time.monotonic()
    if other_process:
        elsewhere(change, path)
    else:
        change(path)
    assert time.monotonic() - begin < 5  # the server gave up the file lease before it expired
    reader.send_line()
    what, _, count = reader.read_line().partition(" ")
    assert what in ("whole", "DatasetError", "RemoteError", "ConnectionLostError"), what
    assert int(count) == 100 if what == "whole" else 10 <= int(count) <= 100
    reader.send_line()
    assert reader.read_line() == "right"
    assert reader.wait() == 0


@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_in_the_servers_process_survives_changes(
    serve: Serve, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    with splitarrow.open(server.uri("data")) as stream:
        batches = [next(stream) for _ in range(10)]
        assert {place.name for place in find_mappings(batches)} == {str(path)}
        change(path)
        assert batches == SENT[:10]
        assert {place.name for place in find_mappings(batches)} != {str(path)}
        try:
            batches += stream
        except (DatasetError, RemoteError):
            pass
        else:
            assert len(batches) == 100  # all arrived before the change
        assert batches == SENT[: len(batches)]


def test_batches_of_an_ended_stream_survive_a_change(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
    column = batches[50].column("n").slice(100, 100)
    del batches[1:]
    rewrite(path)
    assert batches == SENT[:1]
    assert column.equals(SENT[50].column("n").slice(100, 100))


def test_many_readers_release_a_file(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    streams = [splitarrow.open(server.uri("data")) for _ in range(20)]
    held = [next(stream) for stream in streams]
    begin = time.monotonic()
    truncate(path)
    assert time.monotonic() - begin < 5
    for batch, stream in zip(held, streams, strict=True):
        assert batch == SENT[0]
        try:
            assert list(stream) == SENT[1:]
        except SplitArrowError:
            pass
        finally:
            stream.close()


def test_after_a_change_new_readers_get_the_new_data(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    with splitarrow.open(server.uri("data")) as stream:
        batch = next(stream)
        other = make_filled_batches(3, 4096, value=9)
        data = write_file(tmp_path / "other.arrow", other).read_bytes()
        path.write_bytes(data)  # in place
        assert batch == SENT[0]
        assert read_table(server.uri("data")) == make_table(other)


def test_a_file_replaced_by_another_stays_with_its_readers(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    with splitarrow.open(server.uri("data")) as stream:
        batches = [next(stream)]
        write_file(path, make_filled_batches(2, 4096, value=9))
        assert read_table(server.uri("data")) == make_table(make_filled_batches(2, 4096, value=9))
        path.unlink()
        batches += stream
        assert batches == SENT
        with pytest.raises(SplitArrowError):
            read_table(server.uri("data"))
        assert batches == SENT


def test_a_file_with_an_allowed_writer_is_copied(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path}, allow_writers=True)
    with path.open("r+b"), splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        assert server.stats()["shared_bytes"] >= 100 * (64 << 10)
        assert {"memfd" in place.name for place in find_mappings(batches)} == {True}
        assert batches == SENT
        begin = time.monotonic()
        truncate(path)
        assert time.monotonic() - begin < 1
        assert batches == SENT


def test_trusted_files_have_no_guard(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path}, shm_trust=True)
    with splitarrow.open(server.uri("data")) as stream:
        batches = list(stream)
        assert {place.name for place in find_mappings(batches)} == {str(path)}
        assert server.stats()["shared_bytes"] == 0
        begin = time.monotonic()
        append(path)
        assert time.monotonic() - begin < 1
        assert batches == SENT


def test_a_guard_ends_with_its_last_reader(serve: Serve, tmp_path: Path) -> None:
    path = write_file(tmp_path / "data.arrow", SENT)
    server = serve({"data": path})
    assert read_table(server.uri("data")).num_rows == 100 * 8192

    def is_free() -> bool:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except BlockingIOError:
            return False
        return True

    wait_until(is_free, seconds=5)


def test_readers_never_get_mixed_versions_of_a_file(serve: Serve, tmp_path: Path) -> None:
    """Another process rewrites the file in place while readers come and go."""
    path = tmp_path / "data.arrow"
    states = [
        write_file(tmp_path / f"{k}.arrow", make_filled_batches(20, 4096, value=k)).read_bytes()
        for k in (1, 2)
    ]
    tables = [make_table(make_filled_batches(20, 4096, value=k)) for k in (1, 2)]
    path.write_bytes(states[0])
    server = serve({"data": path})
    done = threading.Event()
    wrong: list[pa.Table] = []
    counts = [0, 0]

    def read() -> None:
        while not done.is_set():
            try:
                table = read_table(server.uri("data"))
            except SplitArrowError:
                counts[1] += 1
                continue
            counts[0] += 1
            if table not in tables:
                wrong.append(table)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for k in range(10):
            path.write_bytes(states[k % 2])
            done_before = sum(counts)
            wait_until(lambda seen=done_before: sum(counts) > seen, "a read of the new file")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert counts[0] > 0
