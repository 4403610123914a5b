"""How to read a dataset, whatever it consists of."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UsageError
from ..stream.options import ReadOptions

AUTO = "auto"
"""The `transport` that takes the first location that can be reached."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How to read the endpoints of a dataset. It is valid once built."""

    options: ReadOptions
    """How to read the stream of one endpoint."""
    transport: str = AUTO
    """The scheme to use, ``flight`` for DoGet, or ``auto`` for the first that can be reached."""
    location_timeout: float = 2.0
    """The time limit to connect to one of several locations, in seconds."""
    resume_attempts: int = 8
    """Consecutive retries per server without receiving a row; 0 disables resuming."""
    parallel: int = 4
    """The number of endpoints to read at a time."""
    window_bytes: int = 256 << 20
    """The size of the batches to prefetch from several endpoints together, in bytes."""

    def __post_init__(self) -> None:
        if self.location_timeout <= 0:
            raise UsageError(f"location_timeout is {self.location_timeout:g}; expected more than 0")
        for name, least in (("resume_attempts", 0), ("parallel", 1), ("window_bytes", 1)):
            value: int = getattr(self, name)
            if value < least:
                raise UsageError(f"{name} is {value}; expected {least} or more")
