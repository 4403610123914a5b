"""Checks of single values in a manifest.

Each check returns the value that it accepts. Otherwise it raises `InvalidDataError`, which names
the field and shows the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..errors import InvalidDataError
from .layout import RESERVED

MAX_COUNT = (1 << 63) - 1
"""The largest count in a manifest."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SHOWN = 64


def check_count(value: Any, name: str) -> int:
    """Return a number of rows, bytes or shards."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise InvalidDataError(f"{name} is {show(value)}; expected an integer from 0 to 2^63 - 1")
    return value


def check_text(value: Any, name: str) -> str:
    """Return a text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise InvalidDataError(f"{name} is {show(value)}; expected a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidDataError(f"{name} is not valid Unicode") from None
    return value


def check_texts(value: Any, name: str) -> dict[str, str]:
    """Return a mapping of texts to texts."""
    return {
        check_text(key, name): check_text(text, f"{name}[{key!r}]")
        for key, text in check_object(value, name).items()
    }


def check_object(value: Any, name: str) -> dict[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidDataError(f"{name} is {show(value)}; expected an object")
    return dict(cast("Mapping[str, Any]", value))


def check_list(value: Any, name: str) -> list[Any]:
    """Return a JSON list."""
    if not isinstance(value, list):
        raise InvalidDataError(f"{name} is {show(value)}; expected a list")
    return cast("list[Any]", value)


def check_unique(values: Iterable[object], name: str) -> None:
    """Check that no two shards have the same value in a field."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise InvalidDataError(f"two shards have the {name} {value!r}")
        seen.add(value)


def check_sha256(value: Any) -> str:
    """Return a SHA-256 in hexadecimal digits."""
    if not _SHA256.fullmatch(check_text(value, "sha256")):
        raise InvalidDataError(
            f"sha256 is {value[:_MAX_SHOWN]!r}; expected 64 lowercase hexadecimal digits"
        )
    return value


def check_path(path: Any) -> str:
    """Return the path of a shard: relative, inside the dataset, outside its reserved folder."""
    parts = check_text(path, "path").split("/")
    if "\\" in path or any(ord(char) < 32 for char in path):
        raise InvalidDataError(f"path {path!r} has a backslash or a control character")
    if any(part in ("", ".", "..") for part in parts) or parts[0] == RESERVED:
        raise InvalidDataError(
            f"path {path!r} is not allowed: expected a relative path inside the dataset and "
            f"outside {RESERVED}"
        )
    return path


def show(value: object) -> str:
    """Return a value for an error message: scalars shortened, of all others only the type."""
    if value is None:
        return "missing"
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]}…"
