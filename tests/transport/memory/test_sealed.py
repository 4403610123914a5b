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
