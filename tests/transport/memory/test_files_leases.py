"""File leases: the system calls, and the reasons for which the kernel refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

import pytest

from splitarrow.transport.memory.files import (
    describe_refusal,
    drop_file_lease,
    holds_file_lease,
    take_file_lease,
)

F_SETSIG = 10
"""The number of the command, from ``fcntl.h``."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(b"data")
    return path


def test_a_lease_is_taken_with_a_signal_that_is_ignored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int, int]] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda *arguments: calls.append(arguments))
    take_file_lease(7)
    assert calls == [(7, F_SETSIG, signal.SIGURG), (7, fcntl.F_SETLEASE, fcntl.F_RDLCK)]


def test_a_lease_is_taken_and_dropped(path: Path) -> None:
    with path.open("rb") as file:
        descriptor = file.fileno()
        drop_file_lease(descriptor)  # there is none
        take_file_lease(descriptor)
        assert holds_file_lease(descriptor)
        drop_file_lease(descriptor)
        assert not holds_file_lease(descriptor)


def test_a_file_with_a_writer_has_no_lease(path: Path) -> None:
    with path.open("r+b"), path.open("rb") as file, pytest.raises(BlockingIOError):
        take_file_lease(file.fileno())


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EAGAIN, "another process has it open for writing"),
        (errno.EACCES, "it belongs to another user, and the server lacks CAP_LEASE"),
        (errno.EPERM, "it belongs to another user, and the server lacks CAP_LEASE"),
        (errno.EINVAL, "its file system does not support file leases (Invalid argument)"),
    ],
)
def test_each_refusal_has_a_reason(number: int, reason: str) -> None:
    assert describe_refusal(OSError(number, os.strerror(number))) == reason
