"""The files in a folder of uploads, whose names have a hash, beside a marker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from splitarrow.server.uploads.folder import MARKER, UploadFolder


def list_uploads(folder: Path) -> list[str]:
    """Return the names in a folder of uploads, without the marker and the hashes."""
    found = [path for path in folder.iterdir() if path.name != MARKER]
    return sorted(_remove_hash(path.name) for path in found)


def find_upload(folder: Path, name: str) -> Path:
    """Return the path of a file or folder by its name without the hash."""
    (path,) = (path for path in folder.iterdir() if _remove_hash(path.name) == name)
    return path


def make_upload_path(folder: Path, dataset: str) -> Path:
    """Return the path of the file that a server writes for a dataset."""
    with closing(UploadFolder(folder)) as opened:
        return opened.make_path(dataset)


def make_incomplete_path(folder: Path) -> Path:
    """Return the path of an incomplete file, as a killed server leaves it."""
    with closing(UploadFolder(folder)) as opened:
        return opened.make_incomplete_path()


def _remove_hash(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    kept, _, digest = stem.rpartition(".")
    return f"{kept}.{suffix}" if kept and len(digest) == 8 else name
