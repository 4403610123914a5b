"""The machine: its versions and hardware, and the memory of its processes.

Nothing here identifies the host.
"""

from __future__ import annotations

import os
import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Self

SAMPLE_SECONDS = 0.02
"""The default interval of a `MemorySampler`, in seconds."""


class ProcessMemory(NamedTuple):
    """The memory of a process."""

    peak: int | None
    """The maximum resident memory since the last `reset_peak`, mapped files included."""
    anonymous: int | None
    """The resident memory that is not the contents of files."""


_UNKNOWN = ProcessMemory(None, None)


class Sampler(ABC):
    """A context in which a thread takes a sample every `interval` seconds, and one at the end."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._sample()

    @abstractmethod
    def _sample(self) -> None: ...


class MemorySampler(Sampler):
    """Samples the memory of processes."""

    def __init__(
        self, find_processes: Callable[[], Iterable[int]], interval: float = SAMPLE_SECONDS
    ) -> None:
        super().__init__(interval)
        self.maxima: dict[int, ProcessMemory] = {}
        """The largest figures of each process, by process id."""
        self._find_processes = find_processes

    def _sample(self) -> None:
        for pid in self._find_processes():
            known, current = self.maxima.get(pid, _UNKNOWN), read_memory(pid)
            self.maxima[pid] = ProcessMemory(
                max_known([known.peak, current.peak]),
                max_known([known.anonymous, current.anonymous]),
            )


def read_memory(pid: int) -> ProcessMemory:
    """Return the memory of a process. That of a process that has exited is unknown."""
    fields = _read_fields(f"/proc/{pid}/status")
    return ProcessMemory(fields.get("VmHWM"), fields.get("RssAnon"))


def read_shared_memory(pid: int) -> int:
    """Return the memory of a process, with its share of pages that several processes use (PSS).

    That of a process that has exited is 0.
    """
    return _read_fields(f"/proc/{pid}/smaps_rollup").get("Pss", 0)


def process_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reset_peak(pid: int) -> None:
    """Reset the peak of a process to its current memory, if the kernel permits it."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_bytes(b"5")
    except OSError:
        pass  # the peak then counts from the start of the process


def host_memory() -> int | None:
    """Return the memory of this host."""
    return _read_fields("/proc/meminfo").get("MemTotal")


def host_memory_in_use() -> int:
    """Return the memory in use on this host, without the page cache of files.

    Raises `KeyError` if it is unknown.
    """
    fields = _read_fields("/proc/meminfo")
    return fields["AnonPages"] + fields["Shmem"]


def max_known(values: Iterable[int | None]) -> int | None:
    """Return the maximum of the known values; None if all are unknown (None)."""
    return max((value for value in values if value is not None), default=None)


def _read_fields(path: str) -> dict[str, int]:
    """Return the sizes in a file of ``/proc`` by their names; none if it cannot be read."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError:
        return {}
    sizes: dict[str, int] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        if value.endswith(b" kB"):
            sizes[name.decode()] = int(value[:-3]) * 1024
    return sizes


_PACKAGES = ("splitarrow", "pyarrow", "anyio")


def software_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect the figures."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def machine_properties() -> dict[str, Any]:
    """Return the processor, its usable threads, the memory in bytes and the kernel version."""
    return {
        "processor": _processor_model() or platform.machine(),
        "threads": len(os.sched_getaffinity(0)),
        "memory_bytes": host_memory(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def _processor_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None
