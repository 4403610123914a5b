"""Measures the memory of a process that a test starts.

Python imports this module at its start if its folder is in PYTHONPATH. On SIGUSR2, the process
returns what its allocators keep for later to the kernel. What remains is in use or fragmented. Then
it writes its figures to a file of the folder MEMORY_PROBE, whose name is its process id.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path


def measure(*_: object) -> None:
    """Write the figures of this process."""
    gc.collect()
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        pyarrow.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    anonymous = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
    figures = {
        "kib": int(anonymous),
        "blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    path = Path(os.environ["MEMORY_PROBE"]) / str(os.getpid())
    path.with_suffix(".part").write_text(json.dumps(figures))
    path.with_suffix(".part").rename(path)


if "MEMORY_PROBE" in os.environ:
    signal.signal(signal.SIGUSR2, measure)
