"""What the lanes of a connection can do, by the names of UCX's transports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ADAPTERS = Path("/sys/class/infiniband")
"""Where the kernel lists RDMA adapters."""
_COPYING = frozenset({"cma", "xpmem", "knem"})
"""A process reads another's memory, wherever that then lies."""
_PINNING = ("rc", "dc", "ud", "gga", "ugni", "srd", "efa")
"""Network adapters read memory at the place where it was when it was registered."""
_READING = ("rc", "dc", "gga", "ugni")


def offer_remote_reads(lanes: Iterable[str]) -> bool:
    """Tell whether a peer's memory can be read without the peer doing anything for it."""
    return any(name in _COPYING or name.startswith(_READING) for name in map(_transport, lanes))


def pin_memory(lanes: Iterable[str]) -> bool:
    """Tell whether memory that was registered is read where it lay then."""
    return any(_transport(lane).startswith(_PINNING) for lane in lanes)


def adapters() -> list[str]:
    """Return the names of this host's RDMA adapters."""
    return sorted(entry.name for entry in ADAPTERS.iterdir()) if ADAPTERS.is_dir() else []


def _transport(lane: str) -> str:
    return lane.partition("/")[0]
