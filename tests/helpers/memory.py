"""The memory of processes that a test starts, as they measure it themselves."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.waiting import wait_until

_PROBE = Path(__file__).with_name("memory_probe")


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What a process has after its allocators returned what they keep for later."""

    kib: int
    """The anonymous memory, in KiB."""
    blocks: int
    """The number of objects that Python has allocated."""
    descriptors: int
    """The number of open descriptors."""


class MemoryProbe:
    """Measures processes that were started with its environment, and those that they fork.

    Parameters
    ----------
    folder : path
        An empty folder for the figures.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {"PYTHONPATH": str(_PROBE), "MEMORY_PROBE": str(folder)}

    def measure(self, pid: int) -> ProcessFigures:
        """Return the figures of a process, which should be idle."""
        path = self._folder / str(pid)
        os.kill(pid, signal.SIGUSR2)
        wait_until(path.exists, f"the figures of process {pid}")
        figures = ProcessFigures(**json.loads(path.read_text()))
        path.unlink()
        return figures


class Growth:
    """How a process grows with the streams that it serves or reads.

    Parameters
    ----------
    probe : MemoryProbe
        Measures the process.
    pid : int
        The process.
    """

    def __init__(self, probe: MemoryProbe, pid: int) -> None:
        self._probe = probe
        self._pid = pid
        self._figures: list[ProcessFigures] = []
        self._streams: list[int] = []

    def measure(self, streams: int) -> None:
        """Measure the process, which should be idle after `streams` streams in all."""
        self._figures.append(self._probe.measure(self._pid))
        self._streams.append(streams)

    @property
    def bytes_per_stream(self) -> int:
        """The growth of the anonymous memory per stream, since the first measurement."""
        kib = self._figures[-1].kib - self._figures[0].kib
        return round(1024 * kib / max(1, self._streams[-1] - self._streams[0]))

    @property
    def fewest_descriptors(self) -> int:
        """The smallest number of descriptors so far."""
        return min(each.descriptors for each in self._figures)

    @property
    def last_descriptors(self) -> int:
        """The number of descriptors at the last measurement."""
        return self._figures[-1].descriptors

    def summarize(self, name: str) -> dict[str, Any]:
        """Return all figures, for the result of a battery."""
        return {
            f"{name}_bytes_per_stream": self.bytes_per_stream,
            f"{name}_kib": [each.kib for each in self._figures],
            f"{name}_blocks": [each.blocks for each in self._figures],
            f"{name}_descriptors": [each.descriptors for each in self._figures],
        }
