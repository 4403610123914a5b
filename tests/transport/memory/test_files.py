"""Source files: their leases, and the loans that keep a lease until a peer has read."""

from __future__ import annotations

import builtins
import fcntl
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.files import changing
from splitarrow.errors import DatasetError, ExhaustedError
from splitarrow.transport.memory.files import (
    FileSpan,
    SourceFile,
    holds_file_lease,
    list_leased_files,
)


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


READ_ONLY = (
    "file = open(path, 'r+b')\nmemory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
    f"file.close(){WAIT}"
)


@pytest.mark.parametrize("code", [MAP, READ_ONLY], ids=["map", "map that can become writable"])
def test_a_file_that_is_mapped_for_writing_is_refused(path: Path, code: str) -> None:
    with running(code, path):
        with pytest.raises(DatasetError, match=r"data is open for .* maps it.* rename .*--allow-w"):
            SourceFile(path)
        SourceFile(path, refuse_writers=False).close()
    SourceFile(path).close()


@pytest.mark.parametrize("code", [OPEN, APPEND, LINK], ids=["open", "append", "link"])
def test_a_file_that_is_open_for_writing_is_watched(path: Path, code: str) -> None:
    with running(code, path):
        with pytest.raises(BlockingIOError):
            SourceFile(path, waits=False)
        with closing(SourceFile(path)) as file:
            (writer,) = file.writers
            assert not writer.maps_file
            assert f"by process {writer.pid} (python" in file.describe_writer()
            assert file.part(8, 4) == bytes(4)
            assert list_leased_files() == []
            os.utime(path)
            with pytest.raises(DatasetError, match="changed while it was read: it is open for wr"):
                file.part(8, 4)
    with closing(SourceFile(path)) as file:
        assert file.writers == ()
        assert isinstance(file.part(8, 4), FileSpan)


def test_a_watched_file_that_is_mapped_later_fails_its_checks(path: Path) -> None:
    with path.open("r+b") as ours, closing(SourceFile(path)) as file:
        file.check()
        memory = mmap.mmap(ours.fileno(), 0)
        with memory, pytest.raises(DatasetError, match="was mapped for writing in this process"):
            file.check()


AS_NOBODY = """
import os, sys
from splitarrow.errors import DatasetError
from splitarrow.transport.memory.files import SourceFile
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    print(SourceFile(sys.argv[1]).writers)
except DatasetError as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_the_writer_of_another_user_is_named_or_the_file_is_refused(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # `tmp_path` is closed to other users
        os.chmod(folder, 0o755)
        shared = Path(shutil.copy(path, folder))
        os.chown(shared, 65534, 65534)
        become = "os.setuid(65534)\n"
        with running(become + OPEN, shared), closing(SourceFile(shared)) as file:
            assert len(file.writers) == 1
        with shared.open("r+b"):
            command = [sys.executable, "-c", AS_NOBODY, str(shared)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "by a process that the server cannot examine" in run.stdout, run.stderr


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


# Reading.


class Kernel:
    """Reads at most three bytes at a time, and fails with `error` if there is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> None:
        self.error = error
        self.reads: list[tuple[int, int]] = []
        self._pread, self._preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", self.pread)
        monkeypatch.setattr(os, "preadv", self.preadv)

    def pread(self, descriptor: int, nbytes: int, offset: int) -> bytes:
        if self.error is not None:
            raise self.error
        self.reads.append((offset, nbytes))
        return self._pread(descriptor, min(nbytes, 3), offset)

    def preadv(self, descriptor: int, targets: list[memoryview], offset: int) -> int:
        if self.error is not None:
            raise self.error
        self.reads.append((offset, targets[0].nbytes))
        return self._preadv(descriptor, [targets[0][:3]], offset)


@pytest.fixture
def digits(tmp_path: Path) -> Generator[SourceFile]:
    path = tmp_path / "digits"
    path.write_bytes(b"0123456789")
    file = SourceFile(path)
    yield file
    file.close()


