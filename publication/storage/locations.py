"""The storage behind a path or a URL."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...errors import UsageError
from .base import Storage
from .local import LocalStorage

OBJECT_SCHEMES = ("s3", "gs", "az")
"""The URL schemes of object stores."""


def is_storage_url(location: str) -> bool:
    """Return whether a location is a URL with a scheme that `open_storage` accepts."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in (*OBJECT_SCHEMES, "file")


def is_object_url(location: str) -> bool:
    """Return whether a location is the URL of an object store."""
    scheme, separator, _ = location.partition("://")
    return bool(separator) and scheme in OBJECT_SCHEMES


def open_storage(location: str | os.PathLike[str]) -> Storage:
    """Return the storage at a location. Nothing is read or created yet.

    Parameters
    ----------
    location : str or path-like
        A path, or a URL: ``file:///…``, ``s3://bucket/…``, ``gs://bucket/…``,
        ``az://container/…``.

    Raises
    ------
    UsageError
        If the URL is incomplete or has another scheme.
    MissingExtraError
        If the URL names an object store, and the extra ``object-store`` is not installed.
    """
    text = os.fspath(location)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalStorage(Path(text))
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{text}: a file URL must have an absolute path and no host")
        return LocalStorage(Path(unquote(parts.path)))
    if scheme in OBJECT_SCHEMES:
        from .object_store import ObjectStorage

        return ObjectStorage(text)
    raise UsageError(
        f"{text}: unsupported scheme {scheme!r}; use a path, or a URL with the scheme file, s3, "
        "gs or az"
    )
