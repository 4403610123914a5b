"""Where a run took place: versions and the kind of machine, without its name."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("splitarrow", "pyarrow", "anyio")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def machine() -> dict[str, Any]:
    """Return the processor, the number of its threads, the memory in bytes and the kernel."""
    return {
        "processor": _value("/proc/cpuinfo", "model name") or platform.machine(),
        "threads": _usable_threads(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def _usable_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    value = _value("/proc/meminfo", "MemTotal")
    return None if value is None else int(value.split()[0]) * 1024


def _value(path: str, name: str) -> str | None:
    try:
        text = Path(path).read_text()
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
