"""The form of Arrow IPC messages that a reader asks for.

It is apart from `conversion`, so that a command can check its options without loading pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...errors import UsageError

_CODECS = ("lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the messages of a stream. `None` keeps what the source has."""

    endianness: Literal["little", "big"] | None = None
    """The byte order."""
    version: Literal["v4", "v5"] | None = None
    """The metadata version."""
    compression: Literal["none", "lz4", "zstd"] | None = None
    """The compression of the bodies."""

    def __post_init__(self) -> None:
        if self.version == "v4" and self.compression in _CODECS:
            raise UsageError("readers of the metadata version V4 know no compression")
