"""The environment variables of splitarrow. Misspelled ones are found, instead of ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .declaration import ENVIRONMENT_PREFIX, declarations, nearest
from .settings import ServerSettings

CLIENT_VARIABLES = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in ("DEBUG", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME", "TOKEN")
)
"""The variables that configure clients and commands, not servers."""
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_|$)|$)")
"""Kubernetes sets such variables for a service that is itself named ``splitarrow``."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence about each ``SPLITARROW_…`` variable that has no meaning.

    Parameters
    ----------
    environ : mapping
        The environment.

    Examples
    --------
    >>> unknown_variables({"SPLITARROW_WORKER": "2", "SPLITARROW_PORT": "tcp://10.0.0.1:8815"})
    ["SPLITARROW_WORKER: no such variable; did you mean 'SPLITARROW_WORKERS'?"]
    """
    names = [name for name in environ if name.startswith(ENVIRONMENT_PREFIX)]
    if not names:
        return []
    known = CLIENT_VARIABLES | {one.variable for one in declarations(ServerSettings)}
    unknown = [name for name in names if name not in known and not _SERVICE_LINK.search(name)]
    return [_describe(name, known) for name in sorted(unknown)]


def _describe(name: str, known: Iterable[str]) -> str:
    # Without the prefix, which makes all of them similar.
    similar = nearest(*(each.removeprefix(ENVIRONMENT_PREFIX) for each in (name, *known)))
    if similar is None:
        return f"{name}: no such variable; unset it"
    return f"{name}: no such variable; did you mean '{ENVIRONMENT_PREFIX}{similar}'?"
