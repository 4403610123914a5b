"""System calls on mapped pages."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from splitarrow.transport.memory import pages

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize(
    ("spans", "ranges"),
    [
        ([], []),
        ([(7, 0)], []),
        ([(0, 1)], [(0, 10)]),
        ([(9, 1)], [(0, 10)]),
        ([(9, 2)], [(0, 20)]),
        ([(10, 10)], [(10, 20)]),
        ([(0, 10), (10, 1)], [(0, 20)]),
        ([(0, 10), (20, 1)], [(0, 10), (20, 30)]),
        ([(25, 1), (0, 1)], [(0, 10), (20, 30)]),
        ([(0, 40), (10, 5)], [(0, 40)]),
    ],
    ids=str,
)
def test_the_pages_of_spans(spans: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> None:
    assert pages.find_page_ranges(spans, 10) == ranges


def test_a_copy_replaces_the_pages_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"a" * PAGE + b"b" * PAGE)
    with path.open("rb") as file:
        address = pages.map_shared(file.fileno(), 2 * PAGE)
    try:
        pages.populate(address + 5, 2 * PAGE - 5)
        pages.replace_with_copy(address, PAGE)
        path.write_bytes(b"c" * 2 * PAGE)
        assert bytes(pages.view_bytes(address, 2 * PAGE)) == b"a" * PAGE + b"c" * PAGE
    finally:
        pages.unmap(address, 2 * PAGE)


@pytest.mark.parametrize("call", ["mmap", "mremap"])
def test_a_copy_that_cannot_be_made_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"a" * PAGE)
    with path.open("rb") as file:
        address = pages.map_shared(file.fileno(), PAGE)
    names = ("mmap", "mprotect", "mremap", "munmap")
    functions = {name: getattr(pages._libc, name) for name in names}
    functions[call] = lambda *_: pages._FAILED
    freed: list[int] = []
    functions["munmap"] = lambda _, nbytes: freed.append(nbytes)
    monkeypatch.setattr(pages, "_libc", SimpleNamespace(**functions))
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.ENOMEM)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        pages.replace_with_copy(address, PAGE)
    monkeypatch.undo()
    assert bytes(pages.view_bytes(address, PAGE)) == b"a" * PAGE
    assert freed == [PAGE] * (call == "mremap")  # the copy
    pages.unmap(address, PAGE)


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="No such device"):
            pages.map_shared(descriptor, PAGE)
    finally:
        os.close(descriptor)


def test_the_kernel_gets_the_numbers_of_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """See ``mman.h``: PROT_READ is 1, PROT_WRITE 2, MAYMOVE 1, FIXED 2 and POPULATE_READ 22."""
    calls: list[tuple[str, tuple[object, ...]]] = []

    def record(name: str, result: int) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            calls.append((name, arguments))
            return result

        return call

    source = ctypes.create_string_buffer(b"x" * PAGE)
    copy = ctypes.create_string_buffer(PAGE)
    address, target = ctypes.addressof(source), ctypes.addressof(copy)
    results = {"mmap": target, "mprotect": 0, "mremap": address, "munmap": 0, "madvise": 0}
    functions = {name: record(name, result) for name, result in results.items()}
    monkeypatch.setattr(pages, "_libc", SimpleNamespace(**functions))
    assert pages.map_shared(7, 100) == target
    pages.unmap(8 * PAGE, 100)
    pages.populate(8 * PAGE + 5, 10)
    pages.populate(8 * PAGE, 10)
    pages.replace_with_copy(address, PAGE)
    assert copy.raw == source.raw[:PAGE]
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    assert calls == [
        ("mmap", (None, 100, 1, mmap.MAP_SHARED, 7, 0)),
        ("munmap", (8 * PAGE, 100)),
        ("madvise", (8 * PAGE, 15, 22)),
        ("madvise", (8 * PAGE, 10, 22)),
        ("mmap", (None, PAGE, 3, anonymous, -1, 0)),
        ("mprotect", (target, PAGE, 1)),
        ("mremap", (target, PAGE, PAGE, 3, address)),
    ]
