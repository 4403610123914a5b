"""Completion of dataset names and transports in the shell."""

from __future__ import annotations

import io
import os
from collections.abc import MutableMapping
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Any

_VARIABLE = "_SPLITARROW_COMPLETE"
_SECONDS = 1.0
"""How long completion may wait for a server, in seconds."""
_TRANSPORTS = ("auto", "tcp", "tcp+tls", "shm", "ucx", "http", "flight")


def is_bash_completion() -> bool:
    """Return whether bash has started this process to complete a command line."""
    return os.environ.get(_VARIABLE) == "complete_bash"


def complete_for_bash(command: Any) -> int:
    """Print the completions of a command line for bash, which splits words at colons, too."""
    hidden = join_words(os.environ)
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            command.main(prog_name="splitarrow")
    except SystemExit:
        pass  # typer exits once it has printed the completions
    for line in output.getvalue().splitlines():
        print(line.removeprefix(hidden))
    return 0


def join_words(environ: MutableMapping[str, str]) -> str:
    """Join what bash has split at colons; return the part of the last word that bash hides.

    bash replaces only what follows the last colon.

    >>> words = ["splitarrow", "fetch", "grpc", ":", "//host", ":", "8815/fl"]
    >>> environ = {"COMP_WORDS": chr(10).join(words), "COMP_CWORD": "6"}
    >>> join_words(environ), environ["COMP_WORDS"].split(), environ["COMP_CWORD"]
    ('grpc://host:', ['splitarrow', 'fetch', 'grpc://host:8815/fl'], '2')
    """
    words = environ["COMP_WORDS"].split("\n")[: int(environ["COMP_CWORD"]) + 1]
    joined = words[:1]
    for before, word in pairwise(words):
        if word == ":" or before == ":":
            joined[-1] += word
        else:
            joined.append(word)
    environ["COMP_WORDS"] = "\n".join(joined)
    environ["COMP_CWORD"] = str(len(joined) - 1)
    head, colon, _ = joined[-1].rpartition(":")
    return head + colon


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
    from ..client.uris import is_control_uri
    from ..errors import SplitArrowError
    from .connection import resolve_token

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
