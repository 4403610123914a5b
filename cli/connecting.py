"""What all commands share that speak to a control plane."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..errors import UsageError
from .figures import printable
from .output import is_terminal, say
from .wording import flag, option

if TYPE_CHECKING:
    from ..client.control import Client

TOKEN = "SPLITARROW_TOKEN"
"""The variable that holds the token, where the command line does not."""
_PANEL = "Connection"
_PIPE_WIDTH = 120

ControlUri = Annotated[
    str,
    typer.Argument(
        help="The control plane: [cyan]grpc://host:port[/cyan] or "
        "[cyan]grpc+tls://host:port[/cyan]. "
        "Several that share datasets: [cyan]grpc://a,b:port[/cyan].",
        metavar="CONTROL_URI",
    ),
]
Token = Annotated[
    str | None,
    option(
        help="Who you are to the server. Other users of this machine can read it here: rather set "
        f"{TOKEN}.",
        default=f"${TOKEN}",
        metavar="TOKEN",
        panel=_PANEL,
    ),
]
ConnectTimeout = Annotated[
    float,
    option(
        help="The longest time to connect, in seconds.",
        metavar="SECONDS",
        panel=_PANEL,
    ),
]
AsJson = Annotated[bool, flag("--json", help="Print JSON, for programs.")]


def is_control(uri: str) -> bool:
    """Tell whether a URI is that of a control plane."""
    return uri.partition(":")[0].lower().startswith("grpc")


@contextmanager
def connected(uri: str, token: str | None, connect_timeout: float) -> Generator[Client]:
    """Connect to a control plane while the context lasts.

    TLS follows the variables ``SPLITARROW_TLS_CA``, ``_CERT``, ``_KEY`` and ``_SERVER_NAME``.
    """
    from ..client.control import connect
    from ..transport.certificates import TlsOptions

    if connect_timeout <= 0:
        raise UsageError("--connect-timeout has to be more than 0 seconds")
    quieten()
    tls = TlsOptions.from_environment()
    with connect(uri, token_or_default(token), tls=tls, connect_timeout=connect_timeout) as client:
        yield client


def tell_absent(client: Client) -> None:
    """Say on standard error which of several daemons do not answer: what is shown lacks theirs."""
    from ..client.fleet import FleetClient

    if isinstance(client, FleetClient):
        for where, error in client.absent.items():
            say(f"splitarrow: nothing from {printable(where)}: {printable(str(error))}")


def token_or_default(token: str | None) -> str | None:
    """Return the token that was given, or that of the environment."""
    return token or os.environ.get(TOKEN) or None


def quieten() -> None:
    """Keep gRPC's own remarks off standard error: what matters, the command says."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def console() -> Console:
    """Return where tables are printed: as wide as the terminal, and wide enough in a pipe."""
    return Console(highlight=False, width=None if is_terminal(sys.stdout) else _PIPE_WIDTH)


def described(info: Any) -> dict[str, Any]:
    """Return what is told of a dataset, for JSON."""
    return {
        "name": info.name,
        "rows": info.rows,
        "bytes": info.bytes,
        "kind": info.kind,
        "version": info.version,
        "columns": [{"name": field.name, "type": str(field.type)} for field in info.schema],
    }
