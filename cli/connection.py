"""Connect to a control plane: the arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from .formatting import escape_text
from .options import flag, option
from .terminal import print_message

if TYPE_CHECKING:
    from ..client.connect import AnyClient
    from ..client.dataset.client import Client

TOKEN_VARIABLE = "SPLITARROW_TOKEN"
"""The environment variable for the token."""
PANEL = "Connection"
"""The heading of options about connections."""

ControlUri = Annotated[
    str,
    typer.Argument(
        help="The control plane: [cyan]grpc://host:port[/cyan] or "
        "[cyan]grpc+tls://host:port[/cyan]. Several daemons that share datasets: "
        "[cyan]grpc://a,b:port[/cyan].",
        metavar="CONTROL_URI",
    ),
]
Token = Annotated[
    str | None,
    option(
        help=f"Your bearer token. Prefer {TOKEN_VARIABLE}: other users of this machine can read "
        "command lines.",
        default=f"${TOKEN_VARIABLE}",
        metavar="TOKEN",
        panel=PANEL,
    ),
]
ConnectTimeout = Annotated[
    float,
    option(help="The longest time to connect, in seconds.", metavar="SECONDS", panel=PANEL),
]
AsJson = Annotated[bool, flag("--json", help="Print JSON, for programs.")]
Quiet = Annotated[bool, flag("-q", "--quiet", help="Show no progress and no summary.")]


def is_control_uri(uri: str) -> bool:
    """Return whether a URI is that of a control plane, or of a dataset of one."""
    from ..client import uris

    return uris.is_control_uri(uri)


def locate(uri: str, name: str | None, command: str) -> tuple[str, str]:
    """Return the control plane and the dataset, which the URI or the next argument names.

    Raises `UsageError` if neither names a dataset, or both do.
    """
    from ..client.uris import split_dataset

    address, found = split_dataset(uri)
    if name is not None and found is not None:
        raise UsageError(f"{uri} already names a dataset; leave {name!r} out")
    if not (name or found):
        raise UsageError(
            f"name a dataset: splitarrow {command} {address} NAME "
            f"(splitarrow ls {address} lists the names)"
        )
    return address, name or found or ""


@contextmanager
def open_client(uri: str, token: str | None, connect_timeout: float) -> Generator[AnyClient]:
    """Connect to a control plane, or to several, while the context lasts.

    TLS uses the variables ``SPLITARROW_TLS_CA``, ``_CERT``, ``_KEY`` and ``_SERVER_NAME``.

    Raises `UsageError` if the URI is not that of a control plane, or the timeout is not positive.
    Raises `TransportError`, `RemoteError` if the connection fails.
    """
    from ..client.connect import connect
    from ..transport.tls_options import TlsOptions

    if connect_timeout <= 0:
        raise UsageError(f"--connect-timeout {connect_timeout:g} must be more than 0 seconds")
    tls = TlsOptions.from_environment()
    with connect(uri, resolve_token(token), tls=tls, connect_timeout=connect_timeout) as client:
        yield client


@contextmanager
def open_single_client(uri: str, token: str | None, connect_timeout: float) -> Generator[Client]:
    """Connect to one control plane while the context lasts; see `open_client`.

    Raises `UsageError` if the URI names several.
    """
    with open_client(uri, token, connect_timeout) as client:
        from ..client.dataset.client import Client

        if not isinstance(client, Client):
            raise UsageError(f"this command works on one daemon; name one of {client.uri}")
        yield client


def report_unreachable(client: AnyClient) -> None:
    """Print on standard error which of several daemons did not respond."""
    from ..client.cluster.client import ClusterClient

    if isinstance(client, ClusterClient):
        for uri, error in client.absent.items():
            print_message(f"splitarrow: warning: {escape_text(uri)}: {escape_text(str(error))}")


def resolve_token(token: str | None) -> str | None:
    """Return the token of the command line, or that of the environment."""
    return token or os.environ.get(TOKEN_VARIABLE) or None


def describe_schema(schema: Any) -> list[dict[str, str]]:
    """Return the names and types of the columns of a schema, for JSON."""
    return [{"name": field.name, "type": str(field.type)} for field in schema]


def describe_dataset(info: Any) -> dict[str, Any]:
    """Return the description of a dataset, for JSON."""
    return {
        "name": info.name,
        "rows": info.rows,
        "bytes": info.bytes,
        "kind": info.kind,
        "version": info.version,
        "writers": info.writers or None,
        "columns": describe_schema(info.schema),
        **({"tensors": [asdict(tensor) for tensor in info.tensors]} if info.tensors else {}),
    }
