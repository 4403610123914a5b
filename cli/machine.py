"""What this machine has: versions, transports, limits."""

from __future__ import annotations

import os
import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import SplitArrowError
from .figures import size

_PACKAGES = (
    "pyarrow",
    "anyio",
    "grpcio",
    "protobuf",
    "joserfc",
    "libucx-cu12",
    "vortex-data",
    "torch",
    "pyspark",
)
_FILES = 4096
_SHM = 1 << 30
_MEMORY = 1 << 30
_POSSIBLE = ("inproc", "tcp", "tcp+tls", "shm", "ucx")


def versions() -> dict[str, str | None]:
    """Return what is installed, by name; None for what is not."""
    from .. import __version__

    found: dict[str, str | None] = {
        "splitarrow": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def transports() -> list[dict[str, Any]]:
    """Return for each transport whether it can be used, and if not, why."""
    from ..protocol.uri import DataUri
    from ..transport.registry import schemes, transport_for

    found: list[dict[str, Any]] = []
    for scheme in dict.fromkeys((*_POSSIBLE, *schemes())):
        reason = detail = hints = None
        if scheme not in schemes():
            reason = "this version does not have it"
        else:
            try:
                transport = transport_for(DataUri(scheme))
                detail = getattr(transport, "detail", None)
                hints = getattr(transport, "hints", None)
            except (SplitArrowError, ImportError, OSError) as error:
                reason = str(error)
        if scheme == "shm" and reason is None and not os.access("/dev/shm", os.W_OK):
            reason = "/dev/shm cannot be written"
        about = {"scheme": scheme, "available": reason is None, "reason": reason}
        if detail is not None:
            about["detail"] = detail()
        if hints is not None:
            about["hints"] = hints()
        found.append(about)
    reason = None
    try:
        import grpc  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        reason = str(error)
    found.append({"scheme": "flight", "available": reason is None, "reason": reason})
    return found


def java() -> dict[str, Any]:
    """Return which Java Spark would run on; if there is none, why."""
    from ..pipeline.java import find_java

    try:
        found = find_java()
    except SplitArrowError as error:
        return {"available": False, "reason": str(error)}
    return {
        "available": True,
        "version": found.version,
        "origin": found.origin,
        "executable": str(found.executable),
    }


def limits() -> list[dict[str, Any]]:
    """Return the limits that matter, and what to do about those that are low."""
    found: list[dict[str, Any]] = []

    def add(name: str, value: str, advice: str | None = None, *, low: bool = False) -> None:
        found.append({"name": name, "value": value, "advice": advice if low else None})

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} (at most {hard})"
    low = soft != resource.RLIM_INFINITY and soft < _FILES
    add("open files", files, f"raise it for many readers: ulimit -n {_FILES}", low=low)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = locked == resource.RLIM_INFINITY
    add("locked memory", "unlimited" if unlimited else size(locked))
    try:
        shm = os.statvfs("/dev/shm")
    except OSError as error:
        add("/dev/shm", "absent", f"no shared memory: {error.strerror}", low=True)
    else:
        free = shm.f_bavail * shm.f_frsize
        advice = "small for shared memory; in a container: --shm-size"
        add(
            "/dev/shm",
            f"{size(free)} free of {size(shm.f_blocks * shm.f_frsize)}",
            advice,
            low=free < _SHM,
        )
    memory = _memory()
    if memory is not None:
        total, free = memory
        advice = "little memory is left for batches"
        add("memory", f"{size(free)} free of {size(total)}", advice, low=free < _MEMORY)
    add("processors", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}")
    return found


def _memory() -> tuple[int, int] | None:
    """Return how much memory there is, and how much is free; a container's, if it has less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        known = {
            line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if "kB" in line
        }
        total, free = known["MemTotal"], known["MemAvailable"]
    except (OSError, KeyError, ValueError):
        return None
    try:
        most = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return total, free
    return min(total, most), max(0, min(free, most - used))
