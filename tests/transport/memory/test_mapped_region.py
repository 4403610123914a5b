"""Mapped regions: their descriptors, their buffers, and what revoking them leaves."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import ConnectionLostError, DatasetError, LimitError, ProtocolError
from splitarrow.transport.memory import mapped_region, pages
from splitarrow.transport.memory.mapped_region import REGIONS, REVOCATIONS, MappedRegion

PAGE = mmap.PAGESIZE
DATA = bytes(range(256)) * (4 * PAGE // 256)
F_ADD_SEALS = 1033
SEAL, SHRINK, GROW, WRITE, FUTURE_WRITE = 1, 2, 4, 8, 16


@pytest.fixture(scope="module", autouse=True)
def process_that_has_watched() -> None:
    """Open the descriptor with which the process watches for revocations."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        REVOCATIONS.add(theirs.fileno(), MappedRegion(sealed_memory(), 1))
        REVOCATIONS.remove(theirs.fileno())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


def open_file(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def sealed_memory(seals: int = SHRINK | GROW | WRITE) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(descriptor, DATA)
    fcntl.fcntl(descriptor, F_ADD_SEALS, seals)
    return descriptor


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def guard() -> Iterator[tuple[socket.socket, int]]:
    """The server's end of a revocation socket, and the reader's, which a region will own."""
    ours, theirs = socket.socketpair()
    with ours:
        yield ours, theirs.detach()


# Descriptors.


def test_the_descriptor_of_constant_memory_is_closed(
    path: Path, guard: tuple[socket.socket, int]
) -> None:
    sealed, guarded, plain = sealed_memory(), open_file(path), open_file(path)
    regions = [
        MappedRegion(sealed, len(DATA)),
        MappedRegion(guarded, len(DATA), guard[1]),
        MappedRegion(plain, len(DATA)),
    ]
    assert [is_open(each) for each in (sealed, guarded, plain)] == [False, False, True]
    assert is_open(guard[1])
    for region in regions:
        assert region.size == len(DATA)
        assert region.buffer(0, len(DATA), None).to_pybytes() == DATA
        region.check()
        region.close()
        region.close()
    assert not is_open(plain)
    assert not is_open(guard[1])
    assert guard[1] not in REVOCATIONS._regions


@pytest.mark.parametrize(
    ("size", "error"),
    [(len(DATA) + 1, ProtocolError), (1 << 80, ProtocolError), (-1, LimitError)],
)
def test_a_region_that_is_refused_closes_its_descriptors_at_once(
    path: Path, guard: tuple[socket.socket, int], size: int, error: type[Exception]
) -> None:
    descriptor = open_file(path)
    with pytest.raises(error, match="region") as caught:
        MappedRegion(descriptor, size, guard[1])
    assert caught.value.__traceback__ is not None  # it keeps the region alive
    assert not is_open(descriptor)
    assert not is_open(guard[1])


def test_descriptors_may_have_the_number_0(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was started without standard input."""
    closed: list[int] = []
    removed: list[int] = []
    region = MappedRegion(open_file(path), len(DATA))
    real, region._descriptor, region._revocation = region._descriptor, 0, 0
    monkeypatch.setattr(region, "check", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closed.append)
        patch.setattr(REVOCATIONS, "remove", removed.append)
        with region.hold_descriptors() as descriptors:
            assert descriptors == [0, 0]
        region.close()
    os.close(real)
    assert (closed, removed) == ([0, 0], [0])
    region._descriptor = region._revocation = -1
    with region.hold_descriptors() as descriptors:
        assert descriptors == []


def test_a_revocation_socket_may_have_the_number_0(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[int] = []
    monkeypatch.setattr(REVOCATIONS, "add", lambda descriptor, region: added.append(descriptor))
    descriptor = open_file(path)
    region = MappedRegion(descriptor, len(DATA), 0)
    assert (added, is_open(descriptor)) == ([0], False)
    region._revocation = -1


def test_an_empty_region_is_not_mapped(path: Path) -> None:
    region = MappedRegion(open_file(path), 0)
    assert (region.size, region.address) == (0, 0)
    assert region.buffer(0, 0, None).size == 0
    with pytest.raises(ProtocolError, match="1 bytes at offset 0 are outside a region of 0 bytes"):
        region.buffer(0, 1, None)
    region.close()


@pytest.mark.parametrize(
    ("seals", "is_accepted"),
    [
        (SHRINK | GROW | WRITE, True),
        (SHRINK | GROW | FUTURE_WRITE, True),
        (SHRINK | GROW, False),
        (SHRINK | WRITE, False),
        (GROW | WRITE, False),
        (SEAL, False),
    ],
)
def test_memory_has_to_be_sealed(seals: int, is_accepted: bool) -> None:
    descriptor = sealed_memory(seals)
    if is_accepted:
        assert MappedRegion(descriptor, len(DATA)).buffer(5, 3, None).to_pybytes() == DATA[5:8]
    else:
        with pytest.raises(ProtocolError, match="is not sealed"):
            MappedRegion(descriptor, len(DATA))
    assert not is_open(descriptor)


def test_a_region_frees_what_it_owns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Any] = []
    region_address = -1

    class Registration:
        def __del__(self) -> None:
            order.append("registration")

    def unmap(address: int, nbytes: int) -> None:
        if address in (region_address, 0):
            order.append((address, nbytes))
        pages.unmap(address, nbytes)

    monkeypatch.setattr(mapped_region, "unmap", unmap)
    descriptor = open_file(path)
    region = MappedRegion(descriptor, 100)
    region.registrations["context"] = Registration()
    region_address, buffer = region.address, region.buffer(10, 5, None)
    del region
    assert order == []  # the buffer keeps the region mapped
    assert buffer.to_pybytes() == DATA[10:15]
    del buffer
    assert order == ["registration", (region_address, 100)]
    assert not is_open(descriptor)
    order.clear()
    MappedRegion(open_file(path), 0)
    assert order == []


# Buffers.


@pytest.mark.parametrize("seals", [True, False])
def test_a_buffer_keeps_its_owner_alive(path: Path, seals: bool) -> None:
    freed: list[bool] = []

    class Lease:
        def __del__(self) -> None:
            freed.append(True)

    region = MappedRegion(sealed_memory() if seals else open_file(path), len(DATA))
    buffer = region.buffer(1, 2, Lease())
    assert len(region._buffers) == (not seals)
    assert freed == []
    del buffer
    assert freed == [True]
    assert region._buffers == {}
    region.close()


def test_a_span_has_to_be_inside_the_region(path: Path) -> None:
    region = MappedRegion(open_file(path), 100)
    assert region.buffer(99, 1, None).to_pybytes() == DATA[99:100]
    assert region.buffer(100, 0, None).size == 0
    for offset, nbytes in [(-1, 1), (0, -1), (0, 101), (100, 1), (101, 0)]:
        with pytest.raises(
            ProtocolError, match=f"{nbytes} bytes at offset {offset} are outside a region of 100"
        ):
            region.buffer(offset, nbytes, None)
    region.close()


def test_a_buffer_includes_its_prefix_if_that_is_there(path: Path) -> None:
    region = MappedRegion(open_file(path), 100)
    found = region.prefixed_buffer(DATA[2:6], 6, 10, None)
    assert found is not None
    assert found.to_pybytes() == DATA[2:16]
    assert found.address == region.address + 2
    first = region.prefixed_buffer(DATA[:6], 6, 10, None)
    assert first is not None
    assert first.to_pybytes() == DATA[:16]
    assert region.prefixed_buffer(b"other!", 6, 10, None) is None
    assert region.prefixed_buffer(DATA[:6], 5, 10, None) is None
    region.close()


def test_pages_are_entered_from_the_address_of_a_span(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(mapped_region, "populate", lambda *span: calls.append(span))
    region = MappedRegion(open_file(path), 100)
    region.populate(7, 20)
    assert calls == [(region.address + 7, 20)]
    region.close()


# Files that change.


@pytest.mark.parametrize(
    ("size", "change"), [(len(DATA) - 1, "truncated"), (len(DATA) + 1, "written to")]
)
def test_a_file_without_a_guard_is_checked(path: Path, size: int, change: str) -> None:
    region = MappedRegion(open_file(path), 100)
    region.check()
    os.truncate(path, size)
    with pytest.raises(DatasetError, match=f"was {change} while it was read"):
        region.check()
    os.truncate(path, len(DATA))
    os.utime(path, ns=(0, 0))
    with pytest.raises(DatasetError, match="was written to while it was read"):
        region.check()
    region.close()


@pytest.mark.parametrize(
    ("server_gone", "error", "why"),
    [
        (True, ConnectionLostError, "server that shared the file is gone"),
        (False, DatasetError, "is being changed by another process"),
    ],
)
def test_a_revoked_file_keeps_the_pages_in_use(
    path: Path,
    guard: tuple[socket.socket, int],
    server_gone: bool,
    error: type[Exception],
    why: str,
) -> None:
    region = MappedRegion(open_file(path), len(DATA), guard[1])
    buffers = [region.buffer(5, 10, None), region.buffer(3 * PAGE - 1, 2, None)]
    assert not region.is_lost
    region.revoke(server_gone=server_gone)
    assert region.is_lost
    assert not is_open(guard[1])
    assert guard[0].recv(1) == b""
    path.write_bytes(b"x" * len(DATA))
    contents = [DATA[5:15], DATA[3 * PAGE - 1 : 3 * PAGE + 1]]
    assert [each.to_pybytes() for each in buffers] == contents
    mapped = pages.view_bytes(region.address + PAGE, PAGE)
    assert bytes(mapped) == b"x" * PAGE  # no buffer uses this page
    for call in (region.check, lambda: region.buffer(0, 1, None)):
        with pytest.raises(error, match=why):
            call()
    with pytest.raises(error, match=why), region.hold_descriptors():
        pass


def test_a_host_without_memory_leaves_the_pages_mapped(
    path: Path, guard: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(address: int, nbytes: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mapped_region, "replace_with_copy", fail)
    region = MappedRegion(open_file(path), len(DATA), guard[1])
    buffer = region.buffer(0, 5, None)
    region.revoke(server_gone=False)
    assert region.is_lost
    assert buffer.to_pybytes() == DATA[:5]


def test_an_open_directory_keeps_the_descriptor(path: Path) -> None:
    REGIONS.open()
    try:
        descriptor = sealed_memory()
        region = MappedRegion(descriptor, len(DATA))
        assert is_open(descriptor)
        with region.hold_descriptors() as descriptors:
            assert descriptors == [descriptor]
        number, _ = REGIONS.find(region.address, 1) or (None, None)
        assert number is not None
        del region, _
        assert REGIONS.get(number) is None
        assert number not in REGIONS._regions
        assert not is_open(descriptor)
    finally:
        REGIONS.close()


def test_a_buffer_is_not_copied() -> None:
    region = MappedRegion(sealed_memory(), len(DATA))
    buffer = region.buffer(100, 28, None)
    assert isinstance(buffer, pa.Buffer)
    assert (buffer.address, buffer.size) == (region.address + 100, 28)
