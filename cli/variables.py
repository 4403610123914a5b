"""Refuse misspelled ``SPLITARROW_…`` variables, which would otherwise be ignored."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UsageError

_COMMON = ("DEBUG", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME", "TOKEN")
"""Variables that commands need no list of settings for, which takes time to import."""


def check_variables(environ: Mapping[str, str]) -> None:
    """Raise if a variable that begins with ``SPLITARROW_`` is unknown.

    Raises `UsageError`: The error suggests the nearest name.
    """
    prefix = "SPLITARROW_"
    if all(name.removeprefix(prefix) in _COMMON for name in environ if name.startswith(prefix)):
        return
    from ..server.config.configuration import unknown_variables

    problems = unknown_variables(environ)
    if problems:
        raise UsageError("; ".join(problems))
