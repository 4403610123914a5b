"""Sinks: they write record batches in other formats than Arrow IPC.

The command line writes files with them, and the HTTP listener responses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any


class Sink(ABC):
    """Writes record batches to one file, which it closes.

    Every method may raise `OSError`, and `UsageError` if the format cannot store the data.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    @abstractmethod
    def write(self, batch: Any) -> None:
        """Write a batch, or keep it for a later write."""

    def close(self) -> None:
        """Complete the file and close it."""
        self._file.close()

    def abort(self) -> None:
        """Close an incomplete file. Raises nothing."""
        with suppress(Exception):
            self._file.close()
