"""The files that ``splitarrow check`` finds at a path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .check_files import check_file
from .check_published import check_published, is_published
from .check_report import Progress, Report


def check_path(path: Path, *, full: bool, progress: Progress) -> Iterator[Report]:
    """Check a file, all files in a folder, or the newest version of a published dataset."""
    if not path.is_dir():
        yield check_file(path, full=full, progress=progress)
        return
    if is_published(path):
        yield from check_published(path, full=full, progress=progress)
        return
    for found in _list_files(path):
        yield check_file(found, full=full, progress=progress)


def is_local(target: str) -> bool:
    """Return whether a target is a path."""
    return "://" not in target or os.path.exists(target)


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, sorted, as a dataset has them."""
    from ..server.catalog.files.directory import FolderListing

    for origin in FolderListing(folder).list_files():
        yield Path(origin.path)
