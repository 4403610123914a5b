"""Completion of dataset names and transports in the shell."""

from __future__ import annotations

from typing import Any

_SECONDS = 1.0
"""How long completion may wait for a server, in seconds."""
_TRANSPORTS = ("auto", "tcp", "tcp+tls", "shm", "ucx", "flight")


def complete_transport(incomplete: str) -> list[str]:
    """Return the transports that begin with what was typed."""
    return [name for name in _TRANSPORTS if name.startswith(incomplete)]


def complete_name(ctx: Any, incomplete: str) -> list[str]:
    """Return the datasets of the control plane in the previous argument."""
    uri = ctx.params.get("uri")
    if not uri:
        return []
    return [name for name in _list_names(uri) if name.startswith(incomplete)]


def complete_uri(incomplete: str) -> list[str]:
    """Return the URIs of the datasets of the control plane that was typed."""
    address, separator, begin = incomplete.rpartition("/")
    if not separator or address.endswith("/"):
        return []
    return [f"{address}/{name}" for name in _list_names(address) if name.startswith(begin)]


def _list_names(uri: str) -> list[str]:
    """List the datasets of a control plane; none after an error, which a shell cannot show."""
    from ..errors import SplitArrowError
    from .connection import is_control_uri, resolve_token

    if not is_control_uri(uri):
        return []
    from ..client.connect import connect

    try:
        with connect(
            uri, resolve_token(None), connect_timeout=_SECONDS, timeout=_SECONDS
        ) as client:
            return sorted(client)
    except SplitArrowError:
        return []
