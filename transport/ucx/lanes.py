"""The capabilities of a connection's lanes, by the names of UCX's transports.

A lane is one path of a connection, named by a transport and a device: ``posix/memory``,
``rc_mlx5/mlx5_0:1``, ``tcp/eth0``.
"""

from __future__ import annotations

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


def lanes_read_remotely(lanes: Iterable[str]) -> bool:
    """Return whether one of the lanes reads a peer's memory without the peer's help."""
    return any(name in COPYING or name.startswith(_READING) for name in map(parse_transport, lanes))


def lanes_pin_memory(lanes: Iterable[str]) -> bool:
    """Return whether one of the lanes reads the physical pages that were registered.

    Replacing the pages of a mapping has no effect on such a lane.
    """
    return any(parse_transport(lane).startswith(_PINNING) for lane in lanes)


def list_rdma_adapters() -> list[str]:
    """Return the names of this host's RDMA adapters."""
    if not ADAPTERS_FOLDER.is_dir():
        return []
    return sorted(entry.name for entry in ADAPTERS_FOLDER.iterdir())


def parse_transport(lane: str) -> str:
    """Return the transport of a lane."""
    return lane.partition("/")[0]
