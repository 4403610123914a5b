"""The lanes of a connection: their capabilities, and hints why a host lacks faster ones."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

ADAPTERS_FOLDER = Path("/sys/class/infiniband")
"""The folder in which the kernel lists RDMA adapters."""
COPYING = frozenset({"cma", "xpmem", "knem"})
"""Transports by which a process reads another's memory through its page tables."""
_PINNING = ("rc", "dc", "ud", "gga", "ugni", "srd", "efa")
"""Prefixes of transports whose adapters read the physical pages that were registered."""
_READING = ("rc", "dc", "gga", "ugni")
"""Prefixes of transports whose adapters can read a peer's memory."""
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_CUDA_DRIVER = "libcuda.so.1"


def lanes_read_remotely(lanes: Iterable[str]) -> bool:
    """Return whether one of the lanes reads a peer's memory without the peer's help."""
    return any(name in COPYING or name.startswith(_READING) for name in map(parse_transport, lanes))


def lanes_pin_memory(lanes: Iterable[str]) -> bool:
    """Return whether a lane reads physical pages, and not those that replace them."""
    return any(parse_transport(lane).startswith(_PINNING) for lane in lanes)


def list_rdma_adapters() -> list[str]:
    """Return the names of this host's RDMA adapters."""
    if not ADAPTERS_FOLDER.is_dir():
        return []
    return sorted(entry.name for entry in ADAPTERS_FOLDER.iterdir())


def parse_transport(lane: str) -> str:
    """Return the transport of a lane."""
    return lane.partition("/")[0]


def list_performance_hints(lanes: Iterable[str]) -> list[str]:
    """Return the reasons why faster lanes are not used, one sentence each."""
    transports = {parse_transport(lane) for lane in lanes}
    hints: list[str] = []
    chosen = os.environ.get("UCX_TLS")
    if chosen is not None:
        hints.append(f"UCX_TLS={chosen} is set, which excludes other lanes")
    if not transports & COPYING and chosen is None:
        hints.append(f"no cma: {_missing_cma_reason()}")
    adapters = list_rdma_adapters()
    if not adapters:
        hints.append(f"no RDMA: this host has no adapter ({ADAPTERS_FOLDER} is empty)")
    elif not lanes_read_remotely(transports - COPYING):
        hints.append(
            f"no RDMA, although this host has {', '.join(adapters)}: the wheel libucx-cu12 lacks "
            "RDMA transports; install the system's UCX and set "
            "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"
        )
    try:
        ctypes.CDLL(_CUDA_DRIVER)
    except OSError:
        hints.append(f"no CUDA: {_CUDA_DRIVER} is not installed, so GPU memory cannot be sent")
    return hints


def _missing_cma_reason() -> str:
    try:
        scope = _PTRACE_SCOPE.read_text().strip()
    except OSError:
        scope = "0"
    if scope != "0":
        return (
            f"kernel.yama.ptrace_scope is {scope}, so processes cannot read each other's memory "
            "and bodies are copied twice"
        )
    return (
        "processes cannot read each other's memory here, so bodies are copied twice; give a "
        "container CAP_SYS_PTRACE, or run both processes in one PID namespace"
    )
