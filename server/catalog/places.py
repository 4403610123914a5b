"""Where what lies in a published dataset, by name."""

from __future__ import annotations

import re

from ...errors import DatasetError, UsageError
from ...formats.manifest import RESERVED, ShardEntry

VERSIONS = f"{RESERVED}/versions"
"""The folder of the manifests."""
STAGING = f"{RESERVED}/staging"
"""The folder of what running jobs have written: a folder for each."""
PRUNED = f"{RESERVED}/pruned"
"""The folder of manifests that are being removed."""
DATA = "data"
"""The folder of the shards: a folder for each job."""
_MANIFEST = re.compile(rf"{re.escape(VERSIONS)}/([0-9]{{8,18}})\.json")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def manifest_name(version: int) -> str:
    """Return where the manifest of a version lies in a dataset."""
    return f"{VERSIONS}/{version:08d}.json"


def version_of(name: str) -> int | None:
    """Return of which version a file is the manifest; None if it is none."""
    match = _MANIFEST.fullmatch(name)
    if match is None or manifest_name(int(match[1])) != name:
        return None
    return int(match[1]) or None


def shard_name(name: str, sha256: str) -> str:
    """Return what the file of a shard is called: its name, and of which bytes it is.

    Examples
    --------
    >>> shard_name("00000.arrow", "c0ffee" * 10)
    '00000-c0ffeec0ffeec0ff.arrow'
    """
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{sha256[:16]}.{suffix}" if stem else f"{name}-{sha256[:16]}"


def check_name(name: str, what: str) -> str:
    """Return the name of a job or a shard; raise `UsageError` if it cannot be one."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:140]!r} is no name for a {what}: letters, digits, '_', '.' and '-' make it up"
        )
    return name


def check_length(shard: ShardEntry, nbytes: int, location: str) -> None:
    """Raise `DatasetError` if a shard's file is not as long as its manifest says."""
    if nbytes != shard.nbytes:
        raise DatasetError(
            f"{location}/{shard.path} has {nbytes} bytes; its manifest says {shard.nbytes}"
        )
