"""Why a connection is not faster: which lanes of UCX are missing on this host, and why."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from .lanes import ADAPTERS, adapters, offer_remote_reads

_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_DRIVER = "libcuda.so.1"


def hints(lanes: Iterable[str]) -> list[str]:
    """Return what keeps faster lanes from being used, a sentence each.

    Parameters
    ----------
    lanes : iterable of str
        Those between two processes of this host, such as ``posix/memory``.
    """
    lanes = list(lanes)
    transports = {lane.partition("/")[0] for lane in lanes}
    found: list[str] = []
    chosen = os.environ.get("UCX_TLS")
    if chosen is not None:
        found.append(f"UCX_TLS={chosen} is set: no other lanes are used")
    if not transports & {"cma", "xpmem", "knem"} and chosen is None:
        found.append(f"no cma: {_no_reading()}")
    there = adapters()
    if not there:
        found.append(f"no RDMA: this host has no adapter ({ADAPTERS} is empty)")
    elif not offer_remote_reads(transports - {"cma", "xpmem", "knem"}):
        found.append(
            f"no RDMA, though there is {', '.join(there)}: the wheel libucx-cu12 brings no "
            "such transports; install UCX of the system and set "
            "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"
        )
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        found.append(f"no CUDA: {_DRIVER} is not there, so memory of GPUs cannot be sent")
    return found


def _no_reading() -> str:
    try:
        scope = _PTRACE_SCOPE.read_text().strip()
    except OSError:
        scope = "0"
    if scope != "0":
        return (
            f"kernel.yama.ptrace_scope is {scope}, which keeps processes from reading each "
            "other's memory; bodies are copied twice"
        )
    return (
        "processes may not read each other's memory here (a container needs CAP_SYS_PTRACE, or "
        "one namespace of processes); bodies are copied twice"
    )
