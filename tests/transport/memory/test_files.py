"""Source files: their leases, and the loans that keep a lease until a peer has read."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.files import changing
from splitarrow.errors import DatasetError
from splitarrow.transport.memory.file_leases import holds_file_lease
from splitarrow.transport.memory.files import FileSpan, SourceFile, list_leased_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(100_000))
    return path


@contextmanager
def running(code: str, path: Path) -> Generator[None]:
    """Run a program in another process, from its first output until its input ends."""
    command = [sys.executable, "-I", "-c", f"import os, sys, mmap\npath = sys.argv[1]\n{code}"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, str(path)], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.stdin.close()
        assert process.wait(30) == 0


WAIT = "\nprint(flush=True)\nsys.stdin.read()"
OPEN = f"file = open(path, 'r+b'){WAIT}"
MAP = f"file = open(path, 'r+b')\nmemory = mmap.mmap(file.fileno(), 0)\nfile.close(){WAIT}"
APPEND = f"file = open(path, 'ab'){WAIT}"
LINK = f"os.link(path, path + '.link')\nfile = open(path + '.link', 'r+b'){WAIT}"


@pytest.mark.parametrize("code", [OPEN, MAP, APPEND, LINK], ids=["open", "map", "append", "link"])
def test_a_file_with_a_writer_is_refused(path: Path, code: str) -> None:
    with running(code, path):
        with pytest.raises(DatasetError, match=r"data is open for writing, .* rename .*--allow-w"):
            SourceFile(path)
        SourceFile(path, refuse_writers=False).close()
    SourceFile(path).close()


def test_readers_do_not_disturb_each_other(path: Path) -> None:
    with running(f"file = open(path, 'rb'){WAIT}", path):
        files = [SourceFile(path) for _ in range(3)]
        assert len(list_leased_files()) == 3
        for file in files:
            file.check()
            file.close()
    assert list_leased_files() == []


def test_a_writer_continues_once_the_file_is_closed(path: Path) -> None:
    file = SourceFile(path)
    with changing(lambda: path.write_bytes(b"other")):
        with pytest.raises(DatasetError, match="opened it for writing"):
            file.check()
        assert file.read(0, 10) == bytes(10)  # the writer waits
        file.close()
    assert path.read_bytes() == b"other"


def test_a_file_yields_to_a_writer(path: Path) -> None:
    file = SourceFile(path)
    span = FileSpan(file, 0, 100)
    file.yield_to_writers()  # nobody waits
    file.check()
    with changing(lambda: path.write_bytes(b"\xff" * 100_000)):
        file.yield_to_writers()
    with pytest.raises(DatasetError, match="changed while it was read"):
        file.check()
    with pytest.raises(DatasetError, match="changed while it was read"):
        span.read_into(memoryview(bytearray(100)))
    with pytest.raises(DatasetError, match="changed while it was read"):
        file.lend()
    file.close()


def test_a_loan_outlives_the_file(path: Path) -> None:
    file = SourceFile(path)
    file.lend()
    assert not file.delays_writer
    file.close()
    with changing(lambda: path.write_bytes(b"other")):
        file.yield_to_writers()
        assert file.delays_writer
        assert path.stat().st_size == 100_000
        file.take_back()
    assert list_leased_files() == []
    assert not file.delays_writer


def test_a_forked_child_does_not_keep_the_lease(path: Path) -> None:
    file = SourceFile(path)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:  # it inherits the descriptor
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        file.close()
        begin = time.monotonic()
        path.write_bytes(b"other")
        assert time.monotonic() - begin < 5
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_a_file_that_is_garbage_is_no_longer_listed(path: Path) -> None:
    with pytest.warns(ResourceWarning):
        SourceFile(path)
    assert list_leased_files() == []


def test_without_leases_modification_times_count(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("splitarrow.transport.memory.files.take_file_lease", refuse)
    file = SourceFile(path)
    assert file.lease_problem == "it belongs to another user, and the server lacks CAP_LEASE"
    file.check()
    file.lend()
    file.yield_to_writers()
    os.utime(path, ns=(0, 0))
    with pytest.raises(DatasetError, match="changed while it was read"):
        file.check()
    file.close()


def test_the_kernel_signals_a_waiting_writer_harmlessly(path: Path) -> None:
    code = """
from splitarrow.transport.memory.files import SourceFile
import sys, threading
file = SourceFile(sys.argv[1])
thread = threading.Thread(target=open, args=(sys.argv[1], "r+b"))
thread.start()
while thread.is_alive():
    file.yield_to_writers()
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_lease_can_be_read_back(path: Path) -> None:
    with path.open("rb") as file:
        assert not holds_file_lease(file.fileno())
        fcntl.fcntl(file.fileno(), fcntl.F_SETLEASE, fcntl.F_RDLCK)
        assert holds_file_lease(file.fileno())
