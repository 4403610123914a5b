"""The conditions of a run: versions and hardware, without anything that identifies the host."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from .memory import host_memory

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
        "threads": _usable_threads(),
        "memory_bytes": host_memory(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def _usable_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
