"""The suffixes of outputs, each of which selects a format."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError

ARROW_SUFFIXES = frozenset({".arrow", ".feather", ".arrows"})
"""The suffixes of Arrow IPC, whose messages need no decoding."""
TENSOR_SUFFIXES = (".tensor", ".npy")
_KNOWN = (
    *(".arrow", ".feather", ".arrows", ".parquet", ".csv", ".jsonl", ".ndjson"),
    *(".vortex", ".vortexs"),
    *TENSOR_SUFFIXES,
)


def parse_suffix(path: Path) -> str:
    """Return the suffix of a path, in lower case, if it selects a format.

    Raises `UsageError` if it does not.
    """
    suffix = path.suffix.lower()
    if suffix not in _KNOWN:
        raise UsageError(
            f"{path}: the suffix selects the format; use one of {', '.join(_KNOWN)}, "
            "or - for standard output"
        )
    return suffix
