"""System calls on mapped pages."""

from __future__ import annotations

import errno
import mmap
import os
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
    functions = {name: getattr(pages._libc, name) for name in ("mmap", "mprotect", "mremap")}
    functions[call] = lambda *_: pages._FAILED
    monkeypatch.setattr(pages, "_libc", SimpleNamespace(**functions))
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.ENOMEM)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        pages.replace_with_copy(address, PAGE)
    monkeypatch.undo()
    assert bytes(pages.view_bytes(address, PAGE)) == b"a" * PAGE
    pages.unmap(address, PAGE)


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="No such device"):
            pages.map_shared(descriptor, PAGE)
    finally:
        os.close(descriptor)
