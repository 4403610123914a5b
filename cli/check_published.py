"""Checks of published datasets for ``splitarrow check``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import SplitArrowError
from ..formats.arrow.file_scan import Defect
from ..publication.shard_files import hash_file
from ..publication.version_store import VersionStore
from .check_files import check_file
from .check_report import Progress, Report


def is_published(folder: Path) -> bool:
    """Return whether a folder is a published dataset."""
    try:
        return bool(VersionStore(folder).list_versions())
    except SplitArrowError:
        return False


def check_published(folder: Path, *, full: bool, progress: Progress) -> Iterator[Report]:
    """Check the newest version of a published dataset: its manifest and its shards.

    With `full`, the SHA-256 of each shard is compared with the manifest, too.
    """
    report = Report(str(folder), "published dataset", batch_noun="shard")
    try:
        manifest = VersionStore(folder).load()
    except SplitArrowError as error:
        report.add_defect(Defect("manifest", None, error.message))
        manifest = None
    if manifest is None:
        yield report
        return
    report.record_batches, report.rows = len(manifest.shards), manifest.rows
    report.nbytes, report.columns = manifest.nbytes, len(manifest.schema)
    yield report
    for shard in manifest.shards:
        path = folder / shard.path
        found = check_file(path, full=full, progress=progress)
        if found.nbytes != shard.nbytes:
            problem = f"it has {found.nbytes} bytes; the manifest lists {shard.nbytes}"
            found.add_defect(Defect("file", None, problem))
        elif found.is_sound and found.rows != shard.rows:
            problem = f"it has {found.rows} rows; the manifest lists {shard.rows}"
            found.add_defect(Defect("file", None, problem))
        elif full and hash_file(path) != shard.sha256:
            found.add_defect(Defect("file", None, "its SHA-256 is not that in the manifest"))
        yield found
