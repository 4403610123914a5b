"""How much memory a process uses, as the kernel tells it; nothing where there is no /proc."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_PEAK = b"\nVmHWM:"
_ANONYMOUS = b"\nRssAnon:"


class Memory(NamedTuple):
    """The memory of a process, in bytes; None where the kernel does not tell."""

    peak: int | None
    """The most that was resident since the peak was reset, mapped files included."""
    anonymous: int | None
    """What is resident now and not the contents of files."""


def memory_of(pid: int) -> Memory:
    """Return the memory of a process; of one that is gone, nothing is known."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return Memory(None, None)
    return Memory(_field(status, _PEAK), _field(status, _ANONYMOUS))


def reset_peak(pid: int) -> None:
    """Let the peak of a process begin anew, where that is allowed."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_bytes(b"5")
    except OSError:
        pass  # the peak then counts from the start of the process


def larger(one: int | None, other: int | None) -> int | None:
    """Return the larger of two figures that may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _field(status: bytes, name: bytes) -> int | None:
    _, found, rest = status.partition(name)
    return int(rest.split(None, 1)[0]) * 1024 if found else None
