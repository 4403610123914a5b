"""What a command writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..formats.arrow.conversion import Form


@dataclass(frozen=True, slots=True)
class OutputForm:
    """What to write."""

    text_format: str | None = None
    """``csv`` or ``jsonl`` on standard output, in place of an IPC stream."""
    messages: Form = field(default_factory=Form)
    """The form of Arrow IPC messages."""
    legacy: bool = False
    """Whether to write Arrow IPC with the framing before Arrow 0.15."""
    shred: Mapping[str, Any] | None = None
    """The Variant columns to shred in a Parquet file; see `ParquetSink`."""


PLAIN = OutputForm()
"""Arrow IPC messages as they arrive."""
