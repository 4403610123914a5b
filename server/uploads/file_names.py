"""The names of files in the directory of uploads.

::

    NAME.arrow          an uploaded dataset
    NAME.published/     a dataset that is published shard by shard
    .upload-…           an incomplete file, or a folder that is being removed

``NAME`` is the name of the dataset, percent-encoded. Other files are ignored.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import quote, unquote

from ...errors import InvalidRequestError

FILE_SUFFIX = ".arrow"
"""The suffix of the file of an uploaded dataset."""
FOLDER_SUFFIX = ".published"
"""The suffix of the folder of a published dataset."""
INCOMPLETE_PREFIX = ".upload-"
"""The prefix of incomplete files and of folders that are being removed."""
_MAX_BYTES = 255
_FORBIDDEN = "/\\%"


def encode_name(dataset: str, suffix: str = FILE_SUFFIX) -> str:
    """Return the name of the file or folder of a dataset.

    Raises
    ------
    InvalidRequestError
        If the dataset's name could be mistaken for a path, or is too long for a file.

    Examples
    --------
    >>> encode_name("scores 2024")
    'scores%202024.arrow'
    """
    hidden = dataset.startswith(".") or not dataset.isprintable() or not dataset.strip()
    if hidden or any(character in dataset for character in _FORBIDDEN):
        raise InvalidRequestError(
            f"{dataset[:80]!r} is not a valid name for an upload: it must not be blank, begin with "
            "a dot, or contain / \\ % or control characters"
        )
    name = quote(dataset, safe="") + suffix
    if len(name) > _MAX_BYTES:
        raise InvalidRequestError(
            f"the name {dataset[:80]!r}… is too long for an upload: its file name has {len(name)} "
            f"characters, and the limit is {_MAX_BYTES}"
        )
    return name


def decode_name(name: str, suffix: str = FILE_SUFFIX) -> str | None:
    """Return the dataset that a file or folder belongs to; None if `encode_name` cannot make it."""
    dataset = unquote(name.removesuffix(suffix), errors="replace")
    try:
        return dataset if encode_name(dataset, suffix) == name else None
    except InvalidRequestError:
        return None


def make_incomplete_path(directory: Path) -> Path:
    """Return a new path for an incomplete file, or for a folder that is being removed."""
    return directory / f"{INCOMPLETE_PREFIX}{secrets.token_hex(16)}"
