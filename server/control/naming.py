"""How uploads are called in their directory."""

from __future__ import annotations

from urllib.parse import quote

from ...errors import InvalidRequestError

SUFFIX = ".arrow"
"""How the file of an upload ends."""
FOLDER_SUFFIX = ".published"
"""How the folder of a published dataset ends."""
TEMPORARY = ".upload-"
"""How what is not complete begins."""
_LONGEST_FILE = 255
_FORBIDDEN = "/\\%"


def file_name(name: str, suffix: str = SUFFIX) -> str:
    """Return the name of the file, or folder, for a dataset that is uploaded.

    Raises
    ------
    InvalidRequestError
        If the name could be meant as a path, or is too long.

    Examples
    --------
    >>> file_name("scores 2024")
    'scores%202024.arrow'
    """
    hidden = name.startswith(".") or not name.isprintable() or not name.strip()
    if hidden or any(sign in name for sign in _FORBIDDEN):
        raise InvalidRequestError(
            f"the name {name[:80]!r} cannot be that of an upload: it must not be blank, begin "
            "with a dot, nor hold / \\ % or control characters"
        )
    found = quote(name, safe="") + suffix
    if len(found) > _LONGEST_FILE:
        raise InvalidRequestError(
            f"the name of an upload has {len(name)} characters: {name[:80]!r}"
        )
    return found
