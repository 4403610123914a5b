"""The processes that have a file open for writing, as far as ``/proc`` shows them.

The kernel shows the descriptors and mappings of a process to its own user and to processes with
CAP_SYS_PTRACE, and only within their PID namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .pages import map_shared, unmap

_WRITABLE = 0o222
_MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that has a file open for writing."""

    pid: int
    """Its number."""
    maps_file: bool
    """Whether it has a shared mapping of the file that is writable, or can become so."""

    def __str__(self) -> str:
        if self.pid == os.getpid():
            return "in this process"
        name = _name_process(self.pid)
        return f"by process {self.pid} ({name})" if name else f"by process {self.pid}"


class WriterSearch:
    """A search for the processes that have one file open for writing."""

    def __init__(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._file = (status.st_dev, status.st_ino)
        self._mapped_file = _identify_mapped(descriptor) if status.st_size else None

    def find(self) -> tuple[Writer, ...]:
        """Return the writers that this process may examine, those that map the file first."""
        found: list[Writer] = []
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with suppress(OSError):  # it has ended, or belongs to another user
                    is_open = self._has_descriptor(name)
                    maps_file = self.maps_file(int(name))
                    if is_open or maps_file:
                        found.append(Writer(int(name), maps_file))
        return tuple(sorted(found, key=lambda writer: not writer.maps_file))

    def maps_file(self, pid: int) -> bool:
        """Return whether a process has a shared mapping of the file that can become writable.

        Raises `OSError` if the process has ended or cannot be examined.
        """
        if not any(shared and file == self._mapped_file for _, _, shared, file in _mappings(pid)):
            return False
        # A mapping that is read-only now may be dirty. `mprotect` makes it writable again.
        is_file = False
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, rest = line.partition(" ")
                if not key.endswith(":"):
                    is_file = _parse_mapping(line)[3] == self._mapped_file
                elif is_file and key == "VmFlags:" and {"sh", "mw"} <= set(rest.split()):
                    return True
        return False

    def _has_descriptor(self, process: str) -> bool:
        with os.scandir(f"/proc/{process}/fd") as entries:
            for entry in entries:
                with suppress(OSError):  # it was closed
                    if entry.stat(follow_symlinks=False).st_mode & _WRITABLE:
                        status = entry.stat()
                        if (status.st_dev, status.st_ino) == self._file:
                            return True
        return False


_Mapping = tuple[int, int, bool, tuple[str, str]]
"""The first address and the end of a mapping, whether it is shared, and its device and inode."""


def _mappings(pid: int) -> Iterator[_Mapping]:
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            yield _parse_mapping(line)


def _parse_mapping(line: str) -> _Mapping:
    addresses, permissions, _, device, inode = line.split(maxsplit=5)[:5]
    begin, _, end = addresses.partition("-")
    return int(begin, 16), int(end, 16), permissions.endswith("s"), (device, inode)


def _identify_mapped(descriptor: int) -> tuple[str, str] | None:
    """Return the device and inode of mappings of a file.

    On some file systems, such as btrfs and overlayfs, they differ from those that `stat` returns.
    """
    try:
        address = map_shared(descriptor, 1)
    except OSError:
        return None  # no process can map it
    try:
        for begin, end, _, file in _mappings(os.getpid()):
            if begin <= address < end:
                return file
    finally:
        unmap(address, 1)
    return None


def _name_process(pid: int) -> str:
    """Return the program of a process and its script. Other arguments may be secret."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    names = [os.path.basename(command[0])]
    if names[0].startswith("python") and len(command) > 1 and not command[1].startswith("-"):
        names.append(os.path.basename(command[1]))
    return "".join(c if c.isprintable() else "?" for c in " ".join(names))[:_MAX_NAME]
