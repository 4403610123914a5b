"""The names of the files of a published dataset.

All names are relative to the dataset. ``/`` separates their components::

    _splitarrow/versions/00000001.json    the manifest of version 1
    _splitarrow/staging/JOB/NAME-HASH     a shard that its job has not committed
    _splitarrow/pruned/00000001.json      a manifest whose shards are being removed
    data/JOB/NAME-HASH                    a shard

The files of a job have the job's name in their path, so two jobs never write the same file. The
name of a shard contains a hash of its contents, so an attempt to write other contents under the
same name cannot replace a shard.
"""

from __future__ import annotations

import re

from ..errors import UsageError

RESERVED = "_splitarrow"
"""The folder for everything but shards."""
VERSIONS = f"{RESERVED}/versions"
"""The folder of the manifests."""
STAGING = f"{RESERVED}/staging"
"""The folder of uncommitted shards, with one subfolder for each job."""
PRUNED = f"{RESERVED}/pruned"
"""The folder of manifests whose shards are being removed."""
DATA = "data"
"""The folder of the shards, with one subfolder for each job."""
_MANIFEST = re.compile(rf"{re.escape(VERSIONS)}/([0-9]{{8,18}})\.json")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HASH_DIGITS = 16


def format_manifest_name(version: int) -> str:
    """Return the name of the manifest of a version.

    Examples
    --------
    >>> format_manifest_name(1)
    '_splitarrow/versions/00000001.json'
    """
    return f"{VERSIONS}/{version:08d}.json"


def parse_manifest_name(name: str) -> int | None:
    """Return the version whose manifest has this name; None if it is not a manifest's name."""
    match = _MANIFEST.fullmatch(name)
    if match is None or format_manifest_name(int(match[1])) != name:
        return None
    return int(match[1]) or None


def format_shard_name(name: str, sha256: str) -> str:
    """Return the file name of a shard: the given name and the start of the file's SHA-256.

    Examples
    --------
    >>> format_shard_name("00000.arrow", "c0ffee" * 10)
    '00000-c0ffeec0ffeec0ff.arrow'
    """
    stem, _, suffix = name.rpartition(".")
    digits = sha256[:_HASH_DIGITS]
    return f"{stem}-{digits}.{suffix}" if stem else f"{name}-{digits}"


def format_staging_folder(job: str) -> str:
    """Return the folder of the uncommitted shards of a job."""
    return f"{STAGING}/{job}"


def format_data_folder(job: str) -> str:
    """Return the folder of the shards of a job."""
    return f"{DATA}/{job}"


def check_name(name: str, what: str) -> str:
    """Return the name of a job or a shard.

    Raises `UsageError` if the name is empty, too long, or has a character that is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:140]!r} is not a valid {what} name: use up to 128 letters, digits, '_', '.' "
            "and '-', and begin with a letter, a digit or '_'"
        )
    return name
