"""Folders whose files are not the rows of a dataset: tables with a log, and published datasets.

The log or the manifests state which files, and which of their rows, are current. A list of all
files also has the removed rows, so a listing must refuse such a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ..errors import DatasetError
from .layout import VERSIONS

_PUBLISH = "give Spark its package, and publish it with --format table"
_FORMATS = {
    "Delta": ("a Delta table", f"serve or convert {{0}} itself, or {_PUBLISH}"),
    "Iceberg": (
        "an Apache Iceberg table",
        f"serve what pyiceberg's scan().to_arrow() returns, or {_PUBLISH}",
    ),
    "Hudi": ("an Apache Hudi table", _PUBLISH),
    "published": ("a published dataset", "serve or convert {0} itself"),
}
"""The formats: what a folder is called, and what to do with it."""
_MARKERS = (
    ("_delta_log", "", "Delta"),
    ("metadata", ".metadata.json", "Iceberg"),
    (".hoodie", "", "Hudi"),
    (VERSIONS, "", "published"),
)
"""The subfolder that a table has, what the name of a file in it ends with, and the format."""
_MARKED = [
    (
        f"{folder}/",
        re.compile(rf"(?:(.*?)/)?{re.escape(folder)}/[^/]*{re.escape(suffix)}(?:$|/)"),
        format,
    )
    for folder, suffix, format in _MARKERS
]
"""What the name of a file in such a subfolder contains, its expression, and the format."""


def find_format(has_files: Callable[[str, str], bool]) -> str | None:
    """Return the table format of a folder, or None.

    `has_files` returns whether a subfolder exists, with a file of a suffix unless that is empty.
    """
    return next((format for folder, suffix, format in _MARKERS if has_files(folder, suffix)), None)


def find_tables(names: Iterable[str]) -> dict[str, str]:
    """Return the folders that are tables, and their formats, by the names of all files.

    Examples
    --------
    >>> find_tables(["trips/a.parquet", "trips/_delta_log/0.json", "metadata/v1.metadata.json"])
    {'trips': 'Delta', '': 'Iceberg'}
    """
    found: dict[str, str] = {}
    for name in names:
        for folder, expression, format in _MARKED:
            if folder in name and (match := expression.match(name)) is not None:
                found.setdefault(match[1] or "", format)
    return found


def list_parents(name: str) -> Iterator[str]:
    """Yield the folders of a name that has no leading slash, from the innermost to ``""``.

    Examples
    --------
    >>> list(list_parents("a/b/c.parquet"))
    ['a/b', 'a', '']
    """
    while name:
        name = name.rpartition("/")[0]
        yield name


def check_folders(folders: Iterable[str]) -> None:
    """Raise `DatasetError` if a local folder is a table, or is in one."""
    checked: set[str] = set()
    for folder in dict.fromkeys(folders):
        for path in dict.fromkeys((os.path.abspath(folder), os.path.realpath(folder))):
            while path not in checked:
                checked.add(path)
                if (format := find_format(partial(_has_files, path))) is not None:
                    raise refuse_table(path, format)
                path = os.path.dirname(path)


def _has_files(root: str, folder: str, suffix: str) -> bool:
    path = os.path.join(root, folder)
    if not suffix:
        return os.path.isdir(path)
    try:
        with os.scandir(path) as entries:
            return any(entry.name.endswith(suffix) for entry in entries)
    except OSError:
        return False


def refuse_table(location: str, format: str) -> DatasetError:
    """Return the error for a folder that is a table, or for a part of it."""
    name, advice = _FORMATS[format]
    return DatasetError(
        f"{location} is {name}, and its files also have rows that were removed or replaced; "
        + advice.format(location)
    )