def test_parts_of_a_read_are_joined(digits: SourceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    assert digits.read(1, 8) == b"12345678"
    assert kernel.reads == [(1, 8), (4, 5), (7, 2)]
    kernel.reads.clear()
    target = bytearray(8)
    FileSpan(digits, 1, 8).read_into(memoryview(target))
    assert target == b"12345678"
    assert kernel.reads == [(1, 8), (4, 5), (7, 2)]
    kernel.reads.clear()
    FileSpan(digits, 3, 0).read_into(memoryview(b""))
    assert digits.read(2, 3) == b"234"
    assert kernel.reads == [(2, 3)]


def test_a_read_behind_the_end_is_an_error(
    digits: SourceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kernel(monkeypatch)
    why = "digits ends at byte 10; it had 10 bytes when it was opened"
    with pytest.raises(DatasetError, match=why):
        digits.read(5, 6)
    with pytest.raises(DatasetError, match=why):
        FileSpan(digits, 5, 6).read_into(memoryview(bytearray(6)))


def test_a_file_that_cannot_be_read_is_an_error(
    digits: SourceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kernel(monkeypatch, OSError(5, "Input/output error"))
    with pytest.raises(DatasetError, match=r"cannot read .*digits: Input/output error"):
        digits.read(0, 1)
    with pytest.raises(DatasetError, match=r"cannot read .*digits: Input/output error"):
        FileSpan(digits, 0, 1).read_into(memoryview(bytearray(1)))


def test_a_file_that_cannot_be_opened_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DatasetError, match=r"cannot read .*missing: No such file or directory"):
        SourceFile(tmp_path / "missing")
    refuse_to_open = OSError(24, "Too many open files")
    monkeypatch.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(refuse_to_open))
    with pytest.raises(ExhaustedError):
        SourceFile(tmp_path / "data")


def test_a_file_is_known_by_its_state(path: Path) -> None:
    file = SourceFile(str(path))
    status = path.stat()
    assert file.path == path
    assert file.size == 100_000
    assert file.version == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    assert file.lease_problem is None
    assert str(file.corruption_error(7, "no footer")) == f"{path} is corrupt at byte 7: no footer"
    file.close()
    file.close()
    with pytest.raises(DatasetError, match="was closed while it was read"):
        file.check()


def test_a_part_of_a_file_is_read_ahead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advice.append(arguments))
    file = SourceFile(path)
    file.prefetch(10, 20)
    assert advice == [(file.fileno(), 10, 20, os.POSIX_FADV_WILLNEED)]
    file.close()


def test_each_loan_keeps_the_file_open(path: Path) -> None:
    file = SourceFile(path)
    file.lend()
    file.lend()
    file.close()
    assert list_leased_files() == [file]
    file.take_back()
    assert holds_file_lease(file.fileno())
    file.take_back()
    assert list_leased_files() == []
    with pytest.raises(ValueError, match="closed file"):
        file.fileno()
    assert not file.delays_writer
    file.yield_to_writers()


def test_a_file_without_a_lease_has_no_loans(path: Path) -> None:
    file = SourceFile(path, refuse_writers=False)
    assert list_leased_files() == []
    file.lend()
    assert file._loans == 0
    file.take_back()
    with path.open("r+b"):
        file.check()  # it may be written to
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        file.fileno()


def test_a_lent_file_is_lent_again_while_a_writer_waits(path: Path) -> None:
    file = SourceFile(path)
    file.lend()
    with changing(lambda: path.write_bytes(b"other")):
        file.lend()
        file.take_back()
        assert file.delays_writer
        file.take_back()
        assert not file.delays_writer
        with pytest.raises(DatasetError, match="opened it for writing"):
            file.lend()
        file.close()


def test_a_refused_file_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = builtins.open

    def record(*arguments: Any, **options: Any) -> Any:
        opened.append(real(*arguments, **options))
        return opened[-1]

    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        monkeypatch.setattr(builtins, "open", record)
        with pytest.raises(DatasetError, match="open for writing") as caught:
            SourceFile(path)
        monkeypatch.undo()
        assert caught.value.__traceback__ is not None  # it keeps the file alive
    assert {file.closed for file in opened} == {True}
