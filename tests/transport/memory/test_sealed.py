"""Sealed memory: where bodies lie in it, and how much it takes."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from splitarrow.errors import DatasetError, ExhaustedError
from splitarrow.protocol.memory import ALIGNMENT
from splitarrow.transport.memory import sealed
from splitarrow.transport.memory.files import FileSpan, SourceFile
from splitarrow.transport.memory.sealed import SealedMemoryWriter

PAGE = os.sysconf("SC_PAGE_SIZE")
STEP = 8 << 20


@pytest.mark.parametrize(
    ("start", "first"), [(0, 0), (1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)]
)
def test_bodies_are_aligned_and_follow_their_prefixes(
    tmp_path: Path, start: int, first: int
) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 10)
    many = [bytes([n % 256]) for n in range(1100)]  # more than one call writes
    with closing(SourceFile(path)) as file:
        bodies: list[tuple[bytes, list[Any], bytes]] = [
            (b"", [b"abc"], b"abc"),
            (b"prefix", [], b""),
            (b"p" * 61, [memoryview(b"12345678").cast("I"), b"", b"x"], b"12345678x"),
            (b"p", [b"begin", FileSpan(file, 7, 300), b"end"], b"begin%bend"),
            (b"p" * 64, many, b"".join(many)),
        ]
        bodies[3] = (*bodies[3][:2], b"begin" + path.read_bytes()[7:307] + b"end")
        writer, offsets, end = SealedMemoryWriter("label", start), list[int](), first
        for prefix, parts, body in bodies:
            offsets.append(writer.append(prefix, parts, len(body)))
            assert offsets[-1] == -(-(end + len(prefix)) // ALIGNMENT) * ALIGNMENT
            end = offsets[-1] + len(body)
            assert writer.nbytes == end - first
        memory = writer.seal()
    writer.close()
    assert memory.size == end
    data = os.pread(memory.fileno(), end, 0)
    for offset, (prefix, _, body) in zip(offsets, bodies, strict=True):
        assert data[offset - len(prefix) : offset + len(body)] == prefix + body
    assert fcntl.fcntl(memory.fileno(), fcntl.F_GET_SEALS) == 0b1111
    assert fcntl.fcntl(memory.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert not os.get_inheritable(memory.fileno())


def test_memory_is_allocated_in_steps_and_a_share_stays_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int]] = []
    total = 320 << 20
    available = (10 << 20) + STEP
    monkeypatch.setattr(sealed, "read_host_memory", lambda: (available, total))
    monkeypatch.setattr(
        os, "posix_fallocate", lambda _, offset, count: calls.append((offset, count))
    )
    with closing(SealedMemoryWriter("the label")) as writer:
        writer.append(b"", [], 0)
        assert calls == []
        writer.append(b"", [], 1)
        assert calls == [(0, STEP)]
        writer.append(b"", [], STEP - 64)
        assert calls == [(0, STEP)]
        writer._end = STEP
        writer.append(b"", [], STEP)
        assert calls[1:] == [(STEP, STEP)]
        writer._end = 2 * STEP
        with pytest.raises(
            ExhaustedError, match=f"share the label: it needs {STEP + 1} more bytes"
        ):
            writer.append(b"", [], STEP + 1)
        assert writer.nbytes == 2 * STEP
        available += 1
        writer.append(b"", [], STEP + 1)
        assert calls[2:] == [(2 * STEP, STEP + 1)]


def test_a_host_that_cannot_allocate_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with (
        closing(SealedMemoryWriter("the label")) as writer,
        pytest.raises(ExhaustedError, match="the label: No space left on device"),
    ):
        writer.append(b"", [b"x"], 1)


def test_a_span_that_a_file_no_longer_has_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    with (
        closing(SourceFile(path, refuse_writers=False)) as file,
        closing(SealedMemoryWriter("label")) as writer,
        pytest.raises(DatasetError, match="ends at byte"),
    ):
        writer.append(b"", [FileSpan(file, 50, 51)], 51)


def test_an_unsealed_writer_frees_its_memory() -> None:
    writer = SealedMemoryWriter("label")
    descriptor = writer._descriptor
    writer.close()
    writer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_the_memory_of_the_host_is_in_bytes() -> None:
    available, total = sealed.read_host_memory()
    assert total == pytest.approx(os.sysconf("SC_PHYS_PAGES") * PAGE, rel=0.05)
    assert 0 < available <= total


def test_a_call_writes_at_most_512_parts_and_may_write_fewer_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    pwritev = os.pwritev

    def write(descriptor: int, views: list[memoryview], position: int) -> int:
        counts.append(len(views))
        data = b"".join(views)
        return pwritev(descriptor, [data[: 400 if len(counts) == 1 else None]], position)

    monkeypatch.setattr(os, "pwritev", write)
    parts = [bytes([n % 251] * 3) for n in range(600)]
    with closing(SealedMemoryWriter("label")) as writer:
        assert writer.append(b"prefix", parts, 1800) == 64
        memory = writer.seal()
    assert os.pread(memory.fileno(), 1806, 58) == b"prefix" + b"".join(parts)
    # The first call ended within the 132nd part.
    assert counts == [512, 469]


def test_a_file_is_copied_in_several_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(200)))
    calls: list[tuple[int, int]] = []
    sendfile = os.sendfile

    def send(target: int, source: int, offset: int, count: int) -> int:
        calls.append((offset, count))
        return sendfile(target, source, offset, min(count, 40))

    monkeypatch.setattr(os, "sendfile", send)
    with (
        closing(SourceFile(path)) as file,
        closing(SealedMemoryWriter("label")) as writer,
    ):
        assert writer.append(b"", [b"ab", FileSpan(file, 10, 100), b"cd"], 104) == 0
        memory = writer.seal()
    assert calls == [(10, 100), (50, 60), (90, 20)]
    assert os.pread(memory.fileno(), 200, 0) == b"ab" + path.read_bytes()[10:110] + b"cd"


def test_a_file_that_changes_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    with (
        closing(SourceFile(path, refuse_writers=False)) as file,
        closing(SealedMemoryWriter("label")) as writer,
    ):
        os.utime(path, ns=(0, 0))
        with pytest.raises(DatasetError, match="changed while it was read"):
            writer.append(b"", [FileSpan(file, 0, 100)], 100)


def test_memory_that_cannot_be_sealed_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SealedMemoryWriter("label")
    descriptor = writer._descriptor

    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(OSError, match="not permitted"):
        writer.seal()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    writer.close()


def test_sealed_memory_is_a_file_without_a_lease() -> None:
    with closing(SealedMemoryWriter("the label")) as writer:
        writer.append(b"", [b"abc"], 3)
        memory = writer.seal()
    status = os.fstat(memory.fileno())
    assert str(memory.path) == "the label"
    assert (memory.size, memory.lease_problem, memory.delays_writer) == (3, None, False)
    assert memory.version == (status.st_dev, status.st_ino, 3, status.st_mtime_ns)
    memory.check()
    memory.lend()
    assert memory._loans == 0
    assert memory.read(1, 2) == b"bc"
    descriptor = memory.fileno()
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    another = SealedMemoryWriter("the label")
    memory = another.seal()
    memory.close()
    with pytest.raises(ValueError, match="closed file"):
        memory.fileno()


def test_a_writer_that_is_garbage_frees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[int] = []
    create = os.memfd_create

    def record(name: str, its_flags: int) -> int:
        flags.append(its_flags)
        return create(name, its_flags)

    monkeypatch.setattr(os, "memfd_create", record)
    writer = SealedMemoryWriter("label")
    descriptor = writer._descriptor
    assert flags == [os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING]
    del writer
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_writer_may_have_descriptor_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was started without standard input."""
    writer = SealedMemoryWriter("label")
    real, writer._descriptor = writer._descriptor, 0
    closed: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closed.append)
        writer.close()
        writer.close()
    os.close(real)
    assert closed == [0]
